package sqlite

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
)

// eventBuffer is how many events a slow watcher may be behind. What is beyond
// becomes one EventReady without a queue.
const eventBuffer = 256

// watchers are those who want to know.
type watchers struct {
	mu   sync.Mutex
	all  map[*watcher]struct{}
	n    atomic.Int32
	gone chan struct{} // closed by Close
}

type watcher struct {
	events   chan pawl.Event
	overflow atomic.Bool
}

func (s *Store) watchEvents(ctx context.Context, f func(pawl.Event)) error {
	w := &watcher{events: make(chan pawl.Event, eventBuffer)}
	s.watch.add(w)
	defer s.watch.remove(w)
	s.writer.nudge()                              // to begin to look for changes
	w.events <- pawl.Event{Kind: pawl.EventReady} // for what was before
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.watch.gone:
			return pawl.ErrClosed
		case e := <-w.events:
			f(e)
			if w.overflow.CompareAndSwap(true, false) {
				f(pawl.Event{Kind: pawl.EventReady})
			}
		}
	}
}

func (w *watchers) add(one *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = make(map[*watcher]struct{})
	}
	w.all[one] = struct{}{}
	w.n.Add(1)
}

func (w *watchers) remove(one *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, one)
	w.n.Add(-1)
}

func (w *watchers) any() bool { return w.n.Load() > 0 }

func (w *watchers) send(e pawl.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.all {
		select {
		case one.events <- e:
		default:
			one.overflow.Store(true)
		}
	}
}

// publish tells what a committed batch has done.
func (w *watchers) publish(b *batch) {
	if !w.any() {
		return
	}
	for queue, at := range b.events.ready {
		in := time.Duration(max(0, at-b.now)) * time.Microsecond
		w.send(pawl.Event{Kind: pawl.EventReady, Queue: queue, In: in})
	}
	for _, e := range b.events.other {
		w.send(e)
	}
}
