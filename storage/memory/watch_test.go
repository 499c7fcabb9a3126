package memory

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlq/pawl"
)

// A listener collects events. Its store and clock live in a synctest bubble.
type listener struct {
	s      *Store
	events []pawl.Event
}

func listen(ctx context.Context, t *testing.T) *listener {
	l := &listener{s: New(nil)}
	go func() {
		err := l.s.Watch(ctx, func(e pawl.Event) { l.events = append(l.events, e) })
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	return l
}

// take returns what was heard since the last take.
func (l *listener) take() []pawl.Event {
	synctest.Wait()
	events := l.events
	l.events = nil
	return events
}

func (l *listener) expect(t *testing.T, what string, want ...pawl.Event) {
	t.Helper()
	if diff := cmp.Diff(want, l.take()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		l := listen(ctx, t)
		s := l.s
		ready := pawl.Event{Kind: pawl.EventReady, Queue: "q"}
		ended := func(j *pawl.Job) pawl.Event { return pawl.Event{Kind: pawl.EventEnded, Queue: "q", Ref: j.Ref} }

		l.expect(t, "at the start", pawl.Event{Kind: pawl.EventReady})
		enqueueN(t, s, 3, func(_ int, r *pawl.Request) { r.MaxRescues = pawl.NoRescues })
		l.expect(t, "enqueue", ready)
		enqueue(t, s, newRequest(func(r *pawl.Request) { r.Queue, r.Delay = "later", time.Hour }))
		l.expect(t, "enqueue for later", pawl.Event{Kind: pawl.EventReady, Queue: "later", In: time.Hour})
		time.Sleep(time.Hour)
		sweep(t, s, pawl.SweepSpec{Limit: 10})
		l.expect(t, "promotion", pawl.Event{Kind: pawl.EventReady, Queue: "later"})

		jobs := claimJobs(t, s, 3)
		l.expect(t, "claim")
		change(t, s, pawl.Change{Verb: pawl.Cancel, IDs: []pawl.ID{jobs[0].ID}})
		l.expect(t, "cancel", ended(jobs[0]))
		change(t, s, pawl.Change{Verb: pawl.Delete, IDs: []pawl.ID{jobs[1].ID, jobs[0].ID}})
		l.expect(t, "delete", ended(jobs[1]))
		time.Sleep(time.Minute)
		sweep(t, s, pawl.SweepSpec{Limit: 10})
		l.expect(t, "rescue", ended(jobs[2]))
		change(t, s, pawl.Change{Verb: pawl.Kick, IDs: []pawl.ID{jobs[2].ID}})
		l.expect(t, "kick", ready)
		settle(t, s, pawl.Outcome{Ref: claimJobs(t, s, 1)[0].Ref, Verb: pawl.Ack})
		l.expect(t, "ack")
	})
}

func TestWatchPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		l := listen(ctx, t)
		l.take()
		pause := func(paused bool) {
			if err := l.s.Configure(ctx, "q", pawl.QueueSettings{Paused: &paused}); err != nil {
				t.Fatal(err)
			}
		}
		pause(true)
		l.expect(t, "pause", pawl.Event{Kind: pawl.EventPaused, Queue: "q"})
		enqueue(t, l.s, newRequest(func(r *pawl.Request) { r.Delay = time.Hour }))
		l.expect(t, "enqueue while paused")
		pause(false)
		l.expect(t, "resume with a scheduled job", pawl.Event{Kind: pawl.EventReady, Queue: "q", In: time.Hour})
		pause(true)
		enqueue(t, l.s, newRequest(nil))
		l.take()
		pause(false)
		l.expect(t, "resume with a ready job", pawl.Event{Kind: pawl.EventReady, Queue: "q"})
	})
}

// TestWatchEndsWithContext: the end of the context ends Watch even while there
// is more to tell, and its watcher is forgotten.
func TestWatchEndsWithContext(t *testing.T) {
	s, _ := newStore(t)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n := 0
	err := s.Watch(ctx, func(pawl.Event) {
		if n++; n == 1 {
			for i := range 10 {
				enqueue(t, s, newRequest(func(r *pawl.Request) { r.Queue = fmt.Sprint("q", i) }))
			}
			return
		}
		cancel()
	})
	if !errors.Is(err, context.Canceled) || n != 2 || len(s.watchers) != 0 {
		t.Errorf("error %v after %d events; %d watchers left", err, n, len(s.watchers))
	}
}

// TestWatcherIsBounded: one that does not keep up costs bounded memory, and is
// told of the rest without names.
func TestWatcherIsBounded(t *testing.T) {
	s, _ := newStore(t)
	w := &watcher{wake: make(chan struct{}, 1)}
	s.watchers = append(s.watchers, w)
	now := s.now()
	for i := range int64(10_000) {
		name := fmt.Sprint("q", i)
		s.noteReady(&queue{name: name}, now+1000-i%1000)
		s.noteReady(&queue{name: name}, now+2000) // later, so it says nothing new
		s.notePaused(name)
	}
	for i := range int64(2 * maxEnded) {
		s.noteEnded(pawl.Ref{Fence: i})
	}
	count := make(map[pawl.EventKind]int)
	anywhere := make(map[pawl.EventKind]pawl.Event)
	for _, e := range s.take(w) {
		count[e.Kind]++
		if e.Queue == "" && e.Kind != pawl.EventEnded {
			anywhere[e.Kind] = e
		}
	}
	if count[pawl.EventReady] > maxNoted+1 || count[pawl.EventPaused] > maxNoted+1 || count[pawl.EventEnded] != maxEnded {
		t.Errorf("events: %v", count)
	}
	want := map[pawl.EventKind]pawl.Event{
		pawl.EventReady:  {Kind: pawl.EventReady, In: time.Microsecond},
		pawl.EventPaused: {Kind: pawl.EventPaused},
	}
	if diff := cmp.Diff(want, anywhere); diff != "" {
		t.Error(diff)
	}
}
