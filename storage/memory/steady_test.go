package memory

import (
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// A step of the wall clock ends no lease, and is followed when nothing runs.
func TestStepsOfTheClock(t *testing.T) {
	wall, passed := time.Unix(1_900_000_000, 0), time.Duration(0)
	s := New(nil)
	defer s.Close()
	s.own = newSteady(func() (time.Time, time.Duration) { return wall, passed })
	pass := func(d time.Duration) { wall, passed = wall.Add(d), passed+d }
	sweep := func() pawl.Swept {
		t.Helper()
		sw, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		return sw
	}
	later := wall.Add(12 * time.Hour)
	reqs := []*pawl.Request{
		{ID: pawl.ID{1}, Queue: "q", Kind: "k", MaxAttempts: 1, MaxRescues: 1, Retention: time.Hour},
		{ID: pawl.ID{2}, Queue: "q", Kind: "k", MaxAttempts: 1, MaxRescues: 1, Retention: time.Hour, RunAt: later},
	}
	if _, err := s.Enqueue(t.Context(), reqs); err != nil {
		t.Fatal(err)
	}
	spec := pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: "q", Max: 1}}, Max: 1, Lease: 30 * time.Second}
	c, err := s.Claim(t.Context(), spec)
	if err != nil || len(c.Jobs) != 1 {
		t.Fatal(len(c.Jobs), err)
	}
	for _, step := range []time.Duration{24 * time.Hour, -48 * time.Hour, 24 * time.Hour} {
		wall = wall.Add(step)
		pass(9 * time.Second)
		if sw := sweep(); len(sw.Rescued) > 0 || sw.Promoted > 0 {
			t.Fatalf("after a step of %v: %+v", step, sw)
		}
	}
	pass(4 * time.Second)
	if sw := sweep(); len(sw.Rescued) != 1 {
		t.Errorf("the lease lasts longer than it should: %+v", sw)
	}
	wall = later
	if sw := sweep(); sw.Promoted != 1 {
		t.Errorf("nothing runs and the clock does not follow: %+v", sw)
	}
	if got := s.now(); got != later.UnixMicro() {
		t.Errorf("now %d, want %d", got, later.UnixMicro())
	}
}
