package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
)

// A transaction holds the jobs that it has settled, and no others, however small
// the table is and whatever its isolation level.
func TestTransactionHoldsItsJobs(t *testing.T) {
	for _, level := range levels {
		s := fresh(t, nil)
		for range 6 {
			enqueue(t, s, pawl.Request{Retention: pawl.DeleteNow, Payload: make([]byte, 2000)})
		}
		jobs := claim(t, s, 4)
		tx := beginTx(t, s.DB(), level)
		for _, group := range [][]*pawl.Job{jobs[:2], jobs[2:3]} {
			var outcomes []pawl.Outcome
			for i, j := range group {
				ref := j.Ref
				ref.Locator *= int64(i % 2) // by number and by ID
				outcomes = append(outcomes, pawl.Outcome{Ref: ref, Verb: pawl.Ack})
			}
			settle(t, s.Tx(tx), outcomes...)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // less than the server waits
		lost, err := s.Settle(ctx, []pawl.Outcome{{Ref: jobs[3].Ref, Verb: pawl.Ack}})
		cancel()
		if err != nil || len(lost) > 0 {
			t.Errorf("%v: a job beside those of an open transaction: lost %v, error %v", level, lost, err)
		}
		claim(t, s, 2)
		enqueue(t, s, pawl.Request{Payload: make([]byte, 2000)})
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// A claim passes by a job that an open transaction has rewritten.
func TestClaimPassesLockedJob(t *testing.T) {
	s := fresh(t, nil)
	first := enqueue(t, s, pawl.Request{UniqueKey: "k"})
	other := enqueue(t, s, pawl.Request{})
	tx := beginTx(t, s.DB(), sql.LevelRepeatableRead)
	got := enqueue(t, s.Tx(tx), pawl.Request{UniqueKey: "k", OnDuplicate: pawl.Replace})
	if got.Status != pawl.Replaced || got.ID != first.ID {
		t.Fatalf("receipt %+v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // less than the server waits
	defer cancel()
	c, err := s.Claim(ctx, spec(5))
	if err != nil || len(c.Jobs) != 1 || c.Jobs[0].ID != other.ID {
		t.Fatalf("claimed %d jobs, error %v; want the one that is free", len(c.Jobs), err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if j := claim(t, s, 1)[0]; j.ID != first.ID {
		t.Error("the wrong job was claimed")
	}
}

// mass is how many jobs TestEverythingTogether works off.
const mass = 5000

// TestEverythingTogether has claimers, producers and sweepers in each other's
// way. No conflict of theirs reaches a caller, and each job is acked once.
func TestEverythingTogether(t *testing.T) {
	db := openDB(t, testserver.MariaDB(t), 40, nil)
	s := open(t, db, nil)
	stores := []*mysql.Store{s, open(t, db, nil)} // as two processes
	var acked atomic.Int64
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() { massProduce(t, stores[i%2], mass/4) })
	}
	for i := range 16 {
		wg.Go(func() {
			for acked.Load() < mass && !t.Failed() {
				massWork(t, stores[i%2], &acked)
			}
		})
	}
	for i := range 2 {
		wg.Go(func() {
			for acked.Load() < mass && !t.Failed() {
				if _, err := stores[i].Sweep(context.Background(), pawl.SweepSpec{Limit: 500}); err != nil {
					t.Errorf("sweep: %v", err)
				}
			}
		})
	}
	wg.Wait()
	stats, err := s.Count(t.Context(), "default")
	if err != nil || acked.Load() != mass || stats[0].Ready+stats[0].Running+stats[0].Scheduled+stats[0].Buried != 0 {
		t.Errorf("%d of %d jobs were acked; numbers at the end %+v, error %v", acked.Load(), mass, stats, err)
	}
	candidates, lost := int64(0), int64(0)
	for _, s := range stores {
		c, l := s.Races()
		candidates, lost = candidates+c, lost+l
	}
	t.Logf("%d of %d candidates were lost to other claimers", lost, candidates)
}

func massProduce(t *testing.T, s *mysql.Store, n int) {
	for i := 0; n > 0; i++ {
		batch := min(n, 1+i%250)
		reqs := make([]*pawl.Request, batch)
		for k := range reqs {
			reqs[k] = request(pawl.Request{MaxAttempts: pawl.Unlimited, MaxRescues: 1 << 20, Retention: pawl.DeleteNow, Priority: k % 2})
			if k%3 == 0 {
				reqs[k].Retention = time.Millisecond // purged at once
			}
			if k%7 == 0 {
				reqs[k].UniqueKey = reqs[k].ID.String()
			}
		}
		if _, err := s.Enqueue(context.Background(), reqs); err != nil {
			t.Errorf("enqueue: %v", err)
			return
		}
		n -= batch
	}
}

// massWork claims some jobs, leaves one to be rescued, nacks one and acks the
// others.
func massWork(t *testing.T, s *mysql.Store, acked *atomic.Int64) {
	ctx := context.Background()
	spec := spec(1 + rand.IntN(60))
	spec.Lease = 5 * time.Second
	c, err := s.Claim(ctx, spec)
	if err != nil {
		t.Errorf("claim: %v", err)
		return
	}
	var outcomes []pawl.Outcome
	for i, j := range c.Jobs {
		switch {
		case i == 7 && j.Rescued == 0 && rand.IntN(4) == 0:
			_, err := s.Extend(ctx, []pawl.Renewal{{Ref: j.Ref, Lease: time.Millisecond}}) // as if its worker had died
			if err != nil {
				t.Errorf("extend: %v", err)
			}
			continue
		case i%20 == 5 && j.Attempt < 3:
			outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Nack, Error: "e"})
		default:
			outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
		}
	}
	acked.Add(massSettle(t, s, outcomes))
}

// massSettle settles, and says how many acks were accepted. Jobs that a claim of
// others has locked for a moment are tried again.
func massSettle(t *testing.T, s *mysql.Store, outcomes []pawl.Outcome) (acked int64) {
	for len(outcomes) > 0 {
		lost, err := s.Settle(context.Background(), outcomes)
		var busy *pawl.BusyError
		if err != nil && !errors.As(err, &busy) {
			t.Errorf("settle: %v", err)
			return acked
		}
		left := map[pawl.Ref]bool{}
		if busy != nil {
			for _, ref := range busy.Refs {
				left[ref] = true
			}
		}
		gone := map[pawl.Ref]bool{}
		for _, ref := range lost {
			gone[ref] = true
		}
		var again []pawl.Outcome
		for _, o := range outcomes {
			switch {
			case left[o.Ref]:
				again = append(again, o)
			case o.Verb == pawl.Ack && !gone[o.Ref]:
				acked++
			}
		}
		outcomes = again
	}
	return acked
}
