package memory

import (
	"context"
	"slices"

	"github.com/pawlq/pawl"
)

const (
	// maxNoted is how many queues a watcher remembers apart until it has told
	// of them; what happens in others it tells without their names.
	maxNoted = 256
	// maxEnded is how many ended claims a watcher remembers until it has told
	// of them, 1 MiB; more are lost, and their workers learn it when they
	// extend.
	maxEnded = 16 << 10
)

// A watcher collects what one Watch has to tell, under the lock of the store.
// What is told again before it was delivered is told once.
type watcher struct {
	wake   chan struct{}    // has a token if there is something to tell
	ready  map[string]int64 // queue to when its first job is due; "" for any
	paused map[string]bool
	ended  []pawl.Ref
}

// Watch implements [pawl.Watcher]. It first sends an EventReady without a
// queue, for what happened before it listened. It returns ctx's error, or
// [pawl.ErrClosed] after Close.
func (s *Store) Watch(ctx context.Context, f func(pawl.Event)) error {
	w := &watcher{wake: make(chan struct{}, 1)}
	if err := s.lock(ctx); err != nil {
		return err
	}
	w.noteReady("", s.now())
	s.watchers = append(s.watchers, w)
	s.mu.Unlock()
	defer s.unwatch(w)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.done:
			return pawl.ErrClosed
		case <-w.wake:
		}
		for _, e := range s.take(w) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			f(e)
		}
	}
}

func (s *Store) unwatch(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers = slices.DeleteFunc(s.watchers, func(o *watcher) bool { return o == w })
}

// take returns what w has collected and empties it.
func (s *Store) take(w *watcher) []pawl.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var events []pawl.Event
	for _, ref := range w.ended {
		events = append(events, pawl.Event{Kind: pawl.EventEnded, Queue: ref.Queue, Ref: ref})
	}
	for queue := range w.paused {
		events = append(events, pawl.Event{Kind: pawl.EventPaused, Queue: queue})
	}
	for queue, at := range w.ready {
		e := pawl.Event{Kind: pawl.EventReady, Queue: queue}
		if due := (earliest{at, true}); !due.come(now) {
			e.In = due.in(now)
		}
		events = append(events, e)
	}
	w.ended, w.paused, w.ready = nil, nil, nil
	return events
}

// noteReady tells the watchers that a job of q can be claimed from at on.
func (s *Store) noteReady(q *queue, at int64) {
	if q.paused {
		return
	}
	for _, w := range s.watchers {
		w.noteReady(q.name, at)
	}
}

// notePaused tells the watchers that the queue was paused.
func (s *Store) notePaused(queue string) {
	for _, w := range s.watchers {
		w.notePaused(queue)
	}
}

// noteEnded tells the watchers that a claim was ended by someone other than its
// worker.
func (s *Store) noteEnded(ref pawl.Ref) {
	for _, w := range s.watchers {
		w.noteEnded(ref)
	}
}

func (w *watcher) noteReady(queue string, at int64) {
	old, ok := w.ready[queue]
	if !ok && len(w.ready) >= maxNoted {
		queue = ""
		old, ok = w.ready[queue]
	}
	if ok && old <= at {
		return
	}
	if w.ready == nil {
		w.ready = make(map[string]int64)
	}
	w.ready[queue] = at
	w.signal()
}

func (w *watcher) notePaused(queue string) {
	if w.paused == nil {
		w.paused = make(map[string]bool)
	}
	if len(w.paused) >= maxNoted {
		queue = ""
	}
	w.paused[queue] = true
	w.signal()
}

func (w *watcher) noteEnded(ref pawl.Ref) {
	if len(w.ended) < maxEnded {
		w.ended = append(w.ended, ref)
		w.signal()
	}
}

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
