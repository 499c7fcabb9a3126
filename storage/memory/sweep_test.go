package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// buryAll buries all jobs of the queues.
func buryAll(t *testing.T, s *Store, queues ...string) {
	t.Helper()
	for {
		jobs := claimJobs(t, s, pawl.MaxStep, queues...)
		if len(jobs) == 0 {
			return
		}
		for _, j := range jobs {
			settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Bury})
		}
	}
}

// TestBuriedRound purges buried jobs of more queues, and more jobs, than one
// sweep looks at.
func TestBuriedRound(t *testing.T) {
	s, clock := newStore(t)
	const n = maxHold + 500
	names := make([]string, n)
	enqueueN(t, s, n, func(i int, r *pawl.Request) {
		names[i] = fmt.Sprintf("q%05d", i)
		r.Queue = names[i]
	})
	buryAll(t, s, names...)
	clock.advance(time.Second)
	enqueueN(t, s, 50, func(_ int, r *pawl.Request) { r.Queue = names[n-1] })
	buryAll(t, s, names[n-1])

	round := func(sp pawl.SweepSpec) (purged int, last pawl.Swept) {
		for range 1000 {
			last = sweep(t, s, sp)
			if purged += last.Purged; !last.More {
				return purged, last
			}
		}
		t.Fatal("the round does not end")
		return
	}
	sp := pawl.SweepSpec{Limit: 20, MaxBuried: 11}
	if purged, last := round(sp); purged != 40 || last.NextDue != 0 {
		t.Errorf("MaxBuried: purged %d, %+v", purged, last)
	}
	sp = pawl.SweepSpec{Limit: pawl.MaxStep, BuriedRetention: time.Minute}
	if purged, last := round(sp); purged != 0 || last.NextDue != time.Minute-time.Second {
		t.Errorf("BuriedRetention too early: purged %d, %+v", purged, last)
	}
	clock.advance(time.Minute - time.Second)
	if purged, last := round(sp); purged != n-1 || last.NextDue != time.Second {
		t.Errorf("BuriedRetention: purged %d, %+v", purged, last)
	}
	check(t, s)
}

// TestBuriedWindow: a unique window keeps a buried job, and not the ones
// behind it.
func TestBuriedWindow(t *testing.T) {
	s, clock := newStore(t)
	enqueueN(t, s, 4, func(i int, r *pawl.Request) {
		if i < 2 {
			r.UniqueKey, r.UniqueMode, r.UniqueWindow = fmt.Sprint(i), pawl.UniqueUntilWindow, time.Hour
		}
	})
	buryAll(t, s, "q")
	for _, step := range []struct {
		sp      pawl.SweepSpec
		advance time.Duration
		purged  int
		next    time.Duration
	}{
		{pawl.SweepSpec{MaxBuried: 1}, 0, 1, time.Hour},
		{pawl.SweepSpec{BuriedRetention: time.Minute}, time.Second, 0, time.Minute - time.Second},
		{pawl.SweepSpec{BuriedRetention: time.Minute}, time.Minute, 1, time.Hour - time.Minute - time.Second},
		{pawl.SweepSpec{MaxBuried: 1}, time.Hour, 1, 0},
		{pawl.SweepSpec{BuriedRetention: time.Minute}, 0, 1, 0},
	} {
		clock.advance(step.advance)
		step.sp.Limit = 10
		swept := sweep(t, s, step.sp)
		if swept.Purged != step.purged || swept.NextDue != step.next || swept.More {
			t.Errorf("%+v: %+v", step, swept)
		}
	}
	check(t, s)
}
