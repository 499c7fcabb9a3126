package mysql

import (
	"context"
	"database/sql"
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
	w.events <- pawl.Event{Kind: pawl.EventReady} // for what was before
	ctx, stop := context.WithCancel(ctx)
	var poll sync.WaitGroup
	defer poll.Wait()
	defer stop()
	if s.o.PollInterval > 0 {
		poll.Go(func() { s.poll(ctx, w) })
	}
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

// Limits of polling.
const (
	slowest     = 10              // times the poll interval, while nothing happens
	pollTimeout = 5 * time.Second // of one look: the pool may be busy
)

// poll looks for jobs that others have enqueued, which have larger numbers than
// any before. It can't see what a transaction enqueues that is committed after a
// later one: workers find that when they poll.
func (s *Store) poll(ctx context.Context, w *watcher) {
	interval, last := s.o.PollInterval, int64(-1)
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		newest, err := s.newest(ctx)
		switch {
		case err == nil && newest > last && last >= 0:
			w.send(pawl.Event{Kind: pawl.EventReady})
			interval = s.o.PollInterval
		default:
			interval = min(interval+interval/4, slowest*s.o.PollInterval)
		}
		if err == nil {
			last = max(last, newest) // the newest may have gone
		}
		timer.Reset(interval)
	}
}

func (s *Store) newest(ctx context.Context) (n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	err = s.onConn(ctx, func(c *sql.Conn) (err error) {
		b := s.newBatch(ctx, c)
		n, err = b.number(b.sql("SELECT MAX(seq) FROM pawl_job"))
		return err
	})
	return n, err
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

func (w *watcher) send(e pawl.Event) {
	select {
	case w.events <- e:
	default:
		w.overflow.Store(true)
	}
}

// publish tells what a committed batch has done.
func (w *watchers) publish(e *events) {
	if w.n.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.all {
		for queue, in := range e.ready {
			one.send(pawl.Event{Kind: pawl.EventReady, Queue: queue, In: time.Duration(in) * time.Microsecond})
		}
		for _, o := range e.other {
			one.send(o)
		}
	}
}
