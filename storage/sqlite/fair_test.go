package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

// within bounds a test of something that could hang.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// Calls of the Store come before transactions that were begun later, however
// many there are.
func TestWriterIsNotStarved(t *testing.T) {
	ctx := within(t)
	s := open(t, nil)
	release := sqlite.Hold(ctx, s)
	r := request()
	enqueued := make(chan error, 1)
	go func() {
		_, err := s.Enqueue(ctx, []*pawl.Request{r})
		enqueued <- err
	}()
	waitFor(t, func() bool { return sqlite.InLine(s) == 1 })
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			err := s.InTx(ctx, func(tx *sql.Tx, _ pawl.Writer) error {
				var n int
				err := tx.QueryRow("SELECT count(*) FROM pawl_job WHERE id = ?", r.ID[:]).Scan(&n)
				if n == 0 {
					t.Error("a later transaction came before the enqueue")
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
		waitFor(t, func() bool { return sqlite.InLine(s) == i+2 })
	}
	if err := errors.Join(release(), <-enqueued); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// However many transactions wait, those that have their turn find connections:
// for the writer, for reads of the Store, and for statements of the program.
func TestManyTransactions(t *testing.T) {
	const many = 100
	ctx := within(t)
	s := open(t, nil) // its writer has no connection yet
	var wg sync.WaitGroup
	work := func(f func() error) {
		for range many {
			wg.Go(func() {
				if err := f(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	look := func() error {
		var n int
		_, err := s.Count(ctx)
		return errors.Join(err, s.DB().QueryRowContext(ctx, "SELECT count(*) FROM pawl_job").Scan(&n))
	}
	release := sqlite.Hold(ctx, s)
	work(func() error {
		return s.InTx(ctx, func(_ *sql.Tx, w pawl.Writer) error {
			_, err := w.Enqueue(ctx, requests(1))
			return errors.Join(err, look())
		})
	})
	work(func() error {
		tx, err := s.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, err = s.Tx(tx).Enqueue(ctx, requests(1))
		return errors.Join(err, look(), tx.Commit())
	})
	work(func() error {
		_, err := s.Enqueue(ctx, requests(1))
		return err
	})
	waitFor(t, func() bool { return sqlite.InLine(s) == 2*many+1 && sqlite.Waiting(s) == many })
	if n := sqlite.Connections(s); n > 1 { // that of Open
		t.Errorf("%d connections to the file, want none for those who wait", n-1)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if c := count(t, s); c.Ready != 3*many {
		t.Errorf("%d jobs, want %d", c.Ready, 3*many)
	}
}

// The same with a pool of the program's that has only a few connections.
func TestManyTransactionsInASmallPool(t *testing.T) {
	const many = 50
	for _, size := range []int{1, 2, 3} {
		ctx := within(t)
		db := sqlDB(t, filepath.Join(t.TempDir(), "jobs.db"), "_pragma=busy_timeout(10000)&_txlock=immediate")
		db.SetMaxOpenConns(size)
		s, err := sqlite.New(ctx, db, nil)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range many {
			wg.Go(func() {
				if err := s.InTx(ctx, func(_ *sql.Tx, w pawl.Writer) error {
					_, err := w.Enqueue(ctx, requests(1))
					return err
				}); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if _, err := s.Enqueue(ctx, requests(1)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if c := count(t, s); c.Ready != 2*many {
			t.Errorf("%d jobs, want %d", c.Ready, 2*many)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A single statement of the program gets through beside a Store that is never
// idle: it stands in the same line.
func TestStatementIsNotStarved(t *testing.T) {
	ctx := within(t)
	s := open(t, nil)
	execSQL(t, s, "CREATE TABLE mine (n INTEGER)")
	written, gone := make(chan error, 1), make(chan error, 1)
	if err := s.InTx(ctx, func(*sql.Tx, pawl.Writer) error {
		go func() {
			_, err := s.DB().ExecContext(ctx, "INSERT INTO mine VALUES (1)")
			written <- err
		}()
		waitFor(t, func() bool { return sqlite.InLine(s) == 1 })
		short, cancel := context.WithCancel(ctx)
		go func() {
			_, err := s.DB().ExecContext(short, "INSERT INTO mine VALUES (2)")
			gone <- err
		}()
		waitFor(t, func() bool { return sqlite.InLine(s) == 2 })
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}
