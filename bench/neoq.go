package main

import (
	"context"
	"errors"
	"time"

	"github.com/acaloiaro/neoq"
	"github.com/acaloiaro/neoq/backends/memory"
	"github.com/acaloiaro/neoq/backends/postgres"
	"github.com/acaloiaro/neoq/handler"
	"github.com/acaloiaro/neoq/jobs"
	"github.com/acaloiaro/neoq/logging"
)

// neoqSystem is neoq, which has no call for several jobs. In memory it takes jobs
// only while there are handlers, so these wait at a gate until Work opens it.
//
// Its best configuration on PostgreSQL looks often for a backlog. Its synchronous
// commit, which is off by default, is on as everyone's.
type neoqSystem struct {
	v     Variant
	n     neoq.Neoq
	db    *Database // nil in memory
	gate  chan struct{}
	work  Handler // set before the gate opens
	gated bool
}

const (
	neoqWorkers  = 50 // its default
	neoqPoll     = 10 * time.Millisecond
	neoqCapacity = 4_000_000 // of its queue in memory: more than a cell stores, or enqueues wait for workers
)

func neoqMemory() *Contender {
	return &Contender{Name: "neoq", Storage: "memory", Variants: neoqVariants(deleteNow), Open: openNeoqMemory}
}

func neoqPostgres() *Contender {
	return &Contender{Name: "neoq", Storage: "postgres", Variants: neoqVariants(history), Open: openNeoqPostgres}
}

// neoqVariants are of the workloads that need nothing but jobs that are due, each in
// a call of its own.
func neoqVariants(retention string) func(*Workload) []Variant {
	return func(w *Workload) []Variant {
		if raceDetector {
			return nil
		}
		switch w.Name {
		case "enqueue-1", "enqueue-16", "enqueue-64", "enqueue-100", "unique", "drain":
			all := perSlots(w, []int{neoqWorkers, 100}, Variant{Config: best, Retention: retention})
			if retention == history || w.Name != "drain" && w.Name != "enqueue-16" {
				all[0].Extra = true // to keep quick runs short
			}
			return all
		}
		return nil
	}
}

func openNeoqMemory(ctx context.Context, _ *Place, v Variant) (System, error) {
	n, err := neoq.New(ctx, neoq.WithBackend(memory.Backend), neoq.WithLogLevel(logging.LogLevelError))
	if err != nil {
		return nil, err
	}
	n.SetLogger(quiet())
	s := &neoqSystem{v: v, n: n, gate: make(chan struct{}), gated: true}
	return s, s.start(ctx)
}

func openNeoqPostgres(ctx context.Context, p *Place, v Variant) (System, error) {
	dsn, err := p.DB.ConnString(max(poolSize, v.Slots+4))
	if err != nil {
		return nil, err
	}
	n, err := neoq.New(ctx, neoq.WithBackend(postgres.Backend), neoq.WithLogLevel(logging.LogLevelError),
		postgres.WithConnectionString(dsn), postgres.WithSynchronousCommit(true), neoq.WithPendingJobCheckInterval(neoqPoll))
	if err != nil {
		return nil, err
	}
	n.SetLogger(quiet())
	return &neoqSystem{v: v, n: n, db: p.DB, gate: make(chan struct{})}, nil
}

// start starts handlers.
func (s *neoqSystem) start(ctx context.Context) error {
	h := handler.New(queueName, func(ctx context.Context) error {
		select {
		case <-s.gate:
		case <-ctx.Done(): // closed, and nobody has worked
			return ctx.Err()
		}
		j, err := jobs.FromContext(ctx)
		if err != nil {
			return err
		}
		if n, ok := j.Payload["n"].(float64); ok { // as JSON has it
			return s.work(ctx, int64(n))
		}
		n, _ := j.Payload["n"].(int64)
		return s.work(ctx, n)
	}, handler.Concurrency(max(s.v.Slots, 1)), handler.MaxQueueCapacity(neoqCapacity), handler.JobTimeout(time.Hour))
	return s.n.Start(ctx, h)
}

// Enqueue implements [System].
func (s *neoqSystem) Enqueue(ctx context.Context, j Job) error {
	stored, err := s.EnqueueUnique(ctx, j)
	if err == nil && !stored {
		err = errors.New("a duplicate by its fingerprint")
	}
	return err
}

// EnqueueUnique implements [UniqueSystem]: jobs are unique by their payload, always.
func (s *neoqSystem) EnqueueUnique(ctx context.Context, j Job) (bool, error) {
	id, err := s.n.Enqueue(ctx, &jobs.Job{Queue: queueName, Payload: map[string]any{"n": j.N, "pad": j.Pad}})
	if id == jobs.DuplicateJobID || errors.Is(err, postgres.ErrDuplicateJob) {
		return false, nil
	}
	return err == nil, err
}

// EnqueueMany implements [System].
func (s *neoqSystem) EnqueueMany(ctx context.Context, batch []Job) error {
	return byCallers(ctx, batch, s.Enqueue)
}

// Work implements [System].
func (s *neoqSystem) Work(ctx context.Context, h Handler) (Workers, error) {
	s.work = h
	close(s.gate)
	if s.gated {
		return neoqWorkersOf{s}, nil
	}
	return neoqWorkersOf{s}, s.start(context.WithoutCancel(ctx))
}

// Close implements [System].
func (s *neoqSystem) Close() error {
	s.n.Shutdown(context.Background())
	return nil
}

type neoqWorkersOf struct{ s *neoqSystem }

// Settled implements [Workers]. In memory nothing is recorded.
func (w neoqWorkersOf) Settled(ctx context.Context, _ int64) (bool, error) {
	if w.s.db == nil {
		return true, nil
	}
	left, err := w.s.db.Int(ctx, "SELECT count(*) FROM (SELECT FROM neoq_jobs WHERE status <> 'processed' LIMIT 1) AS one")
	return left == 0, err
}

// Stop implements [Workers]: they end with the system.
func (w neoqWorkersOf) Stop() error { return nil }
