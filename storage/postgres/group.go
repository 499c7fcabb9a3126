package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
)

// Limits of sharing inserts.
const (
	defaultBatchJobs  = 1000
	defaultBatchBytes = 8 << 20
	// maxFlights is how many inserts of a lane are under way before calls wait
	// and share the next one.
	maxFlights = 2
	// slowFlight is when an insert no longer counts: what holds it up should not
	// hold up others.
	slowFlight = 100 * time.Millisecond
	// lockPatience is how long an enqueue waits for another transaction before it
	// gives its connection back, and a shared one is split. Then it pauses, up
	// to maxLockPause, and tries again.
	lockPatience = 25 * time.Millisecond
	maxLockPause = 250 * time.Millisecond
	// flightTimeout bounds a shared insert, for which nobody may wait any more, from
	// when it has a connection.
	flightTimeout = 30 * time.Second
	// drainTimeout bounds how long Close waits for calls that are under way.
	drainTimeout = 10 * time.Second
)

// enqueue sends a single request through the lanes that share inserts, and all
// else on its way alone: what takes the lock of a limit of depth should not hold
// it for others too.
func (s *Store) enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	if len(reqs) == 0 {
		return nil, nil
	}
	if len(reqs) > 1 || reqs[0].MaxDepth > 0 || s.o.BatchJobs == 1 {
		return s.enqueueAlone(ctx, reqs)
	}
	if reqs[0].UniqueKey != "" {
		return s.group.keyed.enqueue(ctx, reqs)
	}
	return s.group.plain.enqueue(ctx, reqs)
}

// enqueueAlone stores the requests of one call. Where it meets a lock that
// another transaction keeps, it waits for that without a connection.
func (s *Store) enqueueAlone(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	for wait := lockPatience; ; wait = min(2*wait, maxLockPause) {
		receipts, err := s.tryEnqueue(ctx, reqs)
		if code(err) != codeLocked {
			return receipts, err
		}
		sleep(ctx, wait/2+rand.N(wait))
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// tryEnqueue is enqueueAlone that fails with codeLocked. A single request that is
// new takes one statement.
func (s *Store) tryEnqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	e := s.newEnqueue(ctx, reqs)
	var rest []int
	var err error
	whole := !e.plain && (len(reqs) > 1 || reqs[0].MaxDepth > 0)
	if !whole {
		rest, err = e.first(native{q: s.pool})
	}
	if err == nil && (whole || len(rest) > 0) {
		err = s.inTx(ctx, func(run runner) error {
			e.run = run
			return e.all()
		})
	}
	if err != nil {
		return nil, err
	}
	s.publish(&e.events)
	return e.receipts, nil
}

// first stores, in a transaction of its own, all requests whose IDs and keys are
// free, and returns the places of those that are to be looked at.
func (e *enqueue) first(run runner) (rest []int, err error) {
	e.run, e.single = run, true
	defer func() { e.single = false }()
	err = retry(e.ctx, func() (err error) {
		rest, err = e.insert(e.reqs)
		return err
	})
	if err != nil {
		return nil, err
	}
	return e.sort(rest), nil
}

// groups are the lanes of a Store. Keyed requests, which may have to wait for a
// key, have their own.
type groups struct {
	plain, keyed lane
	ctx          context.Context // of shared inserts; ends when Close has waited too long
	cancel       context.CancelFunc
	timeout      time.Duration // flightTimeout
	flights      sync.WaitGroup
}

func (g *groups) start(s *Store) {
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.plain.s, g.keyed.s, g.keyed.sorted, g.timeout = s, s, true, flightTimeout
}

// stop refuses new calls, and lets those that wait end.
func (g *groups) stop() {
	g.plain.close()
	g.keyed.close()
	late := time.AfterFunc(drainTimeout, g.cancel)
	defer late.Stop()
	g.flights.Wait()
	g.cancel()
}

// store inserts a batch without waiting for other transactions. One that the
// server refuses is split until what it refuses is alone.
func (l *lane) store(batch []*single) {
	if len(batch) == 1 {
		l.storeOne(batch[0])
		return
	}
	e := l.s.newEnqueue(l.s.group.ctx, requests(batch))
	rest, err := e.first(flight{l.s.pool, l.s.group.timeout})
	if err != nil {
		l.failed(batch, err, l.store)
		return
	}
	l.s.publish(&e.events)
	held := make([]*single, 0, len(rest))
	for i, c := range batch {
		if len(held) < len(rest) && rest[len(held)] == i {
			held = append(held, c)
			continue
		}
		c.finish(e.receipts[i], nil)
	}
	l.storeHeld(held)
}

// flight runs each statement on a connection for which it waits as long as it
// must, and bounds the statement alone: a program may use up its pool for long.
type flight struct {
	pool    *pgxpool.Pool
	timeout time.Duration
}

func (f flight) exec(ctx context.Context, sql string, args ...any) error {
	return f.on(ctx, func(ctx context.Context, run native) error { return run.exec(ctx, sql, args...) })
}

func (f flight) each(ctx context.Context, read func(scanner) error, sql string, args ...any) error {
	return f.on(ctx, func(ctx context.Context, run native) error { return run.each(ctx, read, sql, args...) })
}

func (f flight) on(ctx context.Context, do func(ctx context.Context, run native) error) error {
	return f.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, f.timeout)
		defer cancel()
		return do(ctx, native{q: conn})
	})
}

// storeHeld looks at calls whose ID or key is there, in one transaction that
// waits for no other one.
func (l *lane) storeHeld(batch []*single) {
	if len(batch) <= 1 {
		l.apart(batch)
		return
	}
	var e *enqueue
	err := l.inTx(func(ctx context.Context, run runner) error {
		e = l.s.newEnqueue(ctx, requests(batch))
		e.run = run
		if err := run.exec(ctx, setLockTimeout, lockPatience.String()); err != nil {
			return err
		}
		for i := range e.reqs {
			if err := e.one(i); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		l.failed(batch, err, l.storeHeld)
		return
	}
	l.s.publish(&e.events)
	for i, c := range batch {
		c.finish(e.receipts[i], nil)
	}
}

// inTx is Store.inTx, bounded from when it has a connection.
func (l *lane) inTx(f func(ctx context.Context, run runner) error) error {
	return retry(l.s.group.ctx, func() error {
		return l.s.pool.AcquireFunc(l.s.group.ctx, func(conn *pgxpool.Conn) error {
			ctx, cancel := context.WithTimeout(l.s.group.ctx, l.s.group.timeout)
			defer cancel()
			return l.s.within(ctx, conn, func(run runner) error { return f(ctx, run) })
		})
	})
}

// failed tries again with each half of a batch, if one of its calls may be to
// blame.
func (l *lane) failed(batch []*single, err error, try func([]*single)) {
	if !refused(err) {
		for _, c := range batch {
			c.finish(pawl.Receipt{}, err)
		}
		return
	}
	for _, half := range [][]*single{batch[:len(batch)/2], batch[len(batch)/2:]} {
		if len(half) == 1 {
			l.apart(half)
		} else {
			try(half)
		}
	}
}

// apart makes a call wait for others beside the lane.
func (l *lane) apart(batch []*single) {
	for _, c := range batch {
		l.s.group.flights.Go(func() { l.storeOne(c) })
	}
}

// storeOne inserts alone, for as long as the caller waits.
func (l *lane) storeOne(c *single) {
	receipts, err := l.s.group.alone(c.ctx, c.reqs)
	if err != nil {
		receipts = make([]pawl.Receipt, 1)
	}
	c.finish(receipts[0], err)
}

// alone is enqueueAlone that ends when Close has waited too long.
func (g *groups) alone(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	return g.plain.s.enqueueAlone(ctx, reqs)
}

func requests(batch []*single) []*pawl.Request {
	reqs := make([]*pawl.Request, len(batch))
	for i, c := range batch {
		reqs[i] = c.reqs[0]
	}
	return reqs
}

// refused reports whether an error may be due to one request of a batch: not if
// the server is in trouble, or nobody knows what became of the batch.
func refused(err error) bool {
	c := code(err)
	if len(c) < 2 || c == codeReadOnly {
		return errors.Is(err, errAgain)
	}
	switch c[:2] {
	case "08", "53", "57", "58", "XX": // connection, resources, operator, system, internal
		return false
	}
	return true
}

const setLockTimeout = `SELECT set_config('lock_timeout', $1, true)`
