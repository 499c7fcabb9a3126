package redis_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// A listener is a Store of its own that is watched, as in another process.
type listener struct {
	t      *testing.T
	s      *redis.Store
	events chan pawl.Event
	stop   func()
}

// listen begins to watch and waits until the server knows.
func listen(t *testing.T, s *redis.Store) *listener {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &listener{t: t, s: s, events: make(chan pawl.Event, 1000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Watch(ctx, func(e pawl.Event) { l.events <- e }) // ends with ctx
	}()
	l.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(l.stop)
	l.next() // for what was before Watch
	l.next() // for what was before the subscription
	return l
}

func (l *listener) next() pawl.Event {
	l.t.Helper()
	select {
	case e := <-l.events:
		return e
	case <-time.After(20 * time.Second):
		l.t.Fatal("the event did not arrive")
		return pawl.Event{}
	}
}

// idle claims in vain.
func (l *listener) idle(want int) {
	l.t.Helper()
	spec := asking(want)
	spec.Worker = fmt.Sprintf("%p", l)
	if got, err := l.s.Claim(l.t.Context(), spec); err != nil || len(got.Jobs) > 0 {
		l.t.Fatal(got.Jobs, err)
	}
}

// until reads events up to that of the pause of a queue, which all get, and counts
// those of ready jobs before it.
func (l *listener) until(queue string) (ready int) {
	l.t.Helper()
	for {
		switch e := l.next(); {
		case e.Kind == pawl.EventPaused && e.Queue == queue:
			return ready
		case e.Kind == pawl.EventReady && e.Queue == "default":
			ready++
		}
	}
}

// herd makes n Stores that listen on one installation.
func herd(t *testing.T, n int) []*listener {
	t.Helper()
	c := connect(t, testserver.Redis(t))
	prefix := fmt.Sprint("test", installations.Add(1))
	all := make([]*listener, n)
	for i := range all {
		all[i] = listen(t, open(t, c, &redis.Options{Prefix: prefix}))
	}
	return all
}

func enqueueSome(t *testing.T, s *redis.Store, n int) {
	t.Helper()
	reqs := make([]*pawl.Request, n)
	for i := range reqs {
		reqs[i] = request(pawl.Request{})
	}
	if _, err := s.Enqueue(t.Context(), reqs); err != nil {
		t.Fatal(err)
	}
}

// TestNoHerd wakes as many idle claimers as the jobs keep busy, and no more.
func TestNoHerd(t *testing.T) {
	for _, c := range []struct{ jobs, wants, wakes int }{{1, 1, 1}, {1, 10, 1}, {3, 1, 3}, {10, 3, 4}} {
		all := herd(t, 6)
		for _, l := range all {
			l.idle(c.wants)
		}
		enqueueSome(t, all[0].s, c.jobs)
		paused := true
		if err := all[0].s.Configure(t.Context(), "end", pawl.QueueSettings{Paused: &paused}); err != nil {
			t.Fatal(err)
		}
		woken := 0
		for _, l := range all {
			woken += l.until("end")
		}
		if woken != c.wakes {
			t.Errorf("%d jobs woke %d of 6 claimers with room for %d each, want %d", c.jobs, woken, c.wants, c.wakes)
		}
	}
}

// TestDeadClaimer wakes another if the one that is idle is gone, or very many are.
func TestDeadClaimer(t *testing.T) {
	all := herd(t, 4)
	for _, l := range all {
		l.idle(1)
	}
	c := connect(t, testserver.Redis(t))
	for i := range 100 {
		if err := c.HSet(t.Context(), all[0].s.Prefix()+":{default}:z", fmt.Sprint("dead", i, " worker"), 5).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range all[1:] {
		l.stop()
	}
	enqueueSome(t, all[0].s, 1)
	for e := all[0].next(); e.Queue != "default"; e = all[0].next() {
	}
}

// TestWakeUpsChain wakes a further claimer when the one that was woken leaves jobs:
// it had room for all, as far as it had said, and then takes less.
func TestWakeUpsChain(t *testing.T) {
	all := herd(t, 2)
	all[0].idle(100)
	enqueueSome(t, all[0].s, 100)
	for e := all[0].next(); e.Queue != "default"; e = all[0].next() {
	}
	paused, goes := true, false
	for _, p := range []*bool{&paused, &goes} { // so that the other finds nothing
		if err := all[0].s.Configure(t.Context(), "default", pawl.QueueSettings{Paused: p}); err != nil {
			t.Fatal(err)
		}
		if p == &paused {
			all[1].idle(100)
			all[1].until("default")
		}
	}
	for e := all[1].next(); e.Queue != "default"; e = all[1].next() { // of the end of the pause
	}
	if got, err := all[0].s.Claim(t.Context(), asking(1)); err != nil || len(got.Jobs) != 1 {
		t.Fatal(len(got.Jobs), err)
	}
	for e := all[1].next(); e.Queue != "default"; e = all[1].next() {
	}
}

// TestScheduledTold tells all idle claimers of a job that is due before all others.
func TestScheduledTold(t *testing.T) {
	all := herd(t, 2)
	q := request(pawl.Request{Delay: time.Hour})
	if _, err := all[0].s.Enqueue(t.Context(), []*pawl.Request{q}); err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		e := l.next()
		if e.Kind != pawl.EventReady || e.Queue != "default" || e.In < 59*time.Minute || e.In > time.Hour {
			t.Errorf("event %+v", e)
		}
	}
}

// TestListenerRecovers cuts the connection that listens.
func TestListenerRecovers(t *testing.T) {
	server := testserver.NewRedis(t, nil)
	c := connect(t, server)
	l := listen(t, open(t, c, nil))
	if err := c.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	if e := l.next(); e.Kind != pawl.EventReady || e.Queue != "" {
		t.Errorf("event %+v, want one for what was missed", e)
	}
	enqueueSome(t, l.s, 1)
	for e := l.next(); e.Queue != "default"; e = l.next() {
	}
}

// TestClosedClaimers leaves nothing of claimers whose Stores were closed, or do not listen
// any more when somebody sweeps, and keeps those that do.
func TestClosedClaimers(t *testing.T) {
	all := herd(t, 3)
	c := connect(t, testserver.Redis(t))
	names := func() int64 {
		t.Helper()
		n, err := c.HLen(t.Context(), all[0].s.Prefix()+":{default}:z").Result()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	mustEnqueue(t, all[0].s, request(pawl.Request{Delay: time.Hour})) // sweeps go to queues with jobs
	for _, l := range all {
		l.idle(1)
	}
	if n := names(); n != 3 {
		t.Fatalf("%d claimers have room", n)
	}
	if err := all[2].s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := names(); n != 2 {
		t.Errorf("%d claimers have room after one is closed", n)
	}
	all[1].stop()
	channel := all[1].s.Prefix() + ":events:*"
	eventually(t, "the end of a connection, which the server sees in its own time", func() bool {
		open, err := c.PubSubChannels(t.Context(), channel).Result()
		if err != nil {
			t.Fatal(err)
		}
		return len(open) == 1
	})
	if _, err := all[0].s.Sweep(t.Context(), pawl.SweepSpec{Limit: 10}); err != nil {
		t.Fatal(err)
	}
	if n := names(); n != 1 {
		t.Errorf("%d claimers have room after a sweep", n)
	}
	enqueueSome(t, all[0].s, 1)
	for e := all[0].next(); e.Queue != "default" || e.In > 0; e = all[0].next() {
	}
}

// TestManyDeadClaimers tells all if none was there of those that it tried.
func TestManyDeadClaimers(t *testing.T) {
	for _, dead := range []int{1, 400} {
		l := herd(t, 1)[0]
		c := connect(t, testserver.Redis(t))
		for i := range dead {
			if err := c.HSet(t.Context(), l.s.Prefix()+":{default}:z", fmt.Sprint("dead", i, " worker"), 5).Err(); err != nil {
				t.Fatal(err)
			}
		}
		enqueueSome(t, l.s, 1)
		for e := l.next(); e.Queue != "default"; e = l.next() {
		}
	}
}

// TestToldAfterClockSetBack tells of a job although the last time that all were told is
// still to come.
func TestToldAfterClockSetBack(t *testing.T) {
	l := herd(t, 1)[0]
	c := connect(t, testserver.Redis(t))
	mustEnqueue(t, l.s, request(pawl.Request{Delay: time.Hour})) // which all are told of too
	for e := l.next(); e.Queue != "default"; e = l.next() {
	}
	at := time.Now().Add(time.Hour).UnixMicro()
	if err := c.HSet(t.Context(), l.s.Prefix()+":{default}:i", "told", at).Err(); err != nil {
		t.Fatal(err)
	}
	enqueueSome(t, l.s, 1)
	for e := l.next(); e.Queue != "default"; e = l.next() {
	}
}
