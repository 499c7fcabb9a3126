package main

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	riverqueue "github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverSystem is River on PostgreSQL, which keeps its finished jobs for a day.
//
// Its best configuration: many workers, a short cool-down between fetches, the
// batch completer (which it always has), InsertManyFast (COPY).
type riverSystem struct {
	v    Variant
	pool *pgxpool.Pool
	ins  *riverqueue.Client[pgx.Tx] // inserts
}

const (
	riverBestWorkers  = 2000
	riverBestCooldown = 2 * time.Millisecond
	riverBestPoll     = 50 * time.Millisecond
)

func river() *Contender {
	return &Contender{Name: "river", Storage: "postgres", Variants: riverVariants, Open: openRiver}
}

func riverVariants(w *Workload) []Variant {
	all := perSlots(w, []int{riverBestWorkers, 100, 10}, Variant{Config: best, Retention: history})
	if w.Works {
		all = append(all, perSlots(w, []int{100}, Variant{Config: defaults, Retention: history})...)
	}
	return all
}

func openRiver(ctx context.Context, p *Place, v Variant) (System, error) {
	pool, err := p.DB.Pool(ctx, poolSize)
	if err != nil {
		return nil, err
	}
	s := &riverSystem{v: v, pool: pool}
	if err := s.setUp(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

func (s *riverSystem) setUp(ctx context.Context) error {
	m, err := rivermigrate.New(riverpgxv5.New(s.pool), &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		return err
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	s.ins, err = riverqueue.NewClient(riverpgxv5.New(s.pool), &riverqueue.Config{Logger: quiet()})
	return err
}

func (s *riverSystem) config(h Handler) *riverqueue.Config {
	workers := riverqueue.NewWorkers()
	riverqueue.AddWorker(workers, &riverWorker{h: h})
	c := &riverqueue.Config{
		Logger: quiet(), Workers: workers, PollOnly: s.v.PollOnly,
		Queues: map[string]riverqueue.QueueConfig{riverqueue.QueueDefault: {MaxWorkers: cmp.Or(s.v.Slots, 100)}},
	}
	if s.v.Config == best {
		c.FetchCooldown, c.FetchOnlyKnownKinds = riverBestCooldown, true
	}
	if s.v.Config == best && !s.v.PollOnly { // then both poll as often as they do by default
		c.FetchPollInterval = riverBestPoll
	}
	return c
}

func (s *riverSystem) Enqueue(ctx context.Context, j Job) error {
	args, opts := riverJob(j)
	_, err := s.ins.Insert(ctx, args, opts)
	return err
}

func (s *riverSystem) EnqueueMany(ctx context.Context, jobs []Job) error {
	_, err := s.ins.InsertManyFast(ctx, riverJobs(jobs))
	return err
}

// InTx implements [TxSystem].
func (s *riverSystem) InTx(ctx context.Context, jobs []Job, hold func()) (time.Time, error) {
	return inPgxTx(ctx, s.pool, hold, func(tx pgx.Tx) error {
		if len(jobs) == 1 {
			args, opts := riverJob(jobs[0])
			_, err := s.ins.InsertTx(ctx, tx, args, opts)
			return err
		}
		_, err := s.ins.InsertManyFastTx(ctx, tx, riverJobs(jobs))
		return err
	})
}

// EnqueueKnown implements [Canceler].
func (s *riverSystem) EnqueueKnown(ctx context.Context, j Job) (func(context.Context) error, error) {
	args, opts := riverJob(j)
	r, err := s.ins.Insert(ctx, args, opts)
	return func(ctx context.Context) error {
		_, err := s.ins.JobCancel(ctx, r.Job.ID)
		return err
	}, err
}

// Finish implements [Finisher].
func (s *riverSystem) Finish(ctx context.Context, n int) error {
	_, err := s.pool.Exec(ctx, `
		INSERT INTO river_job (state, attempt, max_attempts, attempted_at, created_at, finalized_at, scheduled_at,
			args, attempted_by, kind, queue)
		SELECT 'completed', 1, 25, now(), now(), now(), now(),
			jsonb_build_object('n', n, 'pad', repeat('x', $2)), ARRAY['bench'], 'bench', 'default'
		FROM generate_series(1, $1) n`, n, len(newJob(0, s.v.Payload).Pad))
	return err
}

func (s *riverSystem) Pause(ctx context.Context, queue string) error {
	return s.ins.QueuePause(ctx, queue, nil)
}

func (s *riverSystem) Close() error { s.pool.Close(); return nil }

// Work implements [System].
func (s *riverSystem) Work(ctx context.Context, h Handler) (Workers, error) {
	client, err := riverqueue.NewClient(riverpgxv5.New(s.pool), s.config(h))
	if err != nil {
		return nil, err
	}
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	return &riverWorkers{s, client}, nil
}

type riverWorkers struct {
	s      *riverSystem
	client *riverqueue.Client[pgx.Tx]
}

// Settled looks whether any job is left, since jobs can't be told apart.
func (w *riverWorkers) Settled(ctx context.Context, _ int64) (settled bool, err error) {
	err = w.s.pool.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM river_job
		WHERE state IN ('available', 'running') AND queue = 'default' AND kind = 'bench')`).Scan(&settled)
	return settled, err
}

func (w *riverWorkers) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	return w.client.Stop(ctx)
}

type riverWorker struct {
	riverqueue.WorkerDefaults[Args]
	h Handler
}

func (w *riverWorker) Work(ctx context.Context, j *riverqueue.Job[Args]) error {
	return w.h(ctx, j.Args.N)
}

func riverJob(j Job) (riverqueue.JobArgs, *riverqueue.InsertOpts) {
	var opts *riverqueue.InsertOpts
	if j.Queue != "" || j.Delay > 0 {
		opts = &riverqueue.InsertOpts{Queue: j.Queue}
	}
	if j.Delay > 0 {
		opts.ScheduledAt = time.Now().Add(j.Delay)
	}
	if j.Foreign {
		return foreignArgs(j.Args), opts
	}
	return j.Args, opts
}

func riverJobs(jobs []Job) []riverqueue.InsertManyParams {
	params := make([]riverqueue.InsertManyParams, len(jobs))
	for i, j := range jobs {
		params[i].Args, params[i].InsertOpts = riverJob(j)
	}
	return params
}

// foreignArgs are those of a kind without a worker.
type foreignArgs Args

// Kind implements River's arguments.
func (foreignArgs) Kind() string { return foreignKind }
