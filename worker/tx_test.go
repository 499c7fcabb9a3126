package worker_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/worker"
)

// A payer is a handler that writes one row for each job and acks the job in the
// same transaction. In its first run it does what may go wrong with that.
type payer struct {
	store *sqlite.Store
	q     *pawl.Queue
	all   sync.WaitGroup // payments

	mu   sync.Mutex
	paid map[pawl.ID]chan struct{} // of jobs that have run; closed once paid
}

var errPayer = errors.New("first run")

func (p *payer) run(ctx context.Context, j *pawl.Job) error {
	p.mu.Lock()
	paid, again := p.paid[j.ID]
	if !again {
		paid = make(chan struct{})
		p.paid[j.ID] = paid
	}
	p.mu.Unlock()
	after := error(nil)
	if !again {
		switch string(j.Payload) {
		case "rolls back":
			return p.pay(ctx, j, errPayer)
		case "fails after the commit":
			after = errPayer
		case "comes back late":
			// As if this process had been cut off and the job rescued.
			if err := p.q.Release(ctx, j, nil); err != nil {
				return err
			}
			<-paid // by another run
		}
	}
	if err := p.pay(ctx, j, nil); err != nil {
		return err
	}
	close(paid) // panics if it is paid twice
	p.all.Done()
	return after
}

// pay commits unless then is an error.
func (p *payer) pay(ctx context.Context, j *pawl.Job, then error) error {
	return p.store.InTx(ctx, func(tx *sql.Tx, w pawl.Writer) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO paid VALUES (?)", j.ID.String()); err != nil {
			return err
		}
		if err := p.q.WithTx(w).Ack(ctx, j, nil); err != nil {
			return err
		}
		return then
	})
}

// What a handler writes in the transaction that acks its job is there exactly
// once: after a rollback, an error that follows the commit, and a handler that
// has lost its job to another and goes on all the same.
func TestExactlyOnceInTransaction(t *testing.T) {
	defer goleak.VerifyNone(t)
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "jobs.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if _, err := store.DB().ExecContext(t.Context(), "CREATE TABLE paid (id TEXT)"); err != nil {
		t.Fatal(err)
	}
	q := pawl.New(store, &pawl.Options{
		Logger: slog.New(slog.DiscardHandler), Backoff: pawl.Constant(time.Millisecond),
	})
	p := &payer{store: store, q: q, paid: make(map[pawl.ID]chan struct{})}
	const each = 5
	for _, how := range []string{"well", "rolls back", "fails after the commit", "comes back late"} {
		for range each {
			if _, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "k", Payload: []byte(how)}); err != nil {
				t.Fatal(err)
			}
			p.all.Add(1)
		}
	}
	pool := worker.New(q, worker.Func(p.run), &worker.Options{Concurrency: 4 * each})
	run(t, pool, p.all.Wait)

	var rows, jobs int
	row := store.DB().QueryRowContext(t.Context(), "SELECT count(*), count(DISTINCT id) FROM paid")
	if err := row.Scan(&rows, &jobs); err != nil || rows != 4*each || jobs != 4*each {
		t.Errorf("%d rows of %d jobs, %v; want %d of each", rows, jobs, err, 4*each)
	}
	if s := pool.Stats(); s.Completed != 4*each || s.Lost != each || s.Failed != each || s.Started != 6*each {
		t.Errorf("stats %+v", s)
	}
}
