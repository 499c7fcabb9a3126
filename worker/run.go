package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawlq/pawl"
)

// Causes of the cancellation of a handler's context, as [context.Cause] returns
// them for it and all that derive from it; its Err is [context.Canceled] each
// time. A context whose claim was lost for another reason has a cause that
// matches [pawl.ErrLost] alone.
var (
	// ErrTimeout means that the run took longer than its timeout. It matches
	// [context.DeadlineExceeded].
	ErrTimeout error = &timeoutError{}

	// ErrStopping means that the pool stops and StopTimeout is over. A handler
	// that returns the context's error hands its job back unspent.
	ErrStopping = errors.New("worker: pool is stopping")

	// ErrCanceled means that someone canceled, deleted or took away the job. It
	// matches [pawl.ErrLost]: whatever the handler returns changes nothing.
	ErrCanceled = fmt.Errorf("worker: job was taken away while it ran: %w", pawl.ErrLost)
)

var errLease = fmt.Errorf("worker: lease could not be extended in time: %w", pawl.ErrLost)

type timeoutError struct{}

func (*timeoutError) Error() string        { return "worker: handler timed out" }
func (*timeoutError) Timeout() bool        { return true }
func (*timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// An instant is a reading of the monotonic clock, counted from the pool's
// making: cheap to read, compare and keep.
type instant time.Duration

const never = instant(1<<63 - 1)

// add returns t+d, or never if that is later than can be told.
func (t instant) add(d time.Duration) instant {
	if sum := t + instant(d); sum >= t {
		return sum
	}
	return never
}

func (t instant) sub(u instant) time.Duration { return time.Duration(t - u) }

type phase uint8

const (
	queued  phase = iota // claimed, waits for a slot
	running              // its handler runs
	ended                // its outcome waits to be settled, or is being settled
	gone                 // settled, lost, or given up
)

// A run is one claim in the hands of a pool. All fields but those the slot
// that runs it works on are guarded by Pool.mu; the zero prev and next mean
// that it is in no list.
type run struct {
	ref      pawl.Ref
	kindName string
	size     int     // bytes of payload
	turn     float64 // when it starts, in the virtual time of shares
	charged  *share  // the one that it counts for
	job      *pawl.Job
	kind     *kind
	group    *group
	ctx      *handlerContext
	stop     context.CancelCauseFunc

	prev, next *run // Pool.live
	phase      phase
	abandoned  bool // the handler was given up while it ran
	replaced   bool // another slot took the place of the abandoned one
	spare      bool // its slot was one too many when it was abandoned
	solo       bool // to be settled in a call of its own
	refused    bool // an outcome of it could not be stored
	ran        bool // its handler was called
	returned   bool // and has returned, but its outcome is still to be found out

	lease      time.Duration
	claimed    instant
	leaseUntil instant // by the local clock, some way before the storage's
	renewAt    instant
	started    instant
	took       time.Duration // when it has ended
	deadline   instant       // of the handler
	grace      instant       // when a cancelled handler is given up
	cause      error         // why the pool cancelled the context

	outcome pawl.Outcome
	failure error  // what OnError and OnBury are told
	untold  bool   // OnError is called when it is settled
	why     string // it handed its job back, if it is known
	exit    []byte // the stack at runtime.Goexit
	owed    int    // its part of Pool.owedBytes
	tries   int    // failed settles
	alone   int    // of them in a call of its own while others succeeded
	seen    int64  // Pool.succeeded at the last
	retryAt instant
}

// hold notes when the claim's lease, asked for at sent, ends and is to be
// extended. What is subtracted covers timers that fire late, so that a handler
// is told before the lease can be given away.
func (r *run) hold(sent instant, every time.Duration) {
	r.leaseUntil = sent.add(r.lease - r.lease/16)
	r.renewAt = sent.add(every)
}

// handlerContext is a run's context. It adds a deadline that needs no timer of
// its own, since the pool cancels it in time.
type handlerContext struct {
	context.Context
	claim    claim
	deadline instant // set before the handler starts
}

func (c *handlerContext) Deadline() (time.Time, bool) {
	if c.deadline == never {
		return time.Time{}, false
	}
	return c.claim.pool.epoch.Add(time.Duration(c.deadline)), true
}

func (c *handlerContext) Value(key any) any {
	if key == (claimKey{}) {
		return &c.claim
	}
	return c.Context.Value(key)
}

// A runList is a doubly linked list of runs.
type runList struct {
	head run // a sentinel
	n    int
}

func (l *runList) init() { l.head.prev, l.head.next = &l.head, &l.head }

func (l *runList) add(r *run) {
	r.prev, r.next = l.head.prev, &l.head
	r.prev.next, l.head.prev = r, r
	l.n++
}

func (l *runList) remove(r *run) {
	r.prev.next, r.next.prev = r.next, r.prev
	r.prev, r.next = nil, nil
	l.n--
}

func (l *runList) all(yield func(*run) bool) {
	for r := l.head.next; r != &l.head; {
		next := r.next // r may be removed meanwhile
		if !yield(r) {
			return
		}
		r = next
	}
}

// A fifo is a queue of runs.
type fifo struct {
	items []*run
	head  int
}

func (f *fifo) len() int { return len(f.items) - f.head }

func (f *fifo) first() *run { return f.items[f.head] }

func (f *fifo) push(r *run) { f.items = append(f.items, r) }

func (f *fifo) pop() *run {
	r := f.items[f.head]
	f.items[f.head] = nil
	f.head++
	switch {
	case f.head == len(f.items):
		f.items, f.head = f.items[:0], 0
	case f.head >= 1024 && f.head > len(f.items)/2:
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	return r
}

// take removes the runs that match and returns them.
func (f *fifo) take(match func(*run) bool) (taken []*run) {
	kept := f.items[:0]
	for _, r := range f.items[f.head:] {
		if match(r) {
			taken = append(taken, r)
		} else {
			kept = append(kept, r)
		}
	}
	clear(f.items[len(kept):])
	f.items, f.head = kept, 0
	return taken
}
