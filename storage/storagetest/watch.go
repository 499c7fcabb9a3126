package storagetest

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
	"go.uber.org/goleak"
)

// eventTimeout bounds the wait for an event, in real time. Events are hints and
// may be lost, but not on a storage where nothing goes wrong.
const eventTimeout = 10 * time.Second

func (w *world) patience() time.Duration { return or(w.h.patience, eventTimeout) }

func watchCases() []testCase {
	cases := append(readyCases(), []testCase{
		{
			name: "ended after cancel",
			says: "EventEnded names a claim that was ended by someone other than its worker: after a running job was canceled.",
			run: func(w *world) {
				w.add(pawl.Request{})
				ref := w.claimOne().Ref
				w.awaits(w.s, pawl.EventEnded, func() pawl.Ref { w.changed(pawl.Cancel, ref.ID); return ref })
			},
		},
		{
			name: "paused",
			says: "EventPaused tells that the queue was paused.",
			run: func(w *world) {
				w.awaits(w.s, pawl.EventPaused, func() pawl.Ref { w.pause(queueA, true); return pawl.Ref{} })
			},
		},
		{
			name: "ready at another handle",
			says: "EventReady reaches the watchers of other processes.",
			run: func(w *world) {
				other := w.h.Reopen(w, w.s, w.clock.Now)
				w.awaits(other, pawl.EventReady, func() pawl.Ref { w.add(pawl.Request{}); return pawl.Ref{} })
			},
			needs: func(h traits) bool { return h.watches && h.reopens() },
		},
		{
			name: "events come one at a time",
			says: "Watch calls f from one goroutine at a time, however many callers make events.",
			run:  watchOneAtATime,
		},
		{
			name: "watch ends with its context", alone: true,
			says: "Watch calls f until ctx ends, returns then, and leaves no goroutine.",
			run:  watchEnds,
		},
	}...)
	for i := range cases {
		if cases[i].needs == nil {
			cases[i].needs = traits.watchesIt
		}
	}
	return cases
}

// readyCases are what makes jobs claimable.
func readyCases() []testCase {
	return []testCase{
		{
			name: "ready after enqueue",
			says: "EventReady tells that jobs can be claimed: after Enqueue.",
			run: func(w *world) {
				w.awaits(w.s, pawl.EventReady, func() pawl.Ref { w.add(pawl.Request{}); return pawl.Ref{} })
			},
		},
		{
			name: "ready after kick",
			says: "EventReady tells that jobs can be claimed: after Kick.",
			run: func(w *world) {
				id := w.finish(pawl.Request{}, pawl.Bury)
				w.awaits(w.s, pawl.EventReady, func() pawl.Ref { w.changed(pawl.Kick, id); return pawl.Ref{} })
			},
		},
		{
			name: "ready after release",
			says: "EventReady tells that jobs can be claimed: after a release.",
			run: func(w *world) {
				w.add(pawl.Request{})
				o := pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Release}
				w.awaits(w.s, pawl.EventReady, func() pawl.Ref { w.settled(o); return pawl.Ref{} })
			},
		},
		{
			name: "ready after rescue",
			says: "EventReady tells that jobs can be claimed: after a rescue.",
			run: func(w *world) {
				w.add(pawl.Request{})
				w.claimOne()
				w.clock.Advance(lease)
				w.awaits(w.s, pawl.EventReady, func() pawl.Ref { w.sweep(); return pawl.Ref{} })
			},
		},
		{
			name: "ready after reschedule",
			says: "EventReady tells that jobs can be claimed: after a waiting job was rescheduled for now.",
			run: func(w *world) {
				id := w.add(pawl.Request{Delay: time.Hour})
				w.awaits(w.s, pawl.EventReady, func() pawl.Ref { w.changed(pawl.Reschedule, id); return pawl.Ref{} })
			},
		},
		{
			name: "ready after resume",
			says: "EventReady tells that jobs can be claimed: after a queue was resumed.",
			run: func(w *world) {
				w.add(pawl.Request{})
				w.pause(queueA, true)
				w.awaits(w.s, pawl.EventReady, func() pawl.Ref { w.pause(queueA, false); return pawl.Ref{} })
			},
		},
	}
}

// A watch is a running Watch of a storage.
type watch struct {
	events chan pawl.Event
	ended  chan error
	cancel context.CancelFunc

	inside, overlaps atomic.Int64 // calls of f
}

// watching starts to watch s and waits until events arrive: it makes probe
// events in a queue of its own, since Watch does not say when it has begun.
func (w *world) watching(s pawl.Storage) *watch {
	w.Helper()
	watcher, ok := pawl.Find[pawl.Watcher](s)
	if !ok {
		w.Fatalf("the storage opened first is a Watcher, this handle is not")
	}
	ctx, cancel := context.WithCancel(w.ctx)
	v := &watch{events: make(chan pawl.Event, 1000), ended: make(chan error, 1), cancel: cancel}
	go func() {
		v.ended <- watcher.Watch(ctx, func(e pawl.Event) {
			if v.inside.Add(1) > 1 {
				v.overlaps.Add(1)
			}
			runtime.Gosched() // so that another call, if there can be one, comes between
			select {
			case v.events <- e:
			default: // the case reads too slowly to need this one
			}
			v.inside.Add(-1)
		})
	}()
	w.Cleanup(func() {
		cancel()
		if v.ended != nil {
			<-v.ended
		}
	})
	w.primed(v)
	return v
}

// primed makes probe events until one arrives, and then until all of them have.
func (w *world) primed(v *watch) {
	w.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.After(w.patience())
	for {
		_, err := w.s.Enqueue(w.ctx, complete(pawl.Request{Queue: "probe"}))
		w.ok(err)
		select {
		case <-v.events:
			v.drain()
			return
		case <-tick.C:
		case err := <-v.ended:
			v.ended = nil
			w.Fatalf("Watch returned before its context ended: %v", err)
		case <-end:
			w.Fatalf("no event in %v of enqueues", w.patience())
		}
	}
}

// drain drops what arrives until nothing did for a while: late probe events
// must not be taken for the event that a case waits for.
func (v *watch) drain() {
	for {
		select {
		case <-v.events:
		case <-time.After(quiet):
			return
		}
	}
}

// quiet is longer than the coalescing of wake-ups of any engine.
const quiet = 150 * time.Millisecond

// awaits fails unless the event arrives after f, for the claim that f returns.
func (w *world) awaits(s pawl.Storage, kind pawl.EventKind, f func() pawl.Ref) {
	w.Helper()
	v := w.watching(s)
	ref := f()
	end := time.After(w.patience())
	for {
		select {
		case e := <-v.events:
			here := e.Queue == "" || e.Queue == queueA
			if e.Kind == kind && here && e.Ref.ID == ref.ID && e.Ref.Fence == ref.Fence {
				return
			}
		case err := <-v.ended:
			v.ended = nil
			w.Fatalf("Watch returned before its context ended: %v", err)
		case <-end:
			w.Fatalf("the event did not arrive within %v", w.patience())
		}
	}
}

// watchOneAtATime makes events on many goroutines at once.
func watchOneAtATime(w *world) {
	const callers, each = 4, 25
	v := w.watching(w.s)
	w.together(callers, func(i int, s pawl.Storage) error {
		for range each {
			if _, err := s.Enqueue(w.ctx, complete(pawl.Request{Queue: fmt.Sprint("q", i)})); err != nil {
				return err
			}
		}
		return nil
	})
	v.drain()
	if v.overlaps.Load() > 0 {
		w.Fatalf("f was called while another call of it had not returned")
	}
}

func watchEnds(w *world) {
	stop := func() {
		v := w.watching(w.s)
		v.cancel()
		select {
		case <-v.ended:
			v.ended = nil
		case <-time.After(w.patience()):
			w.Fatalf("Watch did not return within %v of the end of its context", w.patience())
		}
	}
	stop() // what the engine starts once and keeps is no leak
	before := goleak.IgnoreCurrent()
	for range 3 {
		stop()
	}
	if err := goleak.Find(before); err != nil {
		w.Fatalf("goroutines are left: %v", err)
	}
}
