package redis

import (
	"context"
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

// A group lets callers that enqueue single jobs at the same time share calls. The
// callers themselves make them: whoever finds room makes the next call for all
// that wait, so there is no goroutine that could be left.
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
	waiting []*single
}

// A single is an Enqueue of one job.
type single struct {
	req     *pawl.Request
	lead    chan struct{} // has a token when it is to make the next call
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
	c := &single{req: req, lead: make(chan struct{}, 1), done: make(chan struct{})}
	key := ""
	if g.s.cluster {
		key = string(g.s.home(req))
	}
	l := g.join(key, c)
	over := ctx.Done()
	for {
		select {
		case <-c.done:
			g.passOn(key, l, c)
			return []pawl.Receipt{c.receipt}, c.err
		case <-c.lead:
			g.fly(ctx, key, l)
		case <-over:
			if g.withdraw(key, l, c) {
				return nil, ctx.Err()
			}
			over = nil // the call is under way and will end
		}
	}
}

// join puts c in the lane, and in the lead if there is room for one more call.
func (g *group) join(key string, c *single) *lane {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.lanes[key]
	if l == nil {
		l = new(lane)
		g.lanes[key] = l
	}
	l.waiting = append(l.waiting, c)
	if l.flights < maxFlights {
		l.flights++
		c.lead <- struct{}{}
	}
	return l
}

// fly makes a call for those that wait, and hands the lead on. The end of the
// leader's context must not end the call for the others.
func (g *group) fly(ctx context.Context, key string, l *lane) {
	batch := g.take(l)
	if len(batch) > 0 {
		reqs := make([]*pawl.Request, len(batch))
		for i, c := range batch {
			reqs[i] = c.req
		}
		receipts, err := g.s.enqueueTogether(context.WithoutCancel(ctx), reqs)
		for i, c := range batch {
			if c.err = err; err == nil {
				c.receipt = receipts[i]
			}
			close(c.done)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next(key, l)
}

func (g *group) take(l *lane) []*single {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, size := 0, 0
	for n < min(len(l.waiting), g.jobs) && size < g.bytes {
		size += len(l.waiting[n].req.Payload)
		n++
	}
	batch := slices.Clone(l.waiting[:n])
	l.waiting = slices.Delete(l.waiting, 0, n)
	return batch
}

// next hands the lead to one that waits for it, or gives it up. The lock is held.
func (g *group) next(key string, l *lane) {
	for _, c := range l.waiting {
		select {
		case c.lead <- struct{}{}:
			return
		default: // it has another lead already
		}
	}
	if l.flights--; l.flights == 0 {
		delete(g.lanes, key)
	}
}

// passOn hands on a lead that c has no more use for.
func (g *group) passOn(key string, l *lane, c *single) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-c.lead:
		g.next(key, l)
	default:
	}
}

// withdraw takes c back, unless its call is under way.
func (g *group) withdraw(key string, l *lane, c *single) bool {
	g.mu.Lock()
	i := slices.Index(l.waiting, c)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	g.mu.Unlock()
	if i < 0 {
		return false
	}
	g.passOn(key, l, c)
	return true
}
