package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
)

// silencing is a connection that loses what is sent while silent is set.
type silencing struct {
	net.Conn
	silent *atomic.Bool
}

func (c *silencing) Write(b []byte) (int, error) {
	if c.silent.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// TestInTxOfASilentServer: InTx ends with its context, although the server does not
// answer any more, nor to the rollback.
func TestInTxOfASilentServer(t *testing.T) {
	var silent atomic.Bool
	db := openDB(t, testserver.MariaDB(t), 10, func(c *driver.Config) {
		c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &silencing{conn, &silent}, err
		}
	})
	s := open(t, db, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- s.InTx(ctx, func(_ *sql.Tx, w pawl.Writer) error {
			enqueue(t, w, pawl.Request{})
			silent.Store(true)
			cancel()
			return ctx.Err()
		})
	}()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want that of the context", err)
		}
	case <-time.After(15 * time.Second):
		t.Fatal("InTx has not ended 15 s after its context")
	}
	silent.Store(false)
	if c, err := s.Claim(t.Context(), spec(1)); err != nil || len(c.Jobs) > 0 {
		t.Errorf("then claimed %v, error %v", c.Jobs, err)
	}
}

// TestInTxWhoseContextEnds is rolled back, whatever its function returns.
func TestInTxWhoseContextEnds(t *testing.T) {
	s := fresh(t, &mysql.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	err := s.InTx(ctx, func(_ *sql.Tx, w pawl.Writer) error {
		enqueue(t, w, pawl.Request{})
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
	if c, err := s.Claim(t.Context(), spec(1)); err != nil || len(c.Jobs) > 0 {
		t.Errorf("then claimed %v, error %v", c.Jobs, err)
	}
}
