package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/mikestefanello/backlite"
)

// backliteSystem is backlite on SQLite, without and with retention. It has one
// configuration, which its documentation gives.
type backliteSystem struct {
	v      Variant
	db     *sql.DB
	client *backlite.Client
	work   *Handler
}

// backliteRelease is when a claimed task counts as stuck.
const backliteRelease = 10 * time.Minute

// backliteConnections lets reads go on beside the one writer.
const backliteConnections = 4

func backliteQueue() *Contender {
	return &Contender{Name: "backlite", Storage: "sqlite", Variants: backliteVariants, Open: openBacklite}
}

func backliteVariants(w *Workload) []Variant {
	all := perSlots(w, []int{100, 10}, Variant{Config: best, Retention: deleteNow})
	if w.Works {
		all = append(all, perSlots(w, []int{100}, Variant{Config: best, Retention: history})...)
	}
	return all
}

// Args implements [backlite.Task] for tasks that are deleted, keptArgs for those
// that are kept.
type keptArgs Args

// Config implements [backlite.Task].
func (Args) Config() backlite.QueueConfig { return backliteConfig(nil) }

// Config implements [backlite.Task].
func (keptArgs) Config() backlite.QueueConfig {
	return backliteConfig(&backlite.Retention{Duration: 24 * time.Hour, Data: &backlite.RetainData{}})
}

func backliteConfig(r *backlite.Retention) backlite.QueueConfig {
	return backlite.QueueConfig{Name: queueName, MaxAttempts: 25, Timeout: time.Minute, Backoff: retryDelay, Retention: r}
}

func openBacklite(_ context.Context, p *Place, v Variant) (System, error) {
	db, err := openSQLite(p, backliteConnections)
	if err != nil {
		return nil, err
	}
	s := &backliteSystem{v: v, db: db, work: new(Handler)}
	s.client, err = backlite.NewClient(backlite.ClientConfig{DB: db, NumWorkers: max(v.Slots, 1), ReleaseAfter: backliteRelease,
		CleanupInterval: time.Hour})
	if err == nil {
		err = s.client.Install()
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if v.Retention == history {
		s.client.Register(backlite.NewQueue(func(ctx context.Context, a keptArgs) error { return (*s.work)(ctx, a.N) }))
	} else {
		s.client.Register(backlite.NewQueue(func(ctx context.Context, a Args) error { return (*s.work)(ctx, a.N) }))
	}
	return s, nil
}

func (s *backliteSystem) Enqueue(ctx context.Context, j Job) error {
	return s.save(s.client.Add(s.tasks([]Job{j})...).Ctx(ctx), j.Delay)
}

func (s *backliteSystem) EnqueueMany(ctx context.Context, jobs []Job) error {
	return s.save(s.client.Add(s.tasks(jobs)...).Ctx(ctx), jobs[0].Delay)
}

// InTx implements [TxSystem].
func (s *backliteSystem) InTx(ctx context.Context, jobs []Job, hold func()) (time.Time, error) {
	at, err := inSQLTx(ctx, s.db, hold, func(tx *sql.Tx) error {
		return s.save(s.client.Add(s.tasks(jobs)...).Ctx(ctx).Tx(tx), jobs[0].Delay)
	})
	if err == nil && *s.work != nil {
		s.client.Notify()
	}
	return at, err
}

func (s *backliteSystem) save(op *backlite.TaskAddOp, delay time.Duration) error {
	if delay > 0 {
		op = op.Wait(delay)
	}
	_, err := op.Save()
	return err
}

func (s *backliteSystem) tasks(jobs []Job) []backlite.Task {
	tasks := make([]backlite.Task, len(jobs))
	for i, j := range jobs {
		if tasks[i] = j.Args; s.v.Retention == history {
			tasks[i] = keptArgs(j.Args)
		}
	}
	return tasks
}

func (s *backliteSystem) Close() error { return s.db.Close() }

// Work implements [System].
func (s *backliteSystem) Work(ctx context.Context, h Handler) (Workers, error) {
	*s.work = h
	ctx, cancel := context.WithCancel(ctx)
	s.client.Start(ctx)
	return &backliteWorkers{s, cancel}, nil
}

type backliteWorkers struct {
	s      *backliteSystem
	cancel context.CancelFunc
}

// backliteStop is how long its workers get. With a backlog, an orderly stop of
// version 0.6.0 can wait for ever for a worker that has ended.
const backliteStop = time.Second

func (w *backliteWorkers) Settled(ctx context.Context, _ int64) (settled bool, err error) {
	err = w.s.db.QueryRowContext(ctx, "SELECT NOT EXISTS (SELECT 1 FROM backlite_tasks)").Scan(&settled)
	return settled, err
}

func (w *backliteWorkers) Stop() error {
	defer w.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), backliteStop)
	defer cancel()
	w.s.client.Stop(ctx)
	return nil
}
