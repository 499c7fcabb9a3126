package main

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

// pawlSystem is pawl on any storage. It is at its defaults but for slots and
// retention.
type pawlSystem struct {
	v       Variant
	q       *pawl.Queue // enqueues
	working *pawl.Queue // works; the same unless they are apart
	close   func() error
}

func newPawl(v Variant, enqueues, works pawl.Storage, closeAll func() error) *pawlSystem {
	o := &pawl.Options{Logger: quiet()}
	if v.Retention == deleteNow {
		o.Retention = pawl.DeleteNow
	}
	s := &pawlSystem{v: v, q: pawl.New(enqueues, o), close: closeAll}
	s.working = s.q
	if works != enqueues {
		s.working = pawl.New(works, o)
	}
	return s
}

// pawlVariants are pawl's in all storages: both retentions, 10 and 100 slots.
func pawlVariants(w *Workload) []Variant {
	if !w.Works {
		return []Variant{{Retention: history}}
	}
	all := perSlots(w, []int{10, 100}, Variant{Retention: history})
	if !w.OneRetention {
		all = append(all, perSlots(w, []int{10, 100}, Variant{Retention: deleteNow})...)
	}
	return all
}

func (s *pawlSystem) Enqueue(ctx context.Context, j Job) error {
	_, err := s.q.Enqueue(ctx, pawlRequest(j))
	return err
}

func (s *pawlSystem) EnqueueMany(ctx context.Context, jobs []Job) error {
	_, err := s.q.EnqueueMany(ctx, pawlRequests(jobs))
	return err
}

// EnqueueUnique implements [UniqueSystem].
func (s *pawlSystem) EnqueueUnique(ctx context.Context, j Job) (bool, error) {
	req := pawlRequest(j)
	req.UniqueKey = strconv.FormatInt(j.N, 10)
	r, err := s.q.Enqueue(ctx, req)
	return r.Status == pawl.Stored, err
}

func (s *pawlSystem) EnqueueKnown(ctx context.Context, j Job) (func(context.Context) error, error) {
	r, err := s.q.Enqueue(ctx, pawlRequest(j))
	return func(ctx context.Context) error { return s.q.Cancel(ctx, r.Queue, r.ID) }, err
}

func (s *pawlSystem) Pause(ctx context.Context, queue string) error { return s.q.Pause(ctx, queue) }

func (s *pawlSystem) Close() error { return s.close() }

func (s *pawlSystem) Work(_ context.Context, h Handler) (Workers, error) {
	mux := task.NewMux()
	var o task.Options[Args]
	if s.v.Retry > 0 {
		o.Backoff = pawl.Constant(s.v.Retry)
	}
	task.Register(mux, func(ctx context.Context, j *task.Job[Args]) error { return h(ctx, j.Args.N) }, &o)
	w := &pawlWorkers{
		pool: worker.New(s.working, mux, &worker.Options{Concurrency: s.v.Slots, Logger: quiet()}),
		done: make(chan error, 1),
	}
	go func() { w.done <- w.pool.Run(context.Background()) }()
	return w, nil
}

type pawlWorkers struct {
	pool *worker.Pool
	done chan error
}

func (w *pawlWorkers) Settled(_ context.Context, n int64) (bool, error) {
	return w.pool.Stats().Completed >= n, nil
}

// JobsPerClaim implements [Batcher].
func (w *pawlWorkers) JobsPerClaim() float64 { return w.pool.Stats().ClaimBatch() }

func (w *pawlWorkers) Stop() error {
	if err := w.pool.Stop(context.Background()); err != nil {
		return err
	}
	return <-w.done
}

// Cycle implements [Claimer].
func (s *pawlSystem) Cycle(ctx context.Context, n int, queues ...string) (int, time.Duration, error) {
	began := time.Now()
	c, err := s.q.ClaimBatch(ctx, pawlAsk(n, queues...))
	took := time.Since(began)
	if err != nil {
		return 0, took, err
	}
	if len(c.Jobs) == 0 {
		return 0, took, nil
	}
	_, err = s.q.Settle(ctx, pawlAcks(c.Jobs))
	return len(c.Jobs), took, err
}

// Finish implements [Finisher].
func (s *pawlSystem) Finish(ctx context.Context, n int) error { return s.finish(ctx, n, 24*time.Hour) }

// FinishOld implements [Purger].
func (s *pawlSystem) FinishOld(ctx context.Context, n int) error {
	return s.finish(ctx, n, time.Millisecond)
}

// Purge implements [Purger].
func (s *pawlSystem) Purge(ctx context.Context) error {
	_, err := s.q.Sweep(ctx)
	return err
}

func (s *pawlSystem) finish(ctx context.Context, n int, retention time.Duration) error {
	for done := 0; done < n; {
		reqs := make([]*pawl.Request, min(n-done, pawl.MaxStep))
		for i := range reqs {
			reqs[i] = pawlRequest(newJob(int64(done+i), s.v.Payload))
			reqs[i].Retention = retention
		}
		if _, err := s.q.EnqueueMany(ctx, reqs); err != nil {
			return err
		}
		claimed, _, err := s.Cycle(ctx, len(reqs), queueName)
		if err != nil {
			return err
		}
		done += claimed
	}
	return nil
}

func pawlRequest(j Job) *pawl.Request {
	r := task.New(j.Args)
	r.Queue, r.Delay = j.Queue, j.Delay
	if j.Foreign {
		r.Kind = foreignKind
	}
	return r
}

func pawlRequests(jobs []Job) []*pawl.Request {
	reqs := make([]*pawl.Request, len(jobs))
	for i, j := range jobs {
		reqs[i] = pawlRequest(j)
	}
	return reqs
}

func pawlAsk(n int, queues ...string) pawl.ClaimSpec {
	spec := pawl.ClaimSpec{Max: n, Lease: time.Minute, Worker: "bench"}
	for _, q := range queues {
		spec.Queues = append(spec.Queues, pawl.QueueAsk{Queue: q, Max: n})
	}
	return spec
}

func pawlAcks(jobs []*pawl.Job) []pawl.Outcome {
	outcomes := make([]pawl.Outcome, len(jobs))
	for i, j := range jobs {
		outcomes[i] = pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack}
	}
	return outcomes
}

func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError}))
}
