package mysql_test

import (
	"bytes"
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

// A silencer makes connections that lose what is sent while silent is set.
type silencer struct {
	silent  atomic.Bool
	commits atomic.Bool   // are what sets it
	lost    chan struct{} // something was lost
}

func newSilencer() *silencer { return &silencer{lost: make(chan struct{}, 1)} }

type silencing struct {
	net.Conn
	s *silencer
}

func (c *silencing) Write(b []byte) (int, error) {
	if c.s.commits.Load() && bytes.Contains(b, []byte("COMMIT")) && !bytes.Contains(b, []byte("COMMITTED")) {
		c.s.silent.Store(true)
	}
	if !c.s.silent.Load() {
		return c.Conn.Write(b)
	}
	select {
	case c.s.lost <- struct{}{}:
	default:
	}
	return len(b), nil
}

// open opens a Store over such connections.
func (s *silencer) open(t *testing.T) *mysql.Store {
	t.Helper()
	return open(t, openDB(t, testserver.MariaDB(t), 10, func(c *driver.Config) {
		c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &silencing{conn, s}, err
		}
	}), &mysql.Options{PollInterval: -1})
}

// TestSilentCommit: calls end with their contexts although the server does not answer to
// COMMIT, and what they have done is not known.
func TestSilentCommit(t *testing.T) {
	wire := newSilencer()
	s := wire.open(t)
	for what, call := range map[string]func(context.Context) error{
		"enqueue": func(ctx context.Context) error {
			_, err := s.Enqueue(ctx, []*pawl.Request{request(pawl.Request{UniqueKey: "k"})})
			return err
		},
		"claim": func(ctx context.Context) error {
			enqueue(t, s, pawl.Request{})
			wire.commits.Store(true)
			_, err := s.Claim(ctx, spec(1))
			return err
		},
		"InTx": func(ctx context.Context) error {
			return s.InTx(ctx, func(_ *sql.Tx, w pawl.Writer) error {
				_, err := w.Enqueue(ctx, []*pawl.Request{request(pawl.Request{})})
				return err
			})
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		wire.commits.Store(what != "claim")
		go func() { done <- call(ctx) }()
		<-wire.lost
		cancel()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: error %v, want that of the context", what, err)
			}
		case <-time.After(15 * time.Second):
			t.Fatalf("%s has not ended 15 s after its context", what)
		}
		wire.commits.Store(false)
		wire.silent.Store(false)
		select { // more than the commit may be lost
		case <-wire.lost:
		default:
		}
		if _, err := s.Count(t.Context(), "default"); err != nil {
			t.Errorf("after %s: %v", what, err)
		}
	}
}

// TestInTxOfASilentServer: InTx ends with its context, although the server does not
// answer any more, nor to the rollback.
func TestInTxOfASilentServer(t *testing.T) {
	wire := newSilencer()
	s := wire.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- s.InTx(ctx, func(_ *sql.Tx, w pawl.Writer) error {
			enqueue(t, w, pawl.Request{})
			wire.silent.Store(true)
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
	wire.silent.Store(false)
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
