package postgres

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
)

// eventBuffer is how many events a slow watcher may be behind. What is beyond
// becomes one EventReady without a queue. A sweep ends up to 1,000 claims.
const eventBuffer = 1024

// events are what a call has to tell when it is committed.
type events struct {
	ready map[string]time.Duration // queue, and when the first job is due
	other []pawl.Event
}

// due notes that a job of a queue will be due.
func (e *events) due(queue string, in time.Duration) {
	if e.ready == nil {
		e.ready = make(map[string]time.Duration)
	}
	if old, ok := e.ready[queue]; !ok || in < old {
		e.ready[queue] = in
	}
}

// ended notes that a claim was ended by someone other than its worker.
func (e *events) ended(ref pawl.Ref) {
	e.other = append(e.other, pawl.Event{Kind: pawl.EventEnded, Queue: ref.Queue, Ref: ref})
}

func (e *events) add(more *events) {
	for queue, in := range more.ready {
		e.due(queue, in)
	}
	e.other = append(e.other, more.other...)
}

func (e *events) empty() bool { return len(e.ready) == 0 && len(e.other) == 0 }

func (e *events) all() []pawl.Event {
	all := make([]pawl.Event, 0, len(e.ready)+len(e.other))
	for queue, in := range e.ready {
		all = append(all, pawl.Event{Kind: pawl.EventReady, Queue: queue, In: in})
	}
	return append(all, e.other...)
}

// publish tells the watchers of this Store at once, and those of others through
// the server.
func (s *Store) publish(e *events) {
	for _, event := range e.all() {
		s.watch.send(event)
		s.note.add(event)
	}
}

// watchers are those who want to know. They share one listener.
type watchers struct {
	life   sync.Mutex // held while the listener is started or ended
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	all  map[*watcher]struct{}
	gone chan struct{} // closed by Close

	listening atomic.Bool
}

type watcher struct {
	events   chan pawl.Event
	overflow atomic.Bool
}

func (s *Store) watchEvents(ctx context.Context, f func(pawl.Event)) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	w := &watcher{events: make(chan pawl.Event, eventBuffer)}
	s.join(w)
	defer s.leave(w)
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

func (s *Store) join(w *watcher) {
	s.watch.life.Lock()
	defer s.watch.life.Unlock()
	s.watch.mu.Lock()
	if s.watch.all == nil {
		s.watch.all = make(map[*watcher]struct{})
	}
	s.watch.all[w] = struct{}{}
	first := len(s.watch.all) == 1
	s.watch.mu.Unlock()
	if !first || s.o.PollOnly {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.watch.cancel, s.watch.done = cancel, make(chan struct{})
	go s.listen(ctx, s.watch.done) // leave waits for it
}

func (s *Store) leave(w *watcher) {
	s.watch.life.Lock()
	defer s.watch.life.Unlock()
	s.watch.mu.Lock()
	delete(s.watch.all, w)
	last := len(s.watch.all) == 0
	s.watch.mu.Unlock()
	if last && !s.o.PollOnly {
		s.watch.cancel()
		<-s.watch.done
	}
}

func (w *watchers) any() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.all) > 0
}

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
