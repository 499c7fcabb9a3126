package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
)

// Limits of the writer.
const (
	// busyPause to busyPauseMax is how long it sleeps before it asks for the
	// write lock again. SQLite's own busy handler sleeps up to 100 ms and
	// starves one of two processes that write all the time.
	busyPause    = 100 * time.Microsecond
	busyPauseMax = 2 * time.Millisecond
	// lookAround is how often it looks for contexts that ended while it waits.
	lookAround = 5 * time.Millisecond
	// graceWait is the shortest wait for the write lock after which leases get
	// a grace: heartbeats may have been held up too. A commit of another
	// process is shorter.
	graceWait = 50 * time.Millisecond
	// connWait is how long it waits for a connection of the pool at a time.
	connWait = 100 * time.Millisecond
	// sharedPoll multiplies the poll interval if the pool has no connection
	// for the writer alone.
	sharedPoll = 10
	// writerCache is the page cache of its connection to a file of ours in KiB,
	// instead of SQLite's 2,000: the ends of all indexes and of the table stay
	// in memory from commit to commit.
	writerCache = 16 << 10
	// quietPolls looks in vain make the interval quietFactor times as long.
	quietPolls  = 200
	quietFactor = 6
)

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
	taken   atomic.Bool // by the writer, or by a caller that gave up
	err     error
	done    chan struct{}
}

func (r *request) finish(err error) {
	r.err = err
	close(r.done)
}

// grace remembers the last long wait for the write lock, by the storage's
// clock.
type grace struct{ from, to int64 }

// writer is the one goroutine that writes. Whatever calls come while it
// commits join the next commit.
type writer struct {
	s      *Store
	ctx    context.Context // never ends: what is begun is brought to its end
	wake   chan struct{}
	closed chan struct{} // closed when the loop has ended

	mu      sync.Mutex
	queue   []*request
	closing bool

	stale atomic.Bool // a transaction has ended since the last look

	// Of the loop alone.
	run     *prepared
	version int64 // data_version of run
	changes int64 // total_changes of run, when it is shared
	timeout int64 // busy_timeout that run came with
	grace   grace
	failed  bool // the connection is to be replaced
	quiet   int  // polls since anything has happened
}

// do runs a request in the next commit and waits for it. If ctx ends before
// the request's turn has come, nothing is done.
func (w *writer) do(r *request) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	r.done = make(chan struct{})
	w.mu.Lock()
	if w.closing {
		w.mu.Unlock()
		return pawl.ErrClosed
	}
	w.queue = append(w.queue, r)
	w.mu.Unlock()
	w.nudge()
	select {
	case <-r.done:
		return r.err
	case <-r.ctx.Done():
		if r.taken.CompareAndSwap(false, true) {
			return r.ctx.Err()
		}
		<-r.done
		return r.err
	}
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

// close lets the loop write what is waiting and waits for its end.
func (w *writer) close() {
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	w.nudge()
	<-w.closed
}

func (w *writer) loop() {
	defer close(w.closed)
	for {
		group, more := w.next()
		if !more {
			break
		}
		if len(group) == 0 {
			w.poll()
			continue
		}
		w.commit(group)
	}
	w.letGo()
}

// next waits for requests and takes as many as one commit may hold. An empty
// group means that it is time to look for the changes of others.
func (w *writer) next() (group []*request, more bool) {
	for {
		group, closing := w.take()
		if len(group) > 0 || closing {
			return group, len(group) > 0
		}
		if w.stale.Swap(false) {
			return nil, true
		}
		if !w.s.watch.any() {
			<-w.wake
			continue
		}
		timer := time.NewTimer(w.pollInterval())
		select {
		case <-w.wake:
			timer.Stop()
		case <-timer.C:
			w.quiet++
			return nil, true
		}
	}
}

// pollInterval is the time between two looks; it is longer when nothing has
// happened for some time, so that an idle process costs little.
func (w *writer) pollInterval() time.Duration {
	d := w.s.o.PollInterval
	if w.s.shared() {
		d *= sharedPoll
	}
	if w.quiet >= quietPolls {
		d *= quietFactor
	}
	return d
}

func (w *writer) take() (group []*request, closing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, jobs, bytes := 0, 0, 0
	for n < len(w.queue) && (n == 0 || jobs < w.s.o.BatchJobs && bytes < w.s.o.BatchBytes) {
		jobs += max(w.queue[n].jobs, 1)
		bytes += w.queue[n].bytes
		n++
	}
	group = w.queue[:n:n]
	w.queue = w.queue[n:]
	return group, w.closing
}

// commit runs a group of requests in one transaction. If the transaction fails
// as a whole, each request gets one of its own, so that they share no fate.
func (w *writer) commit(group []*request) {
	group = w.claimed(group)
	sort.SliceStable(group, func(i, j int) bool { return group[i].class < group[j].class })
	live := w.begin(group)
	if len(live) == 0 {
		return
	}
	errs, err := w.try(live)
	if err != nil && len(live) > 1 {
		for _, r := range live {
			if w.begin([]*request{r}) == nil {
				continue
			}
			own, err := w.try([]*request{r})
			if err == nil {
				err = own[0]
			}
			r.finish(err)
		}
		return
	}
	for i, r := range live {
		if err == nil {
			r.finish(errs[i])
		} else {
			r.finish(err)
		}
	}
}

// claimed leaves out the requests whose callers have given up.
func (w *writer) claimed(group []*request) []*request {
	live := group[:0:len(group)]
	for _, r := range group {
		if r.taken.CompareAndSwap(false, true) {
			live = append(live, r)
		}
	}
	return alive(live)
}

// alive finishes the requests whose context has ended and returns the others.
func alive(group []*request) []*request {
	live := group[:0:len(group)]
	for _, r := range group {
		if err := r.ctx.Err(); err != nil {
			r.finish(err)
		} else {
			live = append(live, r)
		}
	}
	return live
}

// begin takes the write lock for those requests of the group whose context
// lasts until then, and returns them. The others are finished.
func (w *writer) begin(group []*request) []*request {
	var held time.Time // since when it is known that others hold the file
	if group, held = w.takeTurn(group); len(group) == 0 {
		return nil
	}
	for ; len(group) > 0; group = alive(group) {
		err := w.connect()
		if err == nil {
			_, err = w.run.exec(w.ctx, begin)
		}
		if err == nil {
			w.began(held)
			return group
		}
		if !isBusy(err) && !errors.Is(err, context.DeadlineExceeded) {
			w.failed = w.run != nil
			for _, r := range group {
				r.finish(err)
			}
			break
		}
		if held.IsZero() {
			held = time.Now()
		}
		pause(time.Since(held))
	}
	w.endTurn()
	return nil
}

// pause sleeps between two attempts to take the write lock.
func pause(waited time.Duration) {
	d := min(busyPause+waited/128, busyPauseMax)
	time.Sleep(d + rand.N(2*d))
}

// takeTurn waits until no transaction of this process writes, and says since
// when one did. The turn is the writer's if any request is left.
func (w *writer) takeTurn(group []*request) (left []*request, held time.Time) {
	if len(group) == 0 {
		return nil, held
	}
	select {
	case w.s.turn <- struct{}{}:
		return group, held
	default:
	}
	held = time.Now()
	tick := time.NewTicker(lookAround)
	defer tick.Stop()
	for len(group) > 0 {
		select {
		case w.s.turn <- struct{}{}:
			return group, held
		case <-tick.C:
			group = alive(group)
		}
	}
	return nil, held
}

func (w *writer) endTurn() {
	if w.s.shared() || w.failed {
		w.letGo()
	}
	<-w.s.turn
}

// began notes what follows from having the write lock, which others had held
// since then, if at all.
func (w *writer) began(held time.Time) {
	if waited := time.Since(held); !held.IsZero() && waited >= graceWait {
		now := w.s.now()
		w.grace = grace{from: now - waited.Microseconds(), to: now}
	}
	w.look()
}

// try runs the requests and commits. errs are the requests' own; err means
// that nothing was written.
func (w *writer) try(group []*request) (errs []error, err error) {
	defer w.endTurn()
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
	w.quiet = 0
	w.s.watch.publish(b)
	if last := group[len(group)-1]; last.class == classSweep {
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

// connect makes sure that there is a connection. It waits for one only so long
// that contexts that end meanwhile are noticed.
func (w *writer) connect() error {
	if w.run != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(w.ctx, connWait)
	defer cancel()
	conn, err := w.s.db.Conn(ctx)
	if err != nil {
		return err
	}
	setImpatient(conn, true) // for good: a connection of ours is never given back
	w.failed = false
	w.run = newPrepared(conn)
	if w.s.own {
		_, err = w.run.exec(w.ctx, &statement{fmt.Sprintf("PRAGMA cache_size = -%d", writerCache)})
		return err // it came with no busy_timeout
	}
	if w.timeout, err = number(w.ctx, w.run, busyTimeout); err == nil {
		_, err = number(w.ctx, w.run, noBusyTimeout)
	}
	return err
}

// letGo gives the connection back as it was, or throws it away if it failed.
func (w *writer) letGo() {
	if w.run == nil {
		return
	}
	w.changes, _ = number(w.ctx, w.run, totalChanges)
	w.run.close()
	conn := w.run.conn
	if w.failed {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // so the pool throws it away
	} else {
		_, _ = conn.ExecContext(w.ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", w.timeout))
	}
	_ = conn.Close()
	w.run = nil
}

// poll looks for changes by others while there is nothing to write.
func (w *writer) poll() {
	select {
	case w.s.turn <- struct{}{}:
	default:
		return // someone of this process is writing and will say so
	}
	if w.connect() == nil {
		w.look()
	}
	w.endTurn()
}

// look tells watchers if another connection has changed the file. SQLite's
// data_version changes with every commit but the connection's own; if it is
// shared with the caller, those are told by the number of changes.
func (w *writer) look() {
	if !w.s.watch.any() {
		return
	}
	version, err := number(w.ctx, w.run, dataVersion)
	if err != nil {
		return // the next statement will tell
	}
	changes := w.changes
	if w.s.shared() {
		changes, _ = number(w.ctx, w.run, totalChanges)
	}
	if version != w.version || changes != w.changes {
		w.quiet = 0
		w.version, w.changes = version, changes
		w.s.watch.send(pawl.Event{Kind: pawl.EventReady})
	}
}
