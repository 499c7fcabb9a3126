package mysql_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
)

// togetherEnv says how many jobs TestEverythingTogether works off, for a longer
// run than that of defaultMass.
const (
	togetherEnv = "PAWL_TOGETHER_JOBS"
	defaultMass = 5000
)

func massOf(t *testing.T) int {
	text := os.Getenv(togetherEnv)
	if text == "" {
		return defaultMass
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestEverythingTogether has claimers, producers and sweepers in each other's
// way. No conflict of theirs reaches a caller or a log, and each job is acked once.
func TestEverythingTogether(t *testing.T) {
	db := openDB(t, testserver.MariaDB(t), 40, nil)
	var log strings.Builder // each logger writes under a lock of its own
	o := &mysql.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	s := open(t, db, o)
	stores := []*mysql.Store{s, open(t, db, o)} // as two processes
	mass, before, began := massOf(t)/4*4, deadlocks(t, db), time.Now()
	var acked atomic.Int64
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() { massProduce(t, stores[i%2], mass/4) })
	}
	onward := func() bool { return acked.Load() < int64(mass) && !t.Failed() }
	for i := range 16 {
		wg.Go(func() {
			for onward() {
				massWork(t, stores[i%2], &acked)
			}
		})
	}
	for i := range 2 {
		wg.Go(func() {
			for onward() {
				if _, err := stores[i].Sweep(context.Background(), pawl.SweepSpec{Limit: 500}); err != nil {
					t.Errorf("sweep: %v", err)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	stats, err := s.Count(t.Context(), "default")
	if err != nil || acked.Load() != int64(mass) || stats[0].Ready+stats[0].Running+stats[0].Scheduled+stats[0].Buried != 0 {
		t.Errorf("%d of %d jobs were acked; numbers at the end %+v, error %v", acked.Load(), mass, stats, err)
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", &log)
	}
	candidates, lost := int64(0), int64(0)
	for _, s := range stores {
		c, l := s.Races()
		candidates, lost = candidates+c, lost+l
	}
	t.Logf("%d jobs in %v; %d of %d candidates were lost to other claimers; the server saw %d deadlocks",
		acked.Load(), took, lost, candidates, deadlocks(t, db)-before)
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
