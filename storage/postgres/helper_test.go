package postgres_test

import (
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/storage/storagetest"
)

// fresh opens a Store in a schema of its own, on the shared server.
func fresh(t testing.TB, o postgres.Options) *postgres.Store {
	t.Helper()
	pool := openPool(t, testserver.Postgres(t), 10)
	o.Schema = newSchema(t, pool)
	return open(t, pool, &o)
}

// beside opens another Store on the same tables, with a pool of its own.
func beside(t testing.TB, s *postgres.Store, o postgres.Options) *postgres.Store {
	t.Helper()
	o.Schema = s.Schema()
	return open(t, openWith(t, s.Pool().Config()), &o)
}

func request(r pawl.Request) *pawl.Request { return storagetest.Complete(r) }

func enqueue(t testing.TB, w pawl.Writer, r pawl.Request) pawl.Receipt {
	t.Helper()
	receipts, err := w.Enqueue(t.Context(), []*pawl.Request{request(r)})
	if err != nil {
		t.Fatal(err)
	}
	return receipts[0]
}

func spec(n int) pawl.ClaimSpec {
	return pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: "default", Max: n}}, Max: n, Lease: time.Minute, Worker: "w"}
}

// claim claims exactly n jobs.
func claim(t testing.TB, s pawl.Storage, n int) []*pawl.Job {
	t.Helper()
	c, err := s.Claim(t.Context(), spec(n))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Jobs) != n {
		t.Fatalf("claimed %d jobs, want %d", len(c.Jobs), n)
	}
	return c.Jobs
}

// state of a job; 0 if it is gone.
func state(t testing.TB, s pawl.Storage, id pawl.ID) pawl.State {
	t.Helper()
	jobs, err := s.Get(t.Context(), "", id)
	if err != nil {
		t.Fatal(err)
	}
	if jobs[0] == nil {
		return 0
	}
	return jobs[0].State
}

// settle settles and fails the test if anything is lost.
func settle(t testing.TB, w pawl.Writer, outcomes ...pawl.Outcome) {
	t.Helper()
	lost, err := w.Settle(t.Context(), outcomes)
	if err != nil || len(lost) > 0 {
		t.Fatalf("settle: lost %v, error %v", lost, err)
	}
}

// watch collects events until the test ends.
func watch(t testing.TB, s *postgres.Store) <-chan pawl.Event {
	t.Helper()
	events := make(chan pawl.Event, 10_000)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = s.Watch(t.Context(), func(e pawl.Event) {
			select {
			case events <- e:
			default: // nobody reads any more
			}
		})
	})
	t.Cleanup(wg.Wait)
	return events
}

// awaitEvent waits for an event that matches.
func awaitEvent(t testing.TB, events <-chan pawl.Event, match func(pawl.Event) bool) {
	t.Helper()
	end := time.After(20 * time.Second)
	for {
		select {
		case e := <-events:
			if match(e) {
				return
			}
		case <-end:
			t.Fatal("the event did not arrive")
		}
	}
}

// withConfig opens another Store on the same tables, with a pool like config.
func withConfig(t testing.TB, s *postgres.Store, config *pgxpool.Config) *postgres.Store {
	t.Helper()
	return open(t, openWith(t, config), &postgres.Options{Schema: s.Schema(), PollOnly: true})
}

// openWith opens a pool.
func openWith(t testing.TB, config *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
