package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/load"
)

// A producer enqueues jobs in all ways, and enqueues again what it does not know
// the outcome of.
type producer struct {
	c    *config
	q    *pawl.Queue
	s    *store
	log  *history.Writer
	mix  load.Mix
	left atomic.Int64 // jobs
	pace *pacer
}

// produce enqueues jobs until there are as many as there should be, or ctx ends.
func produce(ctx context.Context, c *config, s *store, log *history.Writer) error {
	p := &producer{c: c, q: pawl.New(s.Storage, queueOptions(c)), s: s, log: log, pace: newPacer(c.Rate),
		mix: load.Mix{Tx: s.inTx != nil, Deadly: c.Deadly}}
	p.left.Store(int64(c.Quota))
	log.Write(history.Event{Kind: history.Began, Fence: int64(c.Number), A: history.Wall()})
	var wg sync.WaitGroup
	for i := range c.Callers {
		rnd := rand.New(rand.NewPCG(c.Seed, uint64(c.Number)<<8+uint64(i)))
		wg.Go(func() {
			for ctx.Err() == nil && p.left.Load() > 0 {
				p.step(ctx, rnd)
			}
		})
	}
	wg.Wait()
	return ctx.Err()
}

// step enqueues one job, or a batch.
func (p *producer) step(ctx context.Context, rnd *rand.Rand) {
	way, n := p.mix.Way(rnd), 1
	switch way {
	case load.Batch:
		n = 2 + rnd.IntN(p.c.Batch-1)
	case load.InTx, load.RollBack:
		n = 1 + rnd.IntN(3)
	}
	if way != load.RollBack {
		p.left.Add(-int64(n))
	}
	if p.pace.wait(ctx, n) != nil {
		return
	}
	reqs := make([]*pawl.Request, n)
	events := make([]history.Event, n)
	for i := range reqs {
		id, class := newID(), p.mix.Class(rnd)
		reqs[i] = load.Request(id, class)
		events[i] = history.Event{Kind: history.Intend, ID: id, A: int64(class), B: int64(way)}
	}
	p.log.Write(events...)
	switch way {
	case load.InTx, load.RollBack:
		p.inTx(ctx, reqs, way == load.RollBack)
	case load.Hurried:
		// Short enough to end in the call now and then, in any part of it.
		hurried, cancel := context.WithTimeout(ctx, time.Duration(rnd.IntN(3000))*time.Microsecond)
		p.enqueue(hurried, ctx, reqs)
		cancel()
	default:
		p.enqueue(ctx, ctx, reqs)
	}
	p.cancel(ctx, reqs)
}

// newID is as a Queue makes it.
func newID() pawl.ID { return uuid.Must(uuid.NewV7()) }

// known reports whether a failed call is known to have changed nothing.
func known(err error) bool {
	for _, e := range []error{pawl.ErrInvalid, pawl.ErrFull, pawl.ErrUnsupported, pawl.ErrSchema, pawl.ErrClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// enqueue enqueues, and if the outcome is unknown again and again.
func (p *producer) enqueue(first, ctx context.Context, reqs []*pawl.Request) {
	receipts, err := p.many(first, reqs)
	switch {
	case err == nil:
		p.note(history.Accepted, reqs, receipts)
		return
	case known(err):
		p.note(history.Refused, reqs, nil)
		return
	}
	p.failed(first.Err() == nil, reqs)
	p.resolve(ctx, reqs)
}

// failed writes down that the outcome of a call is unknown, and whether it had time left.
func (p *producer) failed(timely bool, reqs []*pawl.Request) {
	events := make([]history.Event, len(reqs))
	for i, r := range reqs {
		events[i] = history.Event{Kind: history.Unknown, ID: r.ID}
		if timely {
			events[i].B = 1
		}
	}
	p.log.Write(events...)
}

// many calls Enqueue for one, which storages gather with others, and EnqueueMany.
func (p *producer) many(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	if len(reqs) > 1 {
		return p.q.EnqueueMany(ctx, reqs)
	}
	r, err := p.q.Enqueue(ctx, reqs[0])
	return []pawl.Receipt{r}, err
}

// resolve enqueues the same jobs again until there is an answer.
func (p *producer) resolve(ctx context.Context, reqs []*pawl.Request) {
	for ctx.Err() == nil {
		receipts, err := p.many(ctx, reqs)
		if err == nil {
			p.note(history.Resolved, reqs, receipts)
			return
		}
		_ = sleep(ctx, 100*time.Millisecond) // the loop looks at ctx
	}
}

// note writes down what became of requests.
func (p *producer) note(k history.Kind, reqs []*pawl.Request, receipts []pawl.Receipt) {
	events := make([]history.Event, len(reqs))
	for i, r := range reqs {
		events[i] = history.Event{Kind: k, ID: r.ID}
		if receipts != nil {
			events[i].A = int64(receipts[i].Status)
		}
	}
	p.log.Write(events...)
}

// inTx enqueues in a transaction that also writes an order for each job.
func (p *producer) inTx(ctx context.Context, reqs []*pawl.Request, undo bool) {
	var receipts []pawl.Receipt
	committing := false
	err := p.s.inTx(ctx, func(t tx) (err error) {
		for _, r := range reqs {
			if err := t.note(ctx, orderTable, pawl.Ref{ID: r.ID}); err != nil {
				return err
			}
		}
		if receipts, err = p.q.WithTx(t.w).EnqueueMany(ctx, reqs); err != nil {
			return err
		}
		if undo {
			return errUndone
		}
		committing = true
		return nil
	})
	switch {
	case err == nil:
		p.note(history.Accepted, reqs, receipts)
	case !committing || errors.Is(err, pawl.ErrTxOver):
		// Nobody has asked for a commit, or the server has refused it.
		p.note(history.RolledBack, reqs, nil)
	default:
		p.note(history.Unknown, reqs, nil)
	}
}

// cancel cancels those that are to be.
func (p *producer) cancel(ctx context.Context, reqs []*pawl.Request) {
	for _, r := range reqs {
		if load.ClassOf(r.Kind) != load.Canceled {
			continue
		}
		for ctx.Err() == nil {
			err := p.q.Cancel(ctx, r.Queue, r.ID)
			if err == nil || errors.Is(err, pawl.ErrNotFound) || errors.Is(err, pawl.ErrInvalid) {
				break
			}
			_ = sleep(ctx, 100*time.Millisecond) // the loop looks at ctx
		}
	}
}

// A pacer lets so many jobs a second pass.
type pacer struct {
	mu   sync.Mutex
	next time.Time
	gap  time.Duration // of a job
}

func newPacer(rate float64) *pacer {
	return &pacer{next: time.Now(), gap: time.Duration(float64(time.Second) / max(rate, 1))}
}

// wait waits until n jobs may pass.
func (p *pacer) wait(ctx context.Context, n int) error {
	p.mu.Lock()
	// What an outage has held up is not made up for all at once.
	if late := time.Now().Add(-time.Second); p.next.Before(late) {
		p.next = late
	}
	d := time.Until(p.next)
	p.next = p.next.Add(time.Duration(n) * p.gap)
	p.mu.Unlock()
	if d <= 0 {
		return ctx.Err()
	}
	return sleep(ctx, d)
}
