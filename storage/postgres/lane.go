package postgres

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

// lane lets the first calls insert at once, in their own goroutines. Those that
// come meanwhile wait, and share the next insert. So a single caller pays
// nothing, and many share the cost of their commits.
type lane struct {
	s      *Store
	sorted bool // inserts in order of key, so that no two wait for each other

	mu      sync.Mutex
	closed  bool
	flights int // under way that count
	waiting []*single
}

// single is a call that waits in a lane.
type single struct {
	ctx     context.Context
	reqs    []*pawl.Request // one
	receipt pawl.Receipt
	err     error
	done    chan struct{}
}

func (c *single) finish(receipt pawl.Receipt, err error) {
	c.receipt, c.err = receipt, err
	close(c.done)
}

func (l *lane) enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	c, err := l.join(ctx, reqs)
	if err != nil {
		return nil, err
	}
	if c == nil {
		defer l.s.group.flights.Done()
		defer l.depart()()
		return l.s.group.alone(ctx, reqs)
	}
	select {
	case <-c.done:
		if c.err != nil {
			return nil, c.err
		}
		return []pawl.Receipt{c.receipt}, nil
	case <-ctx.Done():
		l.leave(c)
		return nil, ctx.Err()
	}
}

// join returns nil if the call may insert at once, which then counts as a
// flight, or else waits.
func (l *lane) join(ctx context.Context, reqs []*pawl.Request) (*single, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, pawl.ErrClosed
	}
	if l.flights < maxFlights && len(l.waiting) == 0 {
		l.flights++
		l.s.group.flights.Add(1)
		return nil, nil
	}
	c := &single{ctx: ctx, reqs: []*pawl.Request{copied(reqs[0])}, done: make(chan struct{})}
	l.waiting = append(l.waiting, c)
	return c, nil
}

// copied is a request that its caller can't change any more, who may leave
// before it is inserted.
func copied(r *pawl.Request) *pawl.Request {
	c := *r
	c.Payload, c.Meta = bytes.Clone(r.Payload), maps.Clone(r.Meta)
	return &c
}

// leave takes back a call that waits. If its insert has begun, that is brought
// to its end without it.
func (l *lane) leave(c *single) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = slices.DeleteFunc(l.waiting, func(w *single) bool { return w == c })
}

func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// depart begins a flight that is counted, and returns what ends it: the next one
// takes its place. A slow one is replaced before its end.
func (l *lane) depart() (arrive func()) {
	next := sync.OnceFunc(l.next)
	slow := time.AfterFunc(slowFlight, next)
	return func() {
		slow.Stop()
		next()
	}
}

// next gives the place of a flight to those who wait.
func (l *lane) next() {
	l.mu.Lock()
	defer l.mu.Unlock()
	batch := l.take()
	if len(batch) == 0 {
		l.flights--
		return
	}
	l.s.group.flights.Go(func() {
		defer l.depart()()
		l.store(batch)
	})
}

// take takes as many calls as one insert may have, none with the ID of another:
// an insert could not tell which of them was first.
func (l *lane) take() (batch []*single) {
	bytes, ids := 0, make(map[pawl.ID]struct{}, len(l.waiting))
	rest := l.waiting[:0]
	for _, c := range l.waiting {
		id, size := c.reqs[0].ID, len(c.reqs[0].Payload)
		_, twice := ids[id]
		full := len(batch) == l.s.o.BatchJobs || len(batch) > 0 && bytes+size > l.s.o.BatchBytes
		if twice || full {
			rest = append(rest, c)
			continue
		}
		ids[id] = struct{}{}
		bytes += size
		batch = append(batch, c)
	}
	clear(l.waiting[len(rest):])
	l.waiting = rest
	if l.sorted {
		slices.SortStableFunc(batch, func(a, b *single) int { return compareKeys(a.reqs[0], b.reqs[0]) })
	}
	return batch
}

func compareKeys(a, b *pawl.Request) int {
	if c := strings.Compare(a.Queue, b.Queue); c != 0 {
		return c
	}
	return strings.Compare(a.UniqueKey, b.UniqueKey)
}
