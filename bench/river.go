package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	riverqueue "github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
)

// riverSystem is River, which keeps its finished jobs for a day.
//
// Its best configuration: many workers, a short cool-down between fetches, the
// batch completer (which it always has), InsertManyFast (COPY on PostgreSQL).
type riverSystem[Tx any] struct {
	v       Variant
	driver  func() riverdriver.Driver[Tx]
	ins     *riverqueue.Client[Tx] // inserts
	settled func(ctx context.Context, sql string) (bool, error)
	close   func() error
}

// riverOnPostgres adds what needs the connections.
type riverOnPostgres struct {
	*riverSystem[pgx.Tx]
	pool *pgxpool.Pool
}

// riverOnSQLite has one connection, as River's documentation asks for.
type riverOnSQLite struct {
	*riverSystem[*sql.Tx]
	db *sql.DB
}

const (
	riverBestWorkers  = 2000
	riverBestCooldown = 2 * time.Millisecond
	riverBestPoll     = 50 * time.Millisecond
)

func riverPostgres() *Contender {
	return &Contender{Name: "river", Storage: "postgres", Open: openRiverPostgres,
		Variants: func(w *Workload) []Variant { return riverVariants(w, riverBestWorkers, 100, 10) }}
}

func riverSQLite() *Contender {
	return &Contender{Name: "river", Storage: "sqlite", Open: openRiverSQLite,
		Variants: func(w *Workload) []Variant { return riverVariants(w, 100, 10) }}
}

// riverVariants are those of its best configuration, the best number of slots
// first, and that of its defaults.
func riverVariants(w *Workload, slots ...int) []Variant {
	all := perSlots(w, slots, Variant{Config: best, Retention: history})
	if w.Works {
		all = append(all, perSlots(w, []int{100}, Variant{Config: defaults, Retention: history})...)
	}
	return all
}

func openRiverPostgres(ctx context.Context, p *Place, v Variant) (System, error) {
	pool, err := p.DB.Pool(ctx, poolSize)
	if err != nil {
		return nil, err
	}
	s := &riverSystem[pgx.Tx]{
		v:      v,
		driver: func() riverdriver.Driver[pgx.Tx] { return riverpgxv5.New(pool) },
		settled: func(ctx context.Context, sql string) (settled bool, err error) {
			err = pool.QueryRow(ctx, sql).Scan(&settled)
			return settled, err
		},
		close: func() error { pool.Close(); return nil },
	}
	if err := s.setUp(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return &riverOnPostgres{s, pool}, nil
}

func openRiverSQLite(ctx context.Context, p *Place, v Variant) (System, error) {
	db, err := openSQLite(p, 1)
	if err != nil {
		return nil, err
	}
	s := &riverSystem[*sql.Tx]{
		v:      v,
		driver: func() riverdriver.Driver[*sql.Tx] { return riversqlite.New(db) },
		settled: func(ctx context.Context, sql string) (settled bool, err error) {
			err = db.QueryRowContext(ctx, sql).Scan(&settled)
			return settled, err
		},
		close: db.Close,
	}
	if err := s.setUp(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &riverOnSQLite{s, db}, nil
}

func (s *riverSystem[Tx]) setUp(ctx context.Context) error {
	m, err := rivermigrate.New(s.driver(), &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		return err
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	c := &riverqueue.Config{Logger: quiet()}
	if s.v.Config == best { // else a client tells of one of its inserts in 100 ms
		c.FetchCooldown = riverBestCooldown
	}
	s.ins, err = riverqueue.NewClient(s.driver(), c)
	return err
}

func (s *riverSystem[Tx]) config(h Handler) *riverqueue.Config {
	workers := riverqueue.NewWorkers()
	riverqueue.AddWorker(workers, &riverWorker{h: h, retry: s.v.Retry})
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

func (s *riverSystem[Tx]) Enqueue(ctx context.Context, j Job) error {
	args, opts := riverJob(j)
	_, err := s.ins.Insert(ctx, args, opts)
	return err
}

func (s *riverSystem[Tx]) EnqueueMany(ctx context.Context, jobs []Job) error {
	_, err := s.ins.InsertManyFast(ctx, riverJobs(jobs))
	return err
}

// EnqueueUnique implements [UniqueSystem].
func (s *riverSystem[Tx]) EnqueueUnique(ctx context.Context, j Job) (bool, error) {
	r, err := s.ins.Insert(ctx, j.Args, &riverqueue.InsertOpts{UniqueOpts: riverqueue.UniqueOpts{ByArgs: true}})
	return err == nil && !r.UniqueSkippedAsDuplicate, err
}

// InTx implements [TxSystem].
func (s *riverOnPostgres) InTx(ctx context.Context, jobs []Job, hold func()) (time.Time, error) {
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

// InTx implements [TxSystem].
func (s *riverOnSQLite) InTx(ctx context.Context, jobs []Job, hold func()) (time.Time, error) {
	return inSQLTx(ctx, s.db, hold, func(tx *sql.Tx) error {
		_, err := s.ins.InsertManyFastTx(ctx, tx, riverJobs(jobs))
		return err
	})
}

// EnqueueKnown implements [Canceler].
func (s *riverSystem[Tx]) EnqueueKnown(ctx context.Context, j Job) (func(context.Context) error, error) {
	args, opts := riverJob(j)
	r, err := s.ins.Insert(ctx, args, opts)
	return func(ctx context.Context) error {
		_, err := s.ins.JobCancel(ctx, r.Job.ID)
		return err
	}, err
}

// Finish implements [Finisher].
func (s *riverOnPostgres) Finish(ctx context.Context, n int) error {
	_, err := s.pool.Exec(ctx, `
		INSERT INTO river_job (state, attempt, max_attempts, attempted_at, created_at, finalized_at, scheduled_at,
			args, attempted_by, kind, queue)
		SELECT 'completed', 1, 25, now(), now(), now(), now(),
			jsonb_build_object('n', n, 'pad', repeat('x', $2)), ARRAY['bench'], 'bench', 'default'
		FROM generate_series(1, $1) n`, n, len(newJob(0, s.v.Payload).Pad))
	return err
}

func (s *riverSystem[Tx]) Pause(ctx context.Context, queue string) error {
	return s.ins.QueuePause(ctx, queue, nil)
}

func (s *riverSystem[Tx]) Close() error { return s.close() }

// Work implements [System].
func (s *riverSystem[Tx]) Work(ctx context.Context, h Handler) (Workers, error) {
	client, err := riverqueue.NewClient(s.driver(), s.config(h))
	if err != nil {
		return nil, err
	}
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	return &riverWorkers[Tx]{s, client}, nil
}

type riverWorkers[Tx any] struct {
	s      *riverSystem[Tx]
	client *riverqueue.Client[Tx]
}

// Settled looks whether any job is left, since jobs can't be told apart.
func (w *riverWorkers[Tx]) Settled(ctx context.Context, _ int64) (settled bool, err error) {
	return w.s.settled(ctx, `SELECT NOT EXISTS (SELECT 1 FROM river_job
		WHERE state IN ('available', 'running') AND queue = 'default' AND kind = 'bench')`)
}

func (w *riverWorkers[Tx]) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	return w.client.Stop(ctx)
}

type riverWorker struct {
	riverqueue.WorkerDefaults[Args]
	h     Handler
	retry time.Duration
}

func (w *riverWorker) Work(ctx context.Context, j *riverqueue.Job[Args]) error {
	return w.h(ctx, j.Args.N)
}

// NextRetry implements River's worker; the zero time is the default.
func (w *riverWorker) NextRetry(*riverqueue.Job[Args]) time.Time {
	if w.retry == 0 {
		return time.Time{}
	}
	return time.Now().Add(w.retry)
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
