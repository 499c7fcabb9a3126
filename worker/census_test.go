package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// Pauses and limits are told once each time that they change.
func TestEventsOfQueues(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, watched)
		sub := f.events.Subscribe(&worker.SubscribeOptions{
			Types: []worker.EventType{worker.EventPaused, worker.EventResumed, worker.EventDepth, worker.EventDeadLetters},
			Depth: 10, DeadLetters: 2,
		})
		own := f.events.Subscribe(&worker.SubscribeOptions{Depth: 5, Types: []worker.EventType{worker.EventDepth}})
		defer own.Close()
		f.start(returning(pawl.Permanent(errors.New("no luck"))), &worker.Options{CountEvery: 10 * time.Second})
		pause := func(paused bool) {
			if err := f.q.Storage().Configure(context.Background(), "default", pawl.QueueSettings{Paused: &paused}); err != nil {
				t.Error(err)
			}
		}
		rest(time.Second)
		paused := time.Now()
		pause(true)
		synctest.Wait() // the storage tells
		for range 10 {
			f.enqueue(&pawl.Request{Delay: time.Hour})
		}
		rest(time.Minute)
		if s := f.p.Stats(); len(s.Queues) != 1 || s.Queues[0].Scheduled != 10 || !s.Queues[0].Paused ||
			time.Since(s.CountedAt) > 13*time.Second {
			t.Errorf("stats %+v", s)
		}
		pause(false)
		rest(2 * time.Hour)
		f.told.Close()
		f.told = sub
		var got []string
		for _, e := range f.drain() {
			got = append(got, fmt.Sprint(e.Type, " ", e.Queue, " ", e.Count, " ", e.Over))
			if e.Type == worker.EventPaused && !e.At.Equal(paused) {
				t.Errorf("the pause was told %v late", e.At.Sub(paused))
			}
		}
		want := []string{"paused default 0 false", "depth default 10 true", "resumed default 0 false",
			"depth default 0 false", "dead_letters default 10 true"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		f.told = own
		if n := len(f.drain()); n != 2 {
			t.Errorf("%d events of the other subscription", n)
		}
		f.told = nil
		f.stop()
	})
}

// A crossing that finds the buffer full is told when there is room, unless it is
// over by then.
func TestCrossingsWaitForRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, watched)
		sub := f.events.Subscribe(&worker.SubscribeOptions{Buffer: 10, DeadLetters: 3, Depth: 2})
		defer sub.Close()
		f.start(returning(pawl.Permanent(errors.New("no luck"))), &worker.Options{CountEvery: time.Second})
		for range 20 {
			f.enqueue(&pawl.Request{})
		}
		for range 2 { // too deep, but not for ever
			f.enqueue(&pawl.Request{Delay: 30 * time.Second})
		}
		rest(time.Minute)
		for _, e := range waiting(sub) {
			if e.Type != worker.EventStarted && e.Type != worker.EventFailed && e.Type != worker.EventBuried {
				t.Fatalf("the buffer was to be full before %+v", e)
			}
		}
		rest(time.Minute)
		events := waiting(sub)
		if len(events) != 1 || events[0].Type != worker.EventDeadLetters || !events[0].Over || events[0].Count != 22 {
			t.Errorf("events %+v", events)
		}
		if n := sub.Dropped(); n[worker.EventDeadLetters]+n[worker.EventDepth] > 0 {
			t.Errorf("dropped %v", n)
		}
		f.stop()
	})
}

// Who sets a limit need not know that pools have to count.
func TestLimitsLetPoolsCount(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := start(t, bare, returning(pawl.Permanent(errors.New("no luck"))), nil)
		f.enqueue(&pawl.Request{})
		rest(time.Minute)
		if s := f.p.Stats(); s.Queues != nil {
			t.Errorf("counted for nobody: %+v", s)
		}
		sub := f.events.Subscribe(&worker.SubscribeOptions{DeadLetters: 1, Types: []worker.EventType{worker.EventDeadLetters}})
		rest(19 * time.Second)
		if events := waiting(sub); len(events) != 1 || !events[0].Over {
			t.Errorf("events %+v", events)
		}
		sub.Close()
		counted := f.p.Stats().CountedAt
		rest(time.Minute)
		if s := f.p.Stats(); s.CountedAt != counted {
			t.Errorf("counted for nobody: %+v", s)
		}
		f.stop()
	})
}

// Each pause is told, also by a pool that does not count, and its end.
func TestPausesAreTold(t *testing.T) {
	for name, o := range map[string]worker.Options{"by the storage": {}, "by counts": {CountEvery: time.Second}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				sort := watched
				if o.CountEvery > 0 {
					sort = bare
				}
				f := start(t, sort, returning(nil), &o)
				var want []worker.EventType
				for range 3 {
					if err := f.q.Pause(t.Context(), "default"); err != nil {
						t.Fatal(err)
					}
					rest(time.Minute)
					if err := f.q.Resume(t.Context(), "default"); err != nil {
						t.Fatal(err)
					}
					rest(time.Minute)
					want = append(want, worker.EventPaused, worker.EventResumed)
				}
				if diff := cmp.Diff(want, types(f.drain())); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				if s := f.p.Stats(); (s.Queues != nil) != (o.CountEvery > 0) {
					t.Errorf("stats %+v", s)
				}
				f.told = nil
				f.stop()
			})
		})
	}
}

// A pool that neither counts nor hears of pauses sees that of jobs that it holds.
func TestPauseSeenByTheHeartbeat(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, bare)
		for range 3 {
			f.enqueue(&pawl.Request{})
		}
		f.start(&lasting{takes: 10 * time.Minute}, &worker.Options{Concurrency: 1, Prefetch: 5})
		if err := f.q.Pause(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
		rest(time.Minute)
		if err := f.q.Resume(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
		rest(time.Minute)
		want := []worker.EventType{worker.EventStarted, worker.EventPaused, worker.EventResumed}
		if diff := cmp.Diff(want, types(f.drain())); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		f.told = nil
		f.stop()
	})
}

// Counting that fails is told in the log, and nothing else.
func TestCountsThatFail(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, func(d *disturbed) pawl.Storage { return uncounted{d} })
		f.start(returning(nil), &worker.Options{CountEvery: time.Second})
		f.enqueue(&pawl.Request{})
		rest(time.Minute)
		if h := f.p.Health(); !h.Ready {
			t.Errorf("health %+v", h)
		}
		f.stop()
		if s := f.p.Stats(); s.Completed != 1 || s.Queues != nil || f.log.count("storage fails to count") != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

type uncounted struct{ pawl.Storage }

func (uncounted) Count(context.Context, ...string) ([]pawl.QueueStats, error) { return nil, errStorage }
