package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/mysql"
)

// clocked is a Store whose clock the test sets, and how to set it forward.
func clocked(t *testing.T) (s *mysql.Store, forward func(time.Duration)) {
	var mu sync.Mutex
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s = fresh(t, &mysql.Options{Clock: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}})
	return s, func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(d)
	}
}

// sweep sweeps, within less time than the server waits for a lock.
func sweep(t *testing.T, s *mysql.Store, spec pawl.SweepSpec) pawl.Swept {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	spec.Limit = 100
	swept, err := s.Sweep(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	return swept
}

// A sweep leaves the fence of a claim that is not committed.
func TestSweepPassesOpenClaim(t *testing.T) {
	s := fresh(t, nil)
	tx := beginTx(t, s.DB(), sql.LevelReadCommitted)
	run(t, tx, "INSERT INTO pawl_fence VALUES (NULL)")
	enqueue(t, s, pawl.Request{})
	claim(t, s, 1)
	sweep(t, s, pawl.SweepSpec{})
	if n := number(t, s.DB(), "SELECT COUNT(*) FROM pawl_fence"); n != 0 {
		t.Errorf("%d committed fences stayed", n)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	sweep(t, s, pawl.SweepSpec{})
	if n := number(t, s.DB(), "SELECT COUNT(*) FROM pawl_fence"); n != 0 {
		t.Errorf("%d fences stayed after the commit", n)
	}
}

// What is due but held by an open transaction, or is never to be claimed, has
// nobody look again at once.
func TestNextDueOfHeldJobs(t *testing.T) {
	s, forward := clocked(t)
	const soon = 50 * time.Millisecond
	enqueue(t, s, pawl.Request{UniqueKey: "k", Delay: time.Second})
	tx := beginTx(t, s.DB(), sql.LevelReadCommitted)
	enqueue(t, s.Tx(tx), pawl.Request{UniqueKey: "k", Delay: time.Hour, OnDuplicate: pawl.Replace})
	forward(2 * time.Second)
	nextDue := func() time.Duration {
		c, err := s.Claim(t.Context(), spec(1))
		if err != nil || len(c.Jobs) > 0 {
			t.Fatalf("claimed %d jobs, error %v", len(c.Jobs), err)
		}
		return c.NextDue
	}
	if d := nextDue(); d < soon || d > time.Second {
		t.Errorf("a claim looks again after %v", d)
	}
	if d := sweep(t, s, pawl.SweepSpec{}).NextDue; d < soon || d > time.Second {
		t.Errorf("a sweep looks again after %v", d)
	}
	enqueue(t, s, pawl.Request{Delay: 20 * time.Millisecond})
	if d := nextDue(); d != 20*time.Millisecond {
		t.Errorf("beside a job that is due in 20 ms a claim looks again after %v", d)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	claim(t, s, 1)
}

// A job that is due after its StartBefore is none that a claim waits for.
func TestNextDueOfLateJob(t *testing.T) {
	s, forward := clocked(t)
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	enqueue(t, s, pawl.Request{RunAt: now.Add(2 * time.Second), StartBefore: now.Add(time.Second)})
	enqueue(t, s, pawl.Request{Delay: time.Minute})
	forward(3 * time.Second)
	c, err := s.Claim(t.Context(), spec(1))
	if err != nil || len(c.Jobs) > 0 || c.NextDue != 57*time.Second {
		t.Errorf("claimed %d jobs, next in %v, error %v; want the other job's 57 s", len(c.Jobs), c.NextDue, err)
	}
}

// A buried job is kept by its window, and a sweep waits for the end of that.
func TestNextDueOfWindow(t *testing.T) {
	s, forward := clocked(t)
	enqueue(t, s, pawl.Request{UniqueKey: "k", UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: time.Hour})
	settle(t, s, pawl.Outcome{Ref: claim(t, s, 1)[0].Ref, Verb: pawl.Bury})
	forward(time.Minute)
	swept := sweep(t, s, pawl.SweepSpec{BuriedRetention: time.Second})
	if swept.NextDue != 59*time.Minute || swept.Purged != 0 {
		t.Errorf("purged %d, next in %v, want the end of the window in 59 min", swept.Purged, swept.NextDue)
	}
	forward(time.Hour)
	if swept := sweep(t, s, pawl.SweepSpec{BuriedRetention: time.Second}); swept.Purged != 1 || swept.NextDue != 0 {
		t.Errorf("purged %d, next in %v", swept.Purged, swept.NextDue)
	}
}

// A transaction that has met the IDs of jobs, without locking those, keeps only them
// from being deleted.
func TestSweepPassesTakenIDs(t *testing.T) {
	s, forward := clocked(t)
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	var taken []*pawl.Request
	for _, r := range []pawl.Request{
		{Retention: time.Second},
		{Retention: pawl.DeleteNow, StartBefore: now.Add(time.Second), Queue: "late"},
		{Retention: pawl.DeleteNow, StartBefore: now.Add(time.Second), Queue: "late", RunAt: now.Add(time.Minute)},
	} {
		enqueue(t, s, r)
		taken = append(taken, request(r))
	}
	if _, err := s.Enqueue(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	for _, j := range claim(t, s, 2) {
		settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
	}
	forward(2 * time.Second)
	tx := beginTx(t, s.DB(), sql.LevelRepeatableRead)
	for _, r := range taken {
		if got := enqueue(t, s.Tx(tx), pawl.Request{ID: r.ID}); got.Status != pawl.Exists {
			t.Fatalf("receipt %+v", got)
		}
	}
	want := func(purged, expired int, more bool) {
		t.Helper()
		if got := sweep(t, s, pawl.SweepSpec{}); got.Purged != purged || got.Expired != expired || got.More != more {
			t.Errorf("swept %+v, want %d purged, %d expired", got, purged, expired)
		}
	}
	want(1, 2, false)
	late := spec(1)
	late.Queues[0].Queue = "late"
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // less than the server waits
	defer cancel()
	if c, err := s.Claim(ctx, late); err != nil || len(c.Jobs) > 0 {
		t.Errorf("claimed %d late jobs, error %v", len(c.Jobs), err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	want(1, 2, false)
}

// Who is to drop a job of a full queue, all of which others have locked, is told that
// the queue is full.
func TestDropOfLockedJobs(t *testing.T) {
	s := fresh(t, nil)
	id := enqueue(t, s, pawl.Request{}).ID
	tx := beginTx(t, s.DB(), sql.LevelReadCommitted)
	run(t, tx, "SELECT seq INTO @n FROM pawl_job FOR UPDATE")
	_, err := s.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{MaxDepth: 1, WhenFull: pawl.DropOldest})})
	var full *pawl.FullError
	if !errors.As(err, &full) || *full != (pawl.FullError{Queue: "default", Limit: 1}) {
		t.Errorf("error %v, want a FullError", err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	enqueue(t, s, pawl.Request{MaxDepth: 1, WhenFull: pawl.DropOldest})
	if got := state(t, s, id); got != pawl.Canceled {
		t.Errorf("the job is %v, want canceled", got)
	}
}

// A key whose job was deleted by hand is free.
func TestKeyOfDeletedJob(t *testing.T) {
	s := fresh(t, nil)
	orphan := func(key string) {
		enqueue(t, s, pawl.Request{UniqueKey: key})
		run(t, s.DB(), "DELETE FROM pawl_job WHERE state = 2")
	}
	stored := func(what string, w pawl.Writer, r pawl.Request) {
		t.Helper()
		if got := enqueue(t, w, r); got.Status != pawl.Stored {
			t.Errorf("%s: receipt %+v", what, got)
		}
		if got := enqueue(t, w, pawl.Request{UniqueKey: r.UniqueKey}); got.Status != pawl.Duplicate {
			t.Errorf("%s, again: receipt %+v", what, got)
		}
	}
	orphan("a")
	stored("an enqueue", s, pawl.Request{UniqueKey: "a"})
	orphan("b")
	stored("a replacement", s, pawl.Request{UniqueKey: "b", OnDuplicate: pawl.Replace})
	for _, level := range levels {
		tx := beginTx(t, s.DB(), level)
		run(t, tx, "SELECT COUNT(*) INTO @n FROM pawl_job")
		orphan(level.String())
		stored(level.String(), s.Tx(tx), pawl.Request{UniqueKey: level.String()})
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	run(t, s.DB(), "DELETE FROM pawl_job")
	run(t, s.DB(), "DELETE FROM pawl_key")
	id := enqueue(t, s, pawl.Request{UniqueKey: "c"}).ID
	settle(t, s, pawl.Outcome{Ref: claim(t, s, 1)[0].Ref, Verb: pawl.Bury})
	orphan("c")
	kicked, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Kick, IDs: []pawl.ID{id}})
	if err != nil || kicked[0].Status != pawl.Done {
		t.Errorf("a kick: %+v, error %v", kicked, err)
	}
}
