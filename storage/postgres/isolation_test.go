package postgres_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/storage/storagetest"
)

// defaults are isolation levels that a role or a database may have as the default.
var defaults = []string{"read committed", "repeatable read", "serializable"}

// atLevel opens a Store on the tables of s whose connections have a default.
func atLevel(t *testing.T, s *postgres.Store, level string) *postgres.Store {
	t.Helper()
	config := s.Pool().Config()
	config.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
	return withConfig(t, s, config)
}

// TestRepeatAtLevels: a repeated claim finds the one that it has waited for.
func TestRepeatAtLevels(t *testing.T) {
	for _, level := range defaults {
		t.Run(level, func(t *testing.T) {
			first := fresh(t, postgres.Options{})
			s := atLevel(t, first, level)
			for range 7 {
				enqueue(t, s, pawl.Request{})
			}
			claim(t, s, 1)
			tx := beginAt(t, first, pgx.ReadCommitted)
			if _, err := tx.Exec(t.Context(), "SELECT 1 FROM "+s.Schema()+".pawl_head FOR UPDATE"); err != nil {
				t.Fatal(err)
			}
			ask := spec(3)
			ask.Token = 4711
			got := make([]pawl.Claimed, 2)
			var wg sync.WaitGroup
			for i := range got {
				ask.Repeat = i > 0
				wg.Go(func() {
					var err error
					if got[i], err = s.Claim(t.Context(), ask); err != nil {
						t.Error(err)
					}
				})
				awaitLocks(t, first, tx, i+1)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			if len(got[0].Jobs) != 3 || len(got[1].Jobs) != 3 || got[0].Jobs[0].Ref != got[1].Jobs[0].Ref {
				t.Errorf("claimed %v, and when repeated %v", refs(got[0].Jobs), refs(got[1].Jobs))
			}
		})
	}
}

// awaitLocks waits until some connections wait for a transaction, or for one
// another.
func awaitLocks(t *testing.T, s *postgres.Store, tx pgx.Tx, n int) {
	t.Helper()
	const waiting = `WITH RECURSIVE w(pid) AS (
			SELECT $1::int UNION SELECT a.pid FROM w, pg_stat_activity a WHERE w.pid = ANY (pg_blocking_pids(a.pid)))
		SELECT count(*) - 1 FROM w`
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for found := 0; found < n; {
		if err := s.Pool().QueryRow(ctx, waiting, int(tx.Conn().PgConn().PID())).Scan(&found); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStaleAtLevels: a claim of a job that was deleted is lost, although its ID
// is that of a new job that runs.
func TestStaleAtLevels(t *testing.T) {
	for _, level := range defaults {
		t.Run(level, func(t *testing.T) {
			s := atLevel(t, fresh(t, postgres.Options{}), level)
			r := pawl.Request{ID: uuid.Must(uuid.NewV7()), Retention: pawl.DeleteNow}
			enqueue(t, s, r)
			old := claim(t, s, 1)[0].Ref
			settle(t, s, pawl.Outcome{Ref: old, Verb: pawl.Ack})
			enqueue(t, s, r)
			claim(t, s, 1)
			lost, err := s.Settle(t.Context(), []pawl.Outcome{{Ref: old, Verb: pawl.Nack}})
			if err != nil || len(lost) != 1 || lost[0] != old {
				t.Errorf("lost %v, error %v; want %v", lost, err, old)
			}
		})
	}
}

// between calls f before the batch of that number.
type between struct {
	n, at int
	f     func()
}

func (b *between) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (b *between) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (b *between) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	if b.n++; b.n == b.at {
		b.f()
	}
	return ctx
}
func (b *between) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (b *between) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// TestRepeatKeepsFence: the job is rescued and claimed by another worker while a
// repeated claim is half-way.
func TestRepeatKeepsFence(t *testing.T) {
	clock := storagetest.NewClock()
	first := fresh(t, postgres.Options{Clock: clock.Now})
	config := first.Pool().Config()
	b := new(between)
	config.ConnConfig.Tracer = b
	s := open(t, openWith(t, config), &postgres.Options{Schema: first.Schema(), Clock: clock.Now})
	enqueue(t, s, pawl.Request{})
	ask := spec(1)
	ask.Token, ask.Worker = 99, "a"
	if _, err := s.Claim(t.Context(), ask); err != nil { // its reply is lost
		t.Fatal(err)
	}
	var other *pawl.Job
	b.n, b.at, b.f = 0, 2, func() {
		clock.Advance(time.Hour)
		if _, err := first.Sweep(t.Context(), pawl.SweepSpec{Limit: 10}); err != nil {
			t.Error(err)
		}
		other = claim(t, first, 1)[0]
	}
	ask.Repeat = true
	c, err := s.Claim(t.Context(), ask)
	if err != nil || other == nil {
		t.Fatal(err, other)
	}
	for _, j := range c.Jobs {
		if j.Ref == other.Ref {
			t.Errorf("worker a got the claim of worker %s", other.WorkerID)
		}
	}
}

// TestConfigureAtLevels: queues can be paused and resumed by many at once.
func TestConfigureAtLevels(t *testing.T) {
	for _, level := range defaults {
		t.Run(level, func(t *testing.T) {
			s := atLevel(t, fresh(t, postgres.Options{}), level)
			var wg sync.WaitGroup
			for i := range 8 {
				pause := i%2 == 0
				wg.Go(func() {
					for range 50 {
						if err := s.Configure(t.Context(), "q", pawl.QueueSettings{Paused: &pause}); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestFactsAtLevels: cancels are told although several processes drop old facts.
func TestFactsAtLevels(t *testing.T) {
	const jobs = 300
	for _, level := range defaults {
		t.Run(level, func(t *testing.T) {
			s := fresh(t, postgres.Options{})
			exec(t, s.Pool(), "INSERT INTO "+s.Schema()+".pawl_event (kind, queue) SELECT 3, 'x' FROM generate_series(1, 10000)")
			events := watch(t, s)
			awaitEvent(t, events, func(e pawl.Event) bool { return e.Kind == pawl.EventReady })
			for range jobs {
				enqueue(t, s, pawl.Request{})
			}
			claimed := claim(t, s, jobs)
			config := s.Pool().Config()
			config.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
			var wg sync.WaitGroup
			for first := range 3 {
				other := open(t, openWith(t, config.Copy()), &postgres.Options{Schema: s.Schema()})
				wg.Go(func() {
					for i := first; i < jobs; i += 3 {
						if _, err := other.Change(t.Context(), pawl.Change{Verb: pawl.Cancel, IDs: []pawl.ID{claimed[i].ID}, From: pawl.States()}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			told := map[pawl.ID]bool{}
			awaitEvent(t, events, func(e pawl.Event) bool {
				if e.Kind == pawl.EventEnded {
					told[e.Ref.ID] = true
				}
				return len(told) == jobs
			})
		})
	}
}
