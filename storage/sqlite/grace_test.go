package sqlite_test

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

func claimFor(t *testing.T, s *sqlite.Store, lease time.Duration) pawl.Ref {
	t.Helper()
	spec := ask(1)
	spec.Lease = lease
	c, err := s.Claim(t.Context(), spec)
	if err != nil || len(c.Jobs) != 1 {
		t.Fatal(len(c.Jobs), err)
	}
	return c.Jobs[0].Ref
}

func rescued(t *testing.T, s *sqlite.Store) int {
	t.Helper()
	sw, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	return len(sw.Rescued)
}

// A lease whose heartbeats gave up while the file was locked has its grace,
// though each of them waited for a short time only, and so has one whose
// transaction was our own.
func TestGraceOverSeveralAttempts(t *testing.T) {
	const lease = 200 * time.Millisecond
	for _, name := range []string{"another process", "own transaction"} {
		t.Run(name, func(t *testing.T) {
			s := open(t, nil)
			enqueue(t, s, request())
			ref := claimFor(t, s, lease)
			db := s.DB()
			if name == "another process" {
				db = sqlDB(t, fileOf(t, s), "_txlock=immediate")
			}
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for until := time.Now().Add(2 * lease); time.Now().Before(until); {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
				_, err := s.Extend(ctx, []pawl.Renewal{{Ref: ref, Lease: lease}})
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("got %v, want context.DeadlineExceeded", err)
				}
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			if n := rescued(t, s); n > 0 {
				t.Error("the lease was given away at once")
			}
			if lost, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: ref, Lease: lease}}); err != nil || len(lost) > 0 {
				t.Errorf("the lease is lost: %v", err)
			}
		})
	}
}

// Leases that a step of the wall clock has ended, or the sleep of the machine,
// have a grace; the others have none, and it passes.
func TestClockSteps(t *testing.T) {
	c := newClock()
	s := open(t, &sqlite.Options{Clock: c.Now, Synchronous: sqlite.Off})
	passed := time.Duration(0)
	sqlite.Steady(s, func() time.Duration { return passed })
	pass := func(d time.Duration) {
		passed += d
		c.Advance(d)
	}
	enqueue(t, s, requests(3)...)
	claimFor(t, s, 5*time.Second) // of a worker that dies
	pass(10 * time.Second)
	ref := claimFor(t, s, 30*time.Second)
	c.Advance(time.Hour) // a step
	if n := rescued(t, s); n != 1 {
		t.Errorf("rescued %d, want the one whose lease had ended before", n)
	}
	if lost, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: ref, Lease: 30 * time.Second}}); err != nil || len(lost) > 0 {
		t.Errorf("the lease is lost: %v", err)
	}
	pass(31 * time.Second)
	if n := rescued(t, s); n != 1 {
		t.Errorf("rescued %d after a lease without heartbeat, want 1", n)
	}
	// A dead worker's lease lasts a heartbeat longer, and no more.
	claimFor(t, s, 30*time.Second)
	c.Advance(time.Hour)
	if n := rescued(t, s); n != 0 {
		t.Errorf("rescued %d at once, want 0", n)
	}
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		if c.Advance(by); rescued(t, s) != 0 {
			t.Errorf("rescued after a step of %v", by)
		}
	}
	pass(11 * time.Second)
	if n := rescued(t, s); n != 1 {
		t.Errorf("rescued %d after the grace, want 1", n)
	}
}

// What is done is let go of, also while the Store is idle.
func TestIdleStoreHoldsNothing(t *testing.T) {
	s := open(t, nil)
	r := request(func(r *pawl.Request) { r.Payload = make([]byte, 1<<20) })
	held := weak.Make(r)
	enqueue(t, s, r)
	r = nil
	for range 100 {
		if runtime.GC(); held.Value() == nil {
			return
		}
	}
	t.Error("a finished request is still reachable")
	runtime.KeepAlive(s)
}

// A store opened beside one that holds the file waits for nobody to look.
func TestOpenWhileBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	s := openAt(t, path, nil)
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if c := count(t, openAt(t, path, nil)); c.Ready != 0 {
		t.Error(c)
	}
}
