package main

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter/pgxv5"
)

// gueSystem is gue on PostgreSQL, which deletes finished jobs. Each of its
// workers holds a transaction for as long as the handler runs.
//
// Its best configuration polls by time, whose index serves a backlog, and
// often.
type gueSystem struct {
	v      Variant
	pool   *pgxpool.Pool
	client *gue.Client
}

const (
	gueBestWorkers = 16
	gueBestPoll    = 20 * time.Millisecond
)

// gueSchema is the table that gue's documentation has a program create.
const gueSchema = `
CREATE TABLE gue_jobs (
	job_id TEXT NOT NULL PRIMARY KEY,
	priority SMALLINT NOT NULL,
	run_at TIMESTAMPTZ NOT NULL,
	job_type TEXT NOT NULL,
	args BYTEA NOT NULL,
	error_count INTEGER NOT NULL DEFAULT 0,
	last_error TEXT,
	queue TEXT NOT NULL,
	created_at TIMESTAMPTZ NOT NULL,
	updated_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX idx_gue_jobs_selector ON gue_jobs (queue, run_at, priority)`

func gueQueue() *Contender {
	return &Contender{Name: "gue", Storage: "postgres", Variants: gueVariants, Open: openGue}
}

func gueVariants(w *Workload) []Variant {
	all := perSlots(w, []int{gueBestWorkers, 100}, Variant{Config: best, Retention: deleteNow})
	if w.Works {
		all = append(all, perSlots(w, []int{gueBestWorkers}, Variant{Config: defaults, Retention: deleteNow})...)
	}
	return all
}

func openGue(ctx context.Context, p *Place, v Variant) (System, error) {
	pool, err := p.DB.Pool(ctx, max(poolSize, v.Slots+4))
	if err != nil {
		return nil, err
	}
	s := &gueSystem{v: v, pool: pool}
	if !p.Joined {
		err = p.DB.Exec(ctx, gueSchema)
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	var opts []gue.ClientOption
	if v.Retry > 0 {
		opts = append(opts, gue.WithClientBackoff(func(int) time.Duration { return v.Retry }))
	}
	if s.client, err = gue.NewClient(pgxv5.NewConnPool(pool), opts...); err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

func (s *gueSystem) Enqueue(ctx context.Context, j Job) error {
	jobs, err := gueJobs([]Job{j})
	if err != nil {
		return err
	}
	return s.client.Enqueue(ctx, jobs[0])
}

func (s *gueSystem) EnqueueMany(ctx context.Context, jobs []Job) error {
	batch, err := gueJobs(jobs)
	if err != nil {
		return err
	}
	return s.client.EnqueueBatch(ctx, batch)
}

// InTx implements [TxSystem].
func (s *gueSystem) InTx(ctx context.Context, jobs []Job, hold func()) (time.Time, error) {
	batch, err := gueJobs(jobs)
	if err != nil {
		return time.Time{}, err
	}
	return inPgxTx(ctx, s.pool, hold, func(tx pgx.Tx) error {
		return s.client.EnqueueBatchTx(ctx, batch, pgxv5.NewTx(tx))
	})
}

func (s *gueSystem) Close() error { s.pool.Close(); return nil }

// Work implements [System].
func (s *gueSystem) Work(ctx context.Context, h Handler) (Workers, error) {
	run := func(ctx context.Context, j *gue.Job) error {
		var args Args
		if err := json.Unmarshal(j.Args, &args); err != nil {
			return err
		}
		return h(ctx, args.N)
	}
	opts := []gue.WorkerPoolOption{gue.WithPoolQueue(queueName),
		gue.WithPoolGracefulShutdown(context.Background)}
	if s.v.Config == best {
		opts = append(opts, gue.WithPoolPollInterval(gueBestPoll), gue.WithPoolPollStrategy(gue.RunAtPollStrategy))
	}
	pool, err := gue.NewWorkerPool(s.client, gue.WorkMap{kind: run}, cmp.Or(s.v.Slots, gueBestWorkers), opts...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &gueWorkers{s: s, cancel: cancel, done: make(chan error, 1)}
	go func() { w.done <- pool.Run(ctx) }()
	return w, nil
}

type gueWorkers struct {
	s      *gueSystem
	cancel context.CancelFunc
	done   chan error
}

func (w *gueWorkers) Settled(ctx context.Context, _ int64) (settled bool, err error) {
	err = w.s.pool.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM gue_jobs WHERE queue = 'default')").Scan(&settled)
	return settled, err
}

func (w *gueWorkers) Stop() error {
	w.cancel()
	return <-w.done
}

func gueJobs(jobs []Job) ([]*gue.Job, error) {
	batch := make([]*gue.Job, len(jobs))
	for i, j := range jobs {
		args, err := json.Marshal(j.Args)
		if err != nil {
			return nil, err
		}
		batch[i] = &gue.Job{Type: kind, Args: args, Queue: queueName}
		if j.Queue != "" {
			batch[i].Queue = j.Queue
		}
		if j.Foreign {
			batch[i].Type = foreignKind
		}
		if j.Delay > 0 {
			batch[i].RunAt = time.Now().Add(j.Delay)
		}
	}
	return batch, nil
}
