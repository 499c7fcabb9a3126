package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

// openUnclosed opens a file for a test that closes the store itself.
func openUnclosed(t *testing.T) *sqlite.Store {
	t.Helper()
	path := filepath.Join(t.TempDir(), "jobs.db")
	s, err := sqlite.Open(t.Context(), path, &sqlite.Options{Synchronous: sqlite.Off})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A transaction that was forgotten does not keep Close from its end when the
// calls that waited for it have given up.
func TestCloseBesideForgottenTransaction(t *testing.T) {
	s := openUnclosed(t)
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := s.Enqueue(ctx, requests(1))
		result <- err
	}()
	waitFor(t, func() bool { return sqlite.InLine(s) == 1 })
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	waitFor(t, func() bool { return sqlite.InLine(s) == 0 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_ = tx.Rollback() // its connection is closed with it
}

// Calls that have no end of their own do not either.
func TestCloseInsideInTx(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openUnclosed(t)
		result := make(chan error, 1)
		err := s.InTx(t.Context(), func(*sql.Tx, pawl.Writer) error {
			go func() {
				_, err := s.Enqueue(t.Context(), requests(1))
				result <- err
			}()
			synctest.Wait()
			return s.Close()
		})
		if err != nil {
			t.Error(err)
		}
		if err := <-result; !errors.Is(err, pawl.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	})
}

func TestClosed(t *testing.T) {
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "jobs.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	watching := make(chan error)
	go func() { watching <- s.Watch(ctx, func(pawl.Event) {}) }()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	_, enqueueErr := s.Enqueue(ctx, requests(1))
	_, claimErr := s.Claim(ctx, ask(1))
	_, settleErr := s.Settle(ctx, nil)
	_, _, cycleErr := s.Cycle(ctx, nil, ask(1))
	_, extendErr := s.Extend(ctx, nil)
	_, sweepErr := s.Sweep(ctx, pawl.SweepSpec{Limit: 1})
	_, getErr := s.Get(ctx, "", request().ID)
	_, listErr := s.List(ctx, pawl.ListSpec{Limit: 1})
	_, countErr := s.Count(ctx)
	_, changeErr := s.Change(ctx, pawl.Change{Verb: pawl.Kick})
	errs := map[string]error{
		"Enqueue": enqueueErr, "Claim": claimErr, "Settle": settleErr, "Cycle": cycleErr, "Extend": extendErr,
		"Sweep": sweepErr, "Get": getErr, "List": listErr, "Count": countErr, "Change": changeErr,
		"Configure": s.Configure(ctx, "a", paused(true)), "InTx": s.InTx(ctx, nil), "Watch": <-watching,
	}
	for name, err := range errs {
		if !errors.Is(err, pawl.ErrClosed) {
			t.Errorf("%s: got %v, want ErrClosed", name, err)
		}
	}
}

// What was asked for before Close is done.
func TestCloseDrains(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	s, err := sqlite.Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	release := sqlite.Hold(t.Context(), s)
	result := make(chan error)
	go func() {
		_, err := s.Enqueue(t.Context(), requests(1))
		result <- err
	}()
	waitFor(t, func() bool { return sqlite.Waiting(s) == 1 })
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	if err := errors.Join(release(), <-result, <-closed); err != nil {
		t.Fatal(err)
	}
	if c := count(t, openAt(t, path, nil)); c.Ready != 1 {
		t.Errorf("%d jobs, want 1", c.Ready)
	}
}
