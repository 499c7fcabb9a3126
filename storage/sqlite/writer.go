package sqlite

import (
	"container/list"
	"context"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
)

// closeWait is how long calls that were under way when the Store closes wait
// for the file: the transaction that has it may be one that was forgotten, or
// the one that closes the Store.
const closeWait = 10 * time.Second

// class orders the requests of a group: what ends or keeps claims goes first,
// so that a sweep never takes a job whose extension came with it.
type class int

const (
	classSettle class = iota
	classEnqueue
	classChange
	classClaim
	classSweep
)

// request is one call that waits for the writer.
type request struct {
	ctx     context.Context
	class   class
	jobs    int
	bytes   int
	enqueue *enqueueCall // or else
	run     func(*batch) error
	place   *list.Element // in the queue; nil once the writer has it or its caller has given up
	err     error
	done    chan struct{}
}

func (r *request) finish(err error) {
	r.err = err
	close(r.done)
}

// writer is the one goroutine that writes. Whatever calls come while it
// commits join the next commit.
type writer struct {
	s      *Store
	ctx    context.Context // never ends: what is begun is brought to its end
	wake   chan struct{}
	late   chan struct{} // closed when Close has waited for closeWait
	closed chan struct{} // closed when the loop has ended

	mu      sync.Mutex
	queue   list.List // of *request, in order of arrival
	closing bool

	stale  atomic.Bool // a transaction has ended since the last look
	delays delays

	// Of the loop alone.
	run     *prepared
	log     walFile
	guard   guard
	version int64 // data_version of run
	changes int64 // total_changes of run, when it is shared
	timeout int64 // busy_timeout that run came with
	grace   grace
	wall    int64 // the clocks at the last commit
	steady  time.Duration
	failed  bool // the connection is to be replaced
	quiet   int  // polls since anything has happened
}

// do runs a request in the next commit and waits for it. If ctx ends before
// that has begun, nothing is done.
func (w *writer) do(r *request) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	r.done = make(chan struct{})
	if !w.add(r) {
		return pawl.ErrClosed
	}
	w.nudge()
	select {
	case <-r.done:
		return r.err
	case <-r.ctx.Done():
		if w.giveUp(r) {
			return r.ctx.Err()
		}
		<-r.done
		return r.err
	}
}

func (w *writer) add(r *request) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing {
		return false
	}
	r.place = w.queue.PushBack(r)
	return true
}

// giveUp takes a request back, unless its commit has begun.
func (w *writer) giveUp(r *request) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.place == nil {
		return false
	}
	w.queue.Remove(r.place)
	r.place = nil
	w.nudge() // it may be the last that waited
	return true
}

// lookSoon makes the loop look for the changes of others.
func (w *writer) lookSoon() {
	if w.s.watch.any() {
		w.stale.Store(true)
		w.nudge()
	}
}

func (w *writer) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// close lets the loop write what is waiting, if that can be within closeWait,
// and waits for its end.
func (w *writer) close() {
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	timer := time.AfterFunc(closeWait, func() { close(w.late) })
	defer timer.Stop()
	w.nudge()
	<-w.closed
}

func (w *writer) loop() {
	defer close(w.closed)
	defer w.letGo()
	defer w.guard.close()
	for {
		switch waiting, closing := w.state(); {
		case waiting:
			w.serve()
		case closing:
			return
		case w.sleep():
			w.poll()
		}
	}
}

func (w *writer) state() (waiting, closing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.queue.Len() > 0, w.closing
}

func (w *writer) waiting() bool {
	waiting, _ := w.state()
	return waiting
}

// serve writes what waits. The requests are taken when the file is ours, so
// that all that came until then share the commit, and those whose callers have
// given up are not among them.
func (w *writer) serve() {
	err := w.start(w.waiting)
	if err == errUnwanted {
		return
	}
	group := w.take()
	if err != nil {
		finishAll(group, err)
		return
	}
	errs, err := w.try(group)
	w.endTurn()
	if err != nil && len(group) > 1 {
		w.serveEach(group)
		return
	}
	for i, r := range group {
		if err != nil {
			r.finish(err)
		} else {
			r.finish(errs[i])
		}
	}
}

// serveEach gives each request of a transaction that has failed one of its
// own, so that they share no fate.
func (w *writer) serveEach(group []*request) {
	for _, r := range group {
		r.finish(w.serveOne(r))
	}
}

func (w *writer) serveOne(r *request) error {
	stop := context.AfterFunc(r.ctx, w.nudge)
	defer stop()
	err := w.start(func() bool { return r.ctx.Err() == nil })
	if err == errUnwanted {
		return r.ctx.Err()
	}
	if err != nil {
		return err
	}
	defer w.endTurn()
	errs, err := w.try([]*request{r})
	if err != nil {
		return err
	}
	return errs[0]
}

func finishAll(group []*request, err error) {
	for _, r := range group {
		r.finish(err)
	}
}

// take takes as many requests as one commit may hold, those that end or keep
// claims first.
func (w *writer) take() (group []*request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	jobs, bytes := 0, 0
	for e := w.queue.Front(); e != nil; e = w.queue.Front() {
		if len(group) > 0 && (jobs >= w.s.o.BatchJobs || bytes >= w.s.o.BatchBytes) {
			break
		}
		r := w.queue.Remove(e).(*request)
		r.place = nil
		jobs += max(r.jobs, 1)
		bytes += r.bytes
		group = append(group, r)
	}
	sort.SliceStable(group, func(i, j int) bool { return group[i].class < group[j].class })
	return group
}

// try runs the requests and commits. errs are the requests' own; err means
// that nothing was written.
func (w *writer) try(group []*request) (errs []error, err error) {
	b := &batch{ctx: w.ctx, run: w.run, q: w.s.q, now: w.s.now(), grace: w.grace}
	errs, err = b.runAll(group)
	if err == nil {
		err = b.storeFence()
	}
	if err == nil {
		_, err = b.run.exec(b.ctx, commit)
	}
	if err != nil {
		// After some errors SQLite has rolled back already.
		if _, undo := b.run.exec(b.ctx, rollback); undo != nil && code(undo) != codeError {
			w.failed = true
		}
		return nil, err
	}
	w.s.watch.publish(b)
	if n := len(group); n > 0 && group[n-1].class == classSweep {
		w.shrinkWAL()
	}
	return errs, nil
}

// runAll runs the requests of one transaction, enqueues together.
func (b *batch) runAll(group []*request) ([]error, error) {
	errs := make([]error, len(group))
	for i := 0; i < len(group); i++ {
		if group[i].enqueue != nil {
			n := i
			for n < len(group) && group[n].enqueue != nil {
				n++
			}
			if err := b.enqueueAll(group[i:n], errs[i:n]); err != nil {
				return nil, err
			}
			i = n - 1
			continue
		}
		b.waiting = nil
		err := group[i].run(b)
		if err != nil && !ours(err) {
			return nil, err
		}
		errs[i] = err
	}
	return errs, nil
}
