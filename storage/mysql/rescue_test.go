package mysql_test

import (
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/mysql"
)

// Extend waits for what a rescue makes of a job, as it does not for other transactions.
func TestExtendWaitsForRescue(t *testing.T) {
	start, looks := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), make(chan struct{})
	var ahead atomic.Int64
	s := fresh(t, &mysql.Options{Clock: func() time.Time {
		select {
		case looks <- struct{}{}:
		default:
		}
		return start.Add(time.Duration(ahead.Load()))
	}})
	enqueue(t, s, pawl.Request{})
	ref := claim(t, s, 1)[0].Ref
	ahead.Store(int64(time.Hour))

	tx := beginTx(t, s.DB(), sql.LevelReadCommitted)
	run(t, tx, "SELECT one INTO @one FROM pawl_meta LOCK IN SHARE MODE")
	run(t, tx, "UPDATE pawl_job SET state = 2")
	type answer struct {
		lost []pawl.Ref
		err  error
	}
	extended := make(chan answer, 1)
	go func() {
		lost, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: ref, Lease: time.Minute}})
		extended <- answer{lost, err}
	}()
	for range 6 { // more looks than it takes to see that the job is locked
		select {
		case a := <-extended:
			t.Fatalf("before the rescue is committed Extend says that %v is lost, error %v", a.lost, a.err)
		case <-looks:
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if a := <-extended; a.err != nil || len(a.lost) != 1 || a.lost[0] != ref {
		t.Errorf("after a rescue Extend says that %v is lost, error %v", a.lost, a.err)
	}
}

// An extend that stands still in the middle, as in a process that was stopped, does not
// keep the leases of others from running out.
func TestRescuePassesHeldMark(t *testing.T) {
	s, forward := clocked(t)
	enqueue(t, s, pawl.Request{})
	ref := claim(t, s, 1)[0].Ref
	forward(time.Hour)
	tx := beginTx(t, s.DB(), sql.LevelReadCommitted)
	run(t, tx, "SELECT one INTO @one FROM pawl_meta FOR UPDATE")
	if swept := sweep(t, s, pawl.SweepSpec{}); len(swept.Rescued) != 1 || swept.Rescued[0] != ref {
		t.Errorf("rescued %v, want %v", swept.Rescued, ref)
	}
}

// A rescue is marked as one until it is committed.
func TestRescueIsMarked(t *testing.T) {
	s, forward := clocked(t)
	id := enqueue(t, s, pawl.Request{UniqueKey: "k", MaxRescues: pawl.NoRescues}).ID
	claim(t, s, 1)
	forward(time.Hour)
	tx := beginTx(t, s.DB(), sql.LevelReadCommitted)
	run(t, tx, "SELECT k INTO @k FROM pawl_key FOR UPDATE") // which the burial will have to wait for
	var wg sync.WaitGroup
	wg.Go(func() { sweep(t, s, pawl.SweepSpec{}) })
	marked := false
	for end := time.Now().Add(20 * time.Second); !marked && time.Now().Before(end); {
		var one int
		err := s.DB().QueryRowContext(t.Context(), "SELECT one FROM pawl_meta FOR UPDATE SKIP LOCKED").Scan(&one)
		if marked = errors.Is(err, sql.ErrNoRows); err != nil && !marked {
			t.Error(err)
			break
		}
	}
	if !marked {
		t.Error("nobody holds the mark while a rescue is under way")
	}
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if got := state(t, s, id); got != pawl.Buried {
		t.Errorf("the job is %v, want buried", got)
	}
}
