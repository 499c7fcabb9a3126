package main

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/load"
	"github.com/pawlq/pawl/worker"
)

// stopTimeout is how long a worker that is asked to stop leaves handlers alone.
const stopTimeout = 3 * time.Second

// prefetch is how many jobs of a queue wait in a worker.
const prefetch = 100

// byHand is how many goroutines of a worker claim jobs by hand.
const byHand = 4

// work runs jobs by a pool, and some by hand, until ctx ends.
func work(ctx context.Context, c *config, s *store, log *history.Writer) error {
	rnd := rand.New(rand.NewPCG(c.Seed, uint64(c.Number)))
	w := newWitness(s.Storage, log, c.Lease, rnd)
	q := pawl.New(w, queueOptions(c))
	h := &handler{q: q, s: s, log: log, lease: c.Lease, spared: c.Spared}
	pool := worker.New(q, worker.Func(h.run), &worker.Options{
		Queues:      []worker.Queue{{Name: load.Main}, {Name: load.GoneQueue, Concurrency: goneSlots(c.Slots)}},
		Concurrency: c.Slots,
		Prefetch:    prefetch,
		Lease:       c.Lease,
		Poll:        200 * time.Millisecond,
		SweepEvery:  c.Sweep,
		StopTimeout: stopTimeout,
	})
	log.Write(history.Event{Kind: history.Began, Fence: int64(c.Number), A: history.Wall()})
	measuring, stop := context.WithCancel(ctx)
	defer stop()
	var manual sync.WaitGroup
	manual.Go(func() { measure(measuring, c, log) })
	for i := range byHand {
		m := &manualWorker{h: h, rnd: rand.New(rand.NewPCG(c.Seed, uint64(c.Number)<<8+uint64(i)+1))}
		manual.Go(func() { m.run(ctx) })
	}
	err := pool.Run(ctx)
	stop()
	manual.Wait()
	stopped := history.Event{Kind: history.Stopped, Fence: history.Wall()}
	if left := (*worker.StopError)(nil); errors.As(err, &left) {
		stopped.A = 1
		err = nil
	}
	log.Write(stopped)
	return err
}

// goneSlots is how many slots the queue of jobs without a record has, beside the others.
func goneSlots(slots int) int { return max(slots/4, 1) }

func queueOptions(c *config) *pawl.Options {
	return &pawl.Options{
		WorkerID: c.Name,
		Lease:    c.Lease,
		Poll:     200 * time.Millisecond,
		Backoff:  pawl.Constant(50 * time.Millisecond),
		Logger:   slog.New(slog.DiscardHandler),
	}
}

// A manualWorker claims and settles single jobs by hand, and lets some leases end
// to see that it can't do anything any more.
type manualWorker struct {
	h   *handler
	rnd *rand.Rand
}

// abandoned bounds how often the lease of one job is let end.
const abandoned = 2

func (m *manualWorker) run(ctx context.Context) {
	for ctx.Err() == nil {
		j, err := m.h.q.Claim(ctx, &pawl.ClaimOptions{Queues: []string{load.ByHand}})
		if err != nil {
			_ = sleep(ctx, 50*time.Millisecond) // the loop looks at ctx
			continue
		}
		m.h.start(j)
		// What is claimed is settled also when the process is to stop.
		m.end(context.WithoutCancel(ctx), ctx, j)
	}
}

func (m *manualWorker) end(ctx, until context.Context, j *pawl.Job) {
	q := m.h.q
	if j.Counts.Rescues > 0 {
		// Who let the lease of the last claim end has time to try its outcomes.
		_ = sleep(until, m.h.lease/4) // less, if the process is to stop
	}
	switch n := m.rnd.IntN(10); {
	case n < 1 && j.Counts.Rescues < abandoned && m.outlive(until, j):
		m.offerStale(ctx, j)
	case n == 2:
		m.try(ctx, func(ctx context.Context) error {
			return q.Nack(ctx, j, pawl.RetryAfter(20*time.Millisecond, errFailed))
		})
	case n == 3:
		m.try(ctx, func(ctx context.Context) error {
			return q.Release(ctx, j, &pawl.ReleaseOptions{Delay: 10 * time.Millisecond})
		})
	default:
		m.try(ctx, func(ctx context.Context) error { return q.Ack(ctx, j, nil) })
	}
}

// try makes a call again until its outcome is known, for as long as the lease may
// last.
func (m *manualWorker) try(ctx context.Context, call func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, m.h.lease)
	defer cancel()
	for ctx.Err() == nil {
		err := call(ctx)
		if err == nil || errors.Is(err, pawl.ErrLost) {
			return
		}
		_ = sleep(ctx, 50*time.Millisecond) // the loop looks at ctx
	}
}

// outlive waits until the claim is over because its lease was, and reports whether
// that was seen. If ctx ends first, the claim is still to be settled.
func (m *manualWorker) outlive(ctx context.Context, j *pawl.Job) bool {
	for {
		if sleep(ctx, m.h.lease/8) != nil {
			return false
		}
		now, err := m.h.q.Get(ctx, j.Queue, j.ID)
		if err == nil && (now.State != pawl.Running || now.Fence != j.Fence) {
			return true
		}
	}
}

// offerStale tries all that a worker can do to a job whose claim is over.
func (m *manualWorker) offerStale(ctx context.Context, j *pawl.Job) {
	ctx, cancel := context.WithTimeout(ctx, m.h.lease)
	defer cancel()
	q := m.h.q
	calls := map[pawl.Verb]func() error{
		pawl.Ack:     func() error { return q.Ack(ctx, j, nil) },
		pawl.Nack:    func() error { return q.Nack(ctx, j, errFailed) },
		pawl.Bury:    func() error { return q.Bury(ctx, j, errFailed) },
		pawl.Release: func() error { return q.Release(ctx, j, nil) },
		0:            func() error { return q.Extend(ctx, j, nil) },
	}
	for verb, call := range calls {
		e := history.Event{Kind: history.Stale, ID: j.ID, Fence: j.Fence, A: int64(verb)}
		m.h.log.Write(e)
		switch err := call(); {
		case err == nil:
			e.Kind = history.Forgiven
		case errors.Is(err, pawl.ErrLost):
			e.Kind = history.Fenced
		default:
			continue
		}
		m.h.log.Write(e)
	}
}
