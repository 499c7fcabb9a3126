package mysql

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

// Limits of sharing inserts.
const (
	// maxFlights is how many inserts are under way before calls wait and share
	// the next one.
	maxFlights = 2
	// slowFlight is when an insert no longer counts: what holds it up should not
	// hold up others.
	slowFlight = 100 * time.Millisecond
	// lockPatience is how long a shared insert waits for a row of an open
	// transaction before its calls go on alone, on MySQL.
	lockPatience = 500 * time.Millisecond
	// drainTimeout bounds how long Close waits for calls that are under way.
	drainTimeout = 10 * time.Second
)

// enqueue lets single requests share inserts, those with unique keys among
// themselves: they may have to wait for one. All else goes alone.
func (s *Store) enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	switch {
	case len(reqs) == 0:
		return nil, nil
	case len(reqs) > 1 || s.o.BatchJobs == 1:
		return s.enqueueAlone(ctx, reqs)
	case isPlain(reqs[0]):
		return s.plain.enqueue(ctx, reqs)
	case keepsFirst(reqs[0]) && s.mariaDB: // which need not wait for a key
		return s.keyed.enqueue(ctx, reqs)
	}
	return s.enqueueAlone(ctx, reqs)
}

// groups lets the first calls insert at once, in their own goroutines. Those that
// come meanwhile wait, and share the next insert. So a single caller pays
// nothing, and many share the cost of their commits.
type groups struct {
	s   *Store
	ctx context.Context // of shared inserts; ends when Close has waited too long
	end context.CancelFunc
	all sync.WaitGroup // flights

	mu      sync.Mutex
	closed  bool
	flights int // under way that count
	waiting []*single
}

// single is a call that waits for a shared insert.
type single struct {
	ctx     context.Context
	reqs    []*pawl.Request // one
	receipt pawl.Receipt
	err     error
	done    chan struct{}
}

func (c *single) finish(receipts []pawl.Receipt, err error) {
	if err == nil {
		c.receipt = receipts[0]
	}
	c.err = err
	close(c.done)
}

func (g *groups) start(s *Store) {
	g.s = s
	g.ctx, g.end = context.WithCancel(context.Background())
}

// stop refuses new calls, and lets those that wait end.
func (g *groups) stop() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	late := time.AfterFunc(drainTimeout, g.end)
	defer late.Stop()
	g.all.Wait()
	g.end()
}

func (g *groups) enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	c, err := g.join(ctx, reqs)
	if err != nil {
		return nil, err
	}
	if c == nil {
		defer g.all.Done()
		defer g.depart()()
		return g.alone(ctx, reqs)
	}
	select {
	case <-c.done:
		if c.err != nil {
			return nil, c.err
		}
		return []pawl.Receipt{c.receipt}, nil
	case <-ctx.Done():
		g.leave(c)
		return nil, ctx.Err()
	}
}

// join returns nil if the call may insert at once, which then counts as a
// flight, or else waits.
func (g *groups) join(ctx context.Context, reqs []*pawl.Request) (*single, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, pawl.ErrClosed
	}
	if g.flights < maxFlights && len(g.waiting) == 0 {
		g.flights++
		g.all.Add(1)
		return nil, nil
	}
	c := &single{ctx: ctx, reqs: []*pawl.Request{copied(reqs[0])}, done: make(chan struct{})}
	g.waiting = append(g.waiting, c)
	return c, nil
}

// copied is a request that stays as it is when its call returns early, because
// its context ended, and the caller uses its memory again.
func copied(r *pawl.Request) *pawl.Request {
	c := *r
	c.Payload, c.Meta = slices.Clone(r.Payload), maps.Clone(r.Meta)
	return &c
}

// leave takes back a call that waits. If its insert has begun, that is brought
// to its end without it.
func (g *groups) leave(c *single) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = slices.DeleteFunc(g.waiting, func(w *single) bool { return w == c })
}

// depart begins a flight that is counted, and returns what ends it: the next one
// takes its place. A slow one is replaced before its end.
func (g *groups) depart() (arrive func()) {
	next := sync.OnceFunc(g.next)
	slow := time.AfterFunc(slowFlight, next)
	return func() {
		slow.Stop()
		next()
	}
}

// next gives the place of a flight to those who wait.
func (g *groups) next() {
	g.mu.Lock()
	defer g.mu.Unlock()
	batch := g.take()
	if len(batch) == 0 {
		g.flights--
		return
	}
	g.all.Go(func() {
		defer g.depart()()
		g.store(batch)
	})
}

// take takes as many calls as one insert may have, none with the ID of another:
// each is to have a receipt of its own.
func (g *groups) take() (batch []*single) {
	bytes, ids := 0, make(map[pawl.ID]struct{}, len(g.waiting))
	rest := g.waiting[:0]
	for _, c := range g.waiting {
		id, size := c.reqs[0].ID, len(c.reqs[0].Payload)
		_, twice := ids[id]
		full := len(batch) == g.s.o.BatchJobs || len(batch) > 0 && bytes+size > g.s.o.BatchBytes
		if twice || full {
			rest = append(rest, c)
			continue
		}
		ids[id] = struct{}{}
		bytes += size
		batch = append(batch, c)
	}
	clear(g.waiting[len(rest):])
	g.waiting = rest
	return batch
}

// store inserts a batch. If that waits for long, or the server refuses it, one of
// the calls may be to blame, so each goes on alone.
func (g *groups) store(batch []*single) {
	if len(batch) == 1 {
		g.storeOne(batch[0])
		return
	}
	receipts, err := g.share(batch)
	var unknown *commitError
	switch {
	case err == nil:
	case g.ctx.Err() != nil:
		err = cut(err)
	case errors.As(err, &unknown), isReadOnly(err), isLost(err):
		err = explain("shared insert", err)
	default:
		for _, c := range batch {
			g.all.Go(func() { g.storeOne(c) })
		}
		return
	}
	for i, c := range batch {
		c.finish(receipts[min(i, len(receipts)):], err)
	}
}

// share inserts a batch in one transaction. Only the insert is given up after
// lockPatience, never the commit: a call that goes on alone must not have been
// stored before.
func (g *groups) share(calls []*single) ([]pawl.Receipt, error) {
	reqs := make([]*pawl.Request, len(calls))
	for i, c := range calls {
		reqs[i] = c.reqs[0]
	}
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	e := newEnqueue(reqs)
	if g.s.mariaDB { // which does not wait
		return e.receipts, g.s.store(ctx, e, ctx.Err)
	}
	patience := time.AfterFunc(lockPatience, cancel)
	defer patience.Stop()
	err := g.s.store(ctx, e, func() error {
		patience.Stop()
		return ctx.Err()
	})
	return e.receipts, err
}

// storeOne inserts alone, for as long as the caller waits.
func (g *groups) storeOne(c *single) { c.finish(g.alone(c.ctx, c.reqs)) }

// alone is enqueueAlone that ends when Close has waited too long.
func (g *groups) alone(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	receipts, err := g.s.enqueueAlone(ctx, reqs)
	if err != nil && g.ctx.Err() != nil {
		err = cut(err)
	}
	return receipts, err
}

// cut is the error of an insert that Close has waited for too long: ErrClosed, but
// only if nothing can have been stored.
func cut(err error) error {
	if mayBeDone(err) {
		return fmt.Errorf("pawl/mysql: closed while an insert was under way: %v", err)
	}
	return errors.Join(pawl.ErrClosed, err)
}
