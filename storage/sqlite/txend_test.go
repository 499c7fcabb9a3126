package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

// cutter ends a context after a number of statements.
type cutter struct {
	*sql.Tx
	left int
	end  context.CancelFunc
}

func (c *cutter) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	res, err := c.Tx.ExecContext(ctx, query, args...)
	if c.left--; c.left == 0 {
		c.end()
	}
	return res, err
}

// A call whose context ends between any two of its statements has done all or
// nothing, and the transaction goes on.
func TestContextEndsInTx(t *testing.T) {
	s := open(t, nil)
	enqueue(t, s, requests(3, func(r *pawl.Request) { r.UniqueKey, r.UniqueMode = "", pawl.UniqueUntilWindow })...)
	jobs := claim(t, s, 3)
	keyed := func(key string) *pawl.Request {
		return request(func(r *pawl.Request) { r.UniqueKey = key })
	}
	calls := map[string]func(ctx context.Context, w pawl.Writer) error{
		"many": func(ctx context.Context, w pawl.Writer) error {
			_, err := w.Enqueue(ctx, requests(150))
			return err
		},
		"keyed": func(ctx context.Context, w pawl.Writer) error {
			_, err := w.Enqueue(ctx, []*pawl.Request{keyed("a"), keyed("b")})
			return err
		},
		"settle": func(ctx context.Context, w pawl.Writer) error {
			_, err := w.Settle(ctx, []pawl.Outcome{
				{Ref: jobs[0].Ref, Verb: pawl.Ack}, {Ref: jobs[1].Ref, Verb: pawl.Nack}, {Ref: jobs[2].Ref, Verb: pawl.Bury},
			})
			return err
		},
	}
	for name, call := range calls {
		failed := 0
		for cut, uncut := 1, false; !uncut; cut++ {
			uncut = cutShort(t, s, name, cut, call, &failed)
		}
		if failed == 0 {
			t.Errorf("%s was never cut short", name)
		}
	}
}

// cutShort runs a call whose context ends after so many statements, and reports
// whether it had fewer.
func cutShort(t *testing.T, s *sqlite.Store, name string, cut int, call func(context.Context, pawl.Writer) error, failed *int) (uncut bool) {
	t.Helper()
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &cutter{Tx: tx, left: cut, end: cancel}
	w := s.SQLTx(c)
	err = call(ctx, w)
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatalf("%s: %v", name, err)
	}
	uncut = c.left > 0
	var changed int
	row := tx.QueryRow("SELECT count(*) FROM pawl_job WHERE state <> 3 OR failures > 0")
	if scan := row.Scan(&changed); scan != nil {
		t.Fatal(scan)
	}
	if err != nil {
		*failed++
		if changed > 0 {
			t.Errorf("%s, cut after %d statements: %d jobs are changed by a call that failed", name, cut, changed)
		}
	}
	enqueue(t, w, request()) // it goes on
	return uncut
}

// What SQLite has rolled back by itself is not begun again by a call of ours.
func TestTxRolledBackBySQLite(t *testing.T) {
	cases := map[string]struct {
		settings string
		spoil    func(t *testing.T, tx *sql.Tx, w pawl.Writer)
		want     error
	}{
		"interrupt": {"", func(t *testing.T, tx *sql.Tx, w pawl.Writer) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			_, err := tx.ExecContext(ctx, "WITH RECURSIVE endless(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM endless) "+
				"INSERT INTO mine SELECT n FROM endless")
			if err == nil {
				t.Error("it was not interrupted")
			}
		}, nil},
		"by hand": {"", func(t *testing.T, tx *sql.Tx, w pawl.Writer) {
			if _, err := tx.Exec("ROLLBACK"); err != nil {
				t.Error(err)
			}
		}, nil},
		"ended": {"", func(t *testing.T, tx *sql.Tx, w pawl.Writer) {
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
		}, sql.ErrTxDone},
		"disk full": {"&_pragma=max_page_count(60)", func(t *testing.T, tx *sql.Tx, w pawl.Writer) {
			_, err := w.Enqueue(t.Context(), requests(1, func(r *pawl.Request) { r.Payload = make([]byte, 1<<20) }))
			if !errors.Is(err, sqlite.ErrDiskFull) || !errors.Is(err, pawl.ErrTxOver) {
				t.Errorf("got %v, want ErrDiskFull and ErrTxOver", err)
			}
		}, sqlite.ErrDiskFull},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			db := sqlDB(t, filepath.Join(t.TempDir(), "jobs.db"), "_txlock=immediate&_pragma=busy_timeout(1000)"+c.settings)
			s, err := sqlite.New(t.Context(), db, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			execSQL(t, s, "CREATE TABLE mine (n INTEGER)")
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			if _, err := tx.Exec("INSERT INTO mine VALUES (1)"); err != nil {
				t.Fatal(err)
			}
			w := s.Tx(tx)
			c.spoil(t, tx, w)
			for range 2 {
				_, err = w.Enqueue(t.Context(), requests(1))
				if !errors.Is(err, pawl.ErrTxOver) || c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("got %v, want ErrTxOver", err)
				}
			}
			_ = tx.Commit()
			if c := count(t, s); c.Ready != 0 {
				t.Errorf("%d jobs exist without what they belong to", c.Ready)
			}
			enqueue(t, s, request())
		})
	}
}

func TestPoolIsNoTransaction(t *testing.T) {
	s := open(t, nil)
	if _, err := s.SQLTx(s.DB()).Enqueue(t.Context(), requests(1)); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	conn, err := s.DB().Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := s.SQLTx(conn).Enqueue(t.Context(), requests(1)); !errors.Is(err, pawl.ErrTxOver) {
		t.Errorf("got %v, want ErrTxOver", err)
	}
	enqueue(t, s, request())
}
