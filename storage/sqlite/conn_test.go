package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

// A text of several statements is run once, also if the file is busy in its
// middle, as a query, prepared, and in transactions.
func TestSeveralStatementsRunOnce(t *testing.T) {
	const n = 100
	ctx := within(t)
	s := open(t, nil)
	other := openAt(t, fileOf(t, s), nil)
	execSQL(t, s, "CREATE TABLE a (x); CREATE TABLE b (x)")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := other.InTx(ctx, func(*sql.Tx, pawl.Writer) error { return nil }); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	const both = "INSERT INTO a VALUES (?1); INSERT INTO b VALUES (?1)"
	ways := []func(i int) error{
		func(i int) error { _, err := s.DB().ExecContext(ctx, both, i); return err },
		func(i int) error {
			_, err := s.DB().ExecContext(ctx, fmt.Sprintf("BEGIN IMMEDIATE; INSERT INTO a VALUES (%d); INSERT INTO b VALUES (%d); COMMIT", i, i))
			return err
		},
		func(i int) error {
			tx, err := s.DB().BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, both, i)
			return errors.Join(err, tx.Commit())
		},
		func(i int) error { return byHand(ctx, s, both, i) },
	}
	for i := range n {
		if err := ways[i%len(ways)](i); err != nil {
			t.Fatal(i%len(ways), err)
		}
	}
	close(stop)
	wg.Wait()
	for _, table := range []string{"a", "b"} {
		var rows, different int
		if err := s.DB().QueryRow("SELECT count(*), count(DISTINCT x) FROM "+table).Scan(&rows, &different); err != nil {
			t.Fatal(err)
		}
		if rows != n || different != n {
			t.Errorf("%s has %d rows, %d of them different, want %d", table, rows, different, n)
		}
	}
}

// byHand runs several statements in a transaction that was begun by one.
func byHand(ctx context.Context, s *sqlite.Store, text string, args ...any) error {
	conn, err := s.DB().Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, text, args...); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
	return err
}

// A connection that has not been used has opened nothing, and can do all that
// others can.
func TestFreshConnection(t *testing.T) {
	s := open(t, nil)
	for name, use := range map[string]func() error{
		"ping": func() error { return s.DB().PingContext(t.Context()) },
		"prepare": func() error {
			stmt, err := s.DB().PrepareContext(t.Context(), "SELECT 1")
			if err != nil {
				return err
			}
			var n int
			return errors.Join(stmt.QueryRow().Scan(&n), stmt.Close())
		},
		"nothing": func() error {
			conn, err := s.DB().Conn(t.Context())
			if err != nil {
				return err
			}
			return conn.Close()
		},
	} {
		s.DB().SetMaxIdleConns(0) // closes those there are
		if err := use(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
