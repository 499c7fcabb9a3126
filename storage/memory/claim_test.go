package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// TestClaimCatchesUp claims when far more has become due than is moved in one
// hold of the lock: the order is exact nevertheless.
func TestClaimCatchesUp(t *testing.T) {
	s, clock := newStore(t)
	const n = 2*maxHold + 100
	enqueueN(t, s, n, func(i int, r *pawl.Request) {
		r.Delay = time.Second + time.Duration(i)*time.Microsecond
		r.Priority = -i % 5
		r.Kind = fmt.Sprint(i % 5)
	})
	enqueueN(t, s, n, func(i int, r *pawl.Request) { r.StartBefore = clock.now().Add(time.Second) })
	clock.advance(time.Minute)
	for _, j := range claimJobs(t, s, 10) {
		if j.Priority != -4 || j.Kind != "4" {
			t.Errorf("claimed %+v", j)
		}
	}
	stats, err := s.Count(ctx, "q")
	if err != nil || stats[0].Canceled != n || stats[0].Scheduled != 0 || stats[0].Ready != n-10 {
		t.Errorf("stats %+v, error %v", stats, err)
	}
	check(t, s)
}

func TestRepeatOfManyQueues(t *testing.T) {
	s, _ := newStore(t)
	for _, queue := range []string{"a", "b"} {
		enqueueN(t, s, 3, func(_ int, r *pawl.Request) { r.Queue = queue })
	}
	first := claimJobs(t, s, 4, "b", "a")
	settle(t, s, pawl.Outcome{Ref: first[1].Ref, Verb: pawl.Ack})
	sp := spec(4, "missing", "b", "a")
	sp.Repeat = true
	again, err := s.Claim(ctx, sp)
	if err != nil || len(again.Jobs) != 3 {
		t.Fatalf("got %v, error %v", again.Jobs, err)
	}
	for i, want := range []*pawl.Job{first[0], first[2], first[3]} {
		if again.Jobs[i].Ref != want.Ref {
			t.Errorf("job %d is %v, want %v", i, again.Jobs[i].Ref, want.Ref)
		}
	}
	for _, j := range again.Jobs {
		settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
	}
	if again, err = s.Claim(ctx, sp); err != nil || len(again.Jobs) != 2 {
		t.Errorf("with nothing left to repeat: %v, error %v", again.Jobs, err)
	}
}

// TestNextDueSkipsPausedQueues: a paused queue is no reason to wake up.
func TestNextDueSkipsPausedQueues(t *testing.T) {
	s, _ := newStore(t)
	paused := true
	if err := s.Configure(ctx, "a", pawl.QueueSettings{Paused: &paused}); err != nil {
		t.Fatal(err)
	}
	for queue, delay := range map[string]time.Duration{"a": time.Second, "b": time.Minute, "c": time.Hour} {
		enqueue(t, s, newRequest(func(r *pawl.Request) { r.Queue, r.Delay = queue, delay }))
	}
	for want, queues := range map[time.Duration][]string{
		0: {"a", "missing"}, time.Minute: {"a", "b", "c"}, time.Hour: {"c", "a"},
	} {
		c, err := s.Claim(ctx, spec(5, queues...))
		if err != nil || c.NextDue != want {
			t.Errorf("queues %v: NextDue %v, error %v; want %v", queues, c.NextDue, err, want)
		}
	}
}
