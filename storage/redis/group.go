package redis

import (
	"bytes"
	"context"
	"maps"
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

// A group lets callers that enqueue single jobs at the same time share calls.
// Whoever finds room makes the next call for all that wait; if its context can end,
// which must end the call neither for itself nor for the others, in a goroutine that
// ends by the timeouts of the client.
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
	over := ctx.Done()
	if over != nil {
		req = owned(req)
	}
	c := &single{req: req, lead: make(chan struct{}, 1), done: make(chan struct{})}
	key := ""
	if g.s.cluster {
		key = string(g.s.home(req))
	}
	l := g.join(key, c)
	for {
		select {
		case <-c.done:
			g.passOn(key, l, c)
			return []pawl.Receipt{c.receipt}, c.err
		case <-c.lead:
			batch := g.take(l)
			if over == nil || len(batch) == 0 {
				g.fly(ctx, key, l, batch)
			} else {
				go g.fly(ctx, key, l, batch)
			}
		case <-over:
			g.withdraw(key, l, c)
			select {
			case <-c.done: // that too
				return []pawl.Receipt{c.receipt}, c.err
			default:
				return nil, ctx.Err() // if its call is under way, of unknown outcome
			}
		}
	}
}

// owned returns a copy that the caller does not change when it has left.
func owned(req *pawl.Request) *pawl.Request {
	req = new(*req)
	req.Payload, req.Meta = bytes.Clone(req.Payload), maps.Clone(req.Meta)
	return req
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

// fly makes a call for those of batch, and hands the lead on. The end of the
// leader's context must not end the call for the others.
func (g *group) fly(ctx context.Context, key string, l *lane, batch []*single) {
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

// take takes those for the next call off the lane.
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

// withdraw takes c back, if its call is not under way, and its lead.
func (g *group) withdraw(key string, l *lane, c *single) {
	g.mu.Lock()
	if i := slices.Index(l.waiting, c); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	g.mu.Unlock()
	g.passOn(key, l, c)
}
