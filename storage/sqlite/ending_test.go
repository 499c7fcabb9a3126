package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	modernc "modernc.org/sqlite"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

// late is a driver that says of a transaction which it has begun that the context has
// ended, as drivers do if it ends at that moment.
type late struct {
	dsn string
	now atomic.Bool
}

func (l *late) Driver() driver.Driver { return &modernc.Driver{} }

func (l *late) Connect(context.Context) (driver.Conn, error) {
	conn, err := l.Driver().Open(l.dsn)
	if err != nil {
		return nil, err
	}
	return &lateConn{conn.(sqliteConn), l}, nil
}

type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
}

type lateConn struct {
	sqliteConn
	l *late
}

// answer is that to a call that can be ended and has had its effect.
func (c *lateConn) answer(ctx context.Context, err error) error {
	if err == nil && ctx.Done() != nil && c.l.now.Load() {
		return context.Canceled
	}
	return err
}

func (c *lateConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := c.sqliteConn.BeginTx(ctx, o)
	return tx, c.answer(ctx, err)
}

func (c *lateConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	r, err := c.sqliteConn.ExecContext(ctx, query, args)
	if strings.HasPrefix(strings.ToUpper(query), "BEGIN") {
		err = c.answer(ctx, err)
	}
	return r, err
}

// TestEndingContexts: a context that ends when a transaction has just begun leaves no
// connection in it.
func TestEndingContexts(t *testing.T) {
	l := &late{dsn: "file:" + filepath.Join(t.TempDir(), "jobs.db") + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_txlock=immediate"}
	db := sql.OpenDB(l)
	defer db.Close()
	s, err := sqlite.New(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, call := range map[string]func(ctx context.Context) error{
		"Get":   func(ctx context.Context) error { _, err := s.Get(ctx, "", pawl.ID{1}); return err },
		"Count": func(ctx context.Context) error { _, err := s.Count(ctx); return err },
		"InTx":  func(ctx context.Context) error { return s.InTx(ctx, func(*sql.Tx, pawl.Writer) error { return nil }) },
	} {
		l.now.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		if err := call(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		l.now.Store(false)
		for range 10 { // connections
			if err := call(t.Context()); err != nil {
				t.Fatalf("%s, whose context ended as its transaction began, has broken the next: %v", name, err)
			}
		}
	}
}
