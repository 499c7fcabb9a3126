package redis

import (
	"bytes"
	"context"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/pawlq/pawl"
)

// Limits of sharing calls.
const (
	defaultBatchJobs  = 500
	defaultBatchBytes = 1 << 20
	maxShared         = 64 << 10 // payload bytes of a job that shares a call
	// maxFlights is how many shared calls of a lane are under way before others
	// wait and share the next one. The first ones go at once.
	maxFlights = 2
)

// A group lets callers that enqueue single jobs at the same time share calls. Whoever
// finds room starts a goroutine that makes calls for all that wait, so that the end of a
// context ends the call neither for its caller nor for the others. It ends when nobody waits,
// by the timeouts of the client.
type group struct {
	s     *Store
	jobs  int // in one shared call
	bytes int // of payload in one shared call, about
	mu    sync.Mutex
	lanes map[string]*lane // by tag on a cluster, else one
}

func newGroup(s *Store, jobs, bytes int) *group {
	g := &group{s: s, jobs: jobs, bytes: bytes, lanes: make(map[string]*lane)}
	if g.jobs <= 0 {
		g.jobs = defaultBatchJobs
	}
	if g.bytes <= 0 {
		g.bytes = defaultBatchBytes
	}
	return g
}

type lane struct {
	flights int
	idle    int // flights between two calls, which will see who waits
	waiting []*single
}

// A single is an Enqueue of one job.
type single struct {
	ctx     context.Context // of its caller
	req     *pawl.Request
	done    chan struct{} // closed when what follows is set
	receipt pawl.Receipt
	err     error
}

// shares reports whether a call may go with others: what can make the call fail
// for all, or holds it up, goes alone.
func shares(reqs []*pawl.Request) bool {
	return len(reqs) == 1 && reqs[0].MaxDepth <= 0 && len(reqs[0].Payload) <= maxShared
}

func (g *group) enqueue(ctx context.Context, req *pawl.Request) ([]pawl.Receipt, error) {
	if ctx.Done() != nil {
		req = owned(req)
	}
	c := &single{ctx: ctx, req: req, done: make(chan struct{})}
	key := ""
	if g.s.cluster {
		key = string(g.s.home(req))
	}
	l, leads := g.join(key, c)
	if leads {
		go g.fly(key, l)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if g.withdraw(l, c) {
			return nil, ctx.Err()
		}
		select {
		case <-c.done: // that too
		default:
			return nil, ctx.Err() // its call is under way, of unknown outcome
		}
	}
	return []pawl.Receipt{c.receipt}, c.err
}

// owned returns a copy that the caller does not change when it has left.
func owned(req *pawl.Request) *pawl.Request {
	req = new(*req)
	req.Payload, req.Meta = bytes.Clone(req.Payload), maps.Clone(req.Meta)
	return req
}

// join puts c in the lane, and reports whether there is room for one more that makes calls.
func (g *group) join(key string, c *single) (l *lane, leads bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l = g.lanes[key]
	if l == nil {
		l = new(lane)
		g.lanes[key] = l
	}
	l.waiting = append(l.waiting, c)
	if l.flights == maxFlights || l.idle > 0 {
		return l, false
	}
	l.flights++
	return l, true
}

// fly makes calls for those that wait until none do. Callers that the last call has woken
// are let go first: they may have more for the next one.
func (g *group) fly(key string, l *lane) {
	for batch := g.take(key, l, 0); len(batch) > 0; batch = g.take(key, l, 1) {
		g.call(l, batch)
		runtime.Gosched()
	}
}

// call makes a call for a batch. The end of one context must not end it for the others.
func (g *group) call(l *lane, batch []*single) {
	reqs := make([]*pawl.Request, len(batch))
	for i, c := range batch {
		reqs[i] = c.req
	}
	receipts, err := g.s.enqueueTogether(context.WithoutCancel(batch[0].ctx), reqs)
	g.rest(l)
	for i, c := range batch {
		if c.err = err; err == nil {
			c.receipt = receipts[i]
		}
		close(c.done)
	}
}

// rest counts a flight as idle, until it takes the next batch.
func (g *group) rest(l *lane) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.idle++
}

// take takes those for the next call off the lane for a flight that counts as idle so many
// times. With none the flight is over.
func (g *group) take(key string, l *lane, idle int) []*single {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.idle -= idle
	n, size := 0, 0
	for n < min(len(l.waiting), g.jobs) && size < g.bytes {
		size += len(l.waiting[n].req.Payload)
		n++
	}
	if n == 0 {
		if l.flights--; l.flights == 0 {
			delete(g.lanes, key)
		}
		return nil
	}
	batch := slices.Clone(l.waiting[:n])
	l.waiting = slices.Delete(l.waiting, 0, n)
	return batch
}

// withdraw takes c back, and reports whether no call for it is under way.
func (g *group) withdraw(l *lane, c *single) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(l.waiting, c)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	return i >= 0
}
