package postgres_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/worker"
)

// runPool runs a pool until the test ends.
func runPool(t *testing.T, q *pawl.Queue, f worker.Func, o *worker.Options) {
	t.Helper()
	p := worker.New(q, f, o)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		if err := p.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

// TestPoolOfOne: handlers, their transactions, heartbeats, claims and settles
// share one connection, and all jobs finish.
func TestPoolOfOne(t *testing.T) {
	const jobs = 60
	server := testserver.Postgres(t)
	look := fresh(t, postgres.Options{})
	s := open(t, openPool(t, server, 1), &postgres.Options{Schema: look.Schema()})
	q := pawl.New(s, &pawl.Options{Logger: slog.New(slog.DiscardHandler)})
	exec(t, look.Pool(), "CREATE TABLE "+look.Schema()+".paid (id uuid)")
	for i := range jobs {
		if _, err := q.Enqueue(t.Context(), &pawl.Request{Kind: []string{kindPlain, kindPaid}[i%2], Retention: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	insert := "INSERT INTO " + look.Schema() + ".paid VALUES ($1)"
	runPool(t, q, func(ctx context.Context, j *pawl.Job) error {
		if j.Kind == kindPlain {
			_, err := s.Pool().Exec(ctx, insert, j.ID)
			return err
		}
		return s.InTx(ctx, func(tx pgx.Tx, w pawl.Writer) error {
			if _, err := tx.Exec(ctx, insert, j.ID); err != nil {
				return err
			}
			return q.WithTx(w).Ack(ctx, j, nil)
		})
	}, &worker.Options{Concurrency: 8, Heartbeat: 10 * time.Millisecond, Poll: 20 * time.Millisecond})
	awaitEmpty(t, pawl.New(look, nil))
	var n int
	if err := look.Pool().QueryRow(t.Context(), "SELECT count(DISTINCT id) FROM "+look.Schema()+".paid").Scan(&n); err != nil || n != jobs {
		t.Errorf("%d jobs have written, want %d; error %v", n, jobs, err)
	}
}

// TestNothingHeldBetweenCalls: while handlers run, neither a connection of the
// pool nor a transaction is in use.
func TestNothingHeldBetweenCalls(t *testing.T) {
	const jobs = 5
	look := fresh(t, postgres.Options{})
	config := look.Pool().Config()
	config.ConnConfig.RuntimeParams["application_name"] = "between calls"
	s := withConfig(t, look, config)
	q := pawl.New(s, nil)
	for range jobs {
		enqueue(t, look, pawl.Request{})
	}
	begun, end := make(chan struct{}, jobs), make(chan struct{})
	runPool(t, q, func(context.Context, *pawl.Job) error {
		begun <- struct{}{}
		<-end
		return nil
	}, &worker.Options{Concurrency: jobs, Poll: time.Hour, SweepEvery: time.Hour})
	for range jobs {
		await(t, "the start of the jobs", begun)
	}
	// What was under way with the claim ends; then there is nothing, until the
	// heartbeat, which is seconds away.
	const busy = `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'between calls' AND (state <> 'idle' OR xact_start IS NOT NULL)`
	n := -1
	for limit := time.Now().Add(5 * time.Second); n != 0 && time.Now().Before(limit); {
		if err := look.Pool().QueryRow(t.Context(), busy).Scan(&n); err != nil {
			t.Fatal(err)
		}
		n += int(s.Pool().Stat().AcquiredConns())
	}
	if n != 0 {
		t.Errorf("%d connections or transactions are in use while handlers run", n)
	}
	close(end)
	awaitEmpty(t, pawl.New(look, nil))
}

// TestHeldAckInPool: an ack held open in a transaction for three leases costs
// no job of the pool its lease.
func TestHeldAckInPool(t *testing.T) {
	const (
		lease = 2 * time.Second
		beat  = 100 * time.Millisecond
		jobs  = 4
	)
	s := fresh(t, postgres.Options{})
	q := pawl.New(s, nil)
	for i := range jobs {
		enqueue(t, s, pawl.Request{Priority: i, Retention: time.Hour})
	}
	acked, commit, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
	runPool(t, q, func(ctx context.Context, j *pawl.Job) error {
		if j.Priority > 0 {
			<-end
			return ctx.Err() // none, as long as the lease is its own
		}
		return s.InTx(ctx, func(_ pgx.Tx, w pawl.Writer) error {
			err := q.WithTx(w).Ack(ctx, j, nil)
			close(acked)
			<-commit
			return err
		})
	}, &worker.Options{Concurrency: jobs, Lease: lease, Heartbeat: beat, SweepEvery: beat})
	await(t, "the ack", acked)
	time.Sleep(3 * lease) // what is proved is that nothing happens
	close(commit)
	close(end)
	awaitEmpty(t, q)
	for j, err := range q.Jobs(t.Context(), pawl.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if j.State != pawl.Completed || j.Counts.Rescues+j.Counts.Retries > 0 || j.Attempt != 1 {
			t.Errorf("job of priority %d is %v in attempt %d, with counts %+v", j.Priority, j.State, j.Attempt, j.Counts)
		}
	}
}
