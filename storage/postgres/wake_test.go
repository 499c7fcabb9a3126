package postgres_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
)

func anyReady(e pawl.Event) bool { return e.Kind == pawl.EventReady }

var probes atomic.Int64

// awaitListening waits until a watcher hears of what others do from now on. What
// it heard before does not count, and is gone from events.
func awaitListening(t *testing.T, s *postgres.Store, events <-chan pawl.Event) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	probe, yes := fmt.Sprintf("probe-%d", probes.Add(1)), true
	for end := time.After(20 * time.Second); ; {
		if err := s.Configure(t.Context(), probe, pawl.QueueSettings{Paused: &yes}); err != nil {
			t.Fatal(err)
		}
		for waiting := true; waiting; {
			select {
			case e := <-events:
				if e.Queue == probe {
					return
				}
			case <-tick.C:
				waiting = false
			case <-end:
				t.Fatal("nothing was heard of the probes")
			}
		}
	}
}

// A way is how a program enqueues in a transaction.
type way struct {
	name string
	tx   func(t *testing.T, s *postgres.Store)
}

func ways() []way {
	return []way{
		{"pgx", func(t *testing.T, s *postgres.Store) {
			tx := beginAt(t, s, pgx.ReadCommitted)
			enqueue(t, s.Tx(tx), pawl.Request{})
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
		{"database/sql", func(t *testing.T, s *postgres.Store) {
			db := stdlib.OpenDBFromPool(s.Pool())
			defer db.Close()
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			enqueue(t, s.SQLTx(tx), pawl.Request{})
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}},
		{"InTx", func(t *testing.T, s *postgres.Store) {
			err := s.InTx(t.Context(), func(_ pgx.Tx, w pawl.Writer) error {
				enqueue(t, w, pawl.Request{})
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}},
	}
}

// TestTxWakes: watchers of this process and of others learn of a commit,
// whoever begins the transaction. The first one notifies, those that follow it
// closely do not.
func TestTxWakes(t *testing.T) {
	for _, w := range ways() {
		for _, pollOnly := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/PollOnly=%v", w.name, pollOnly), func(t *testing.T) {
				s := fresh(t, postgres.Options{PollOnly: pollOnly})
				other := beside(t, s, postgres.Options{})
				here, there := watch(t, s), watch(t, other)
				awaitListening(t, other, there)
				if pollOnly {
					awaitEvent(t, here, anyReady) // of the beginning
					there = nil
				} else {
					awaitListening(t, other, here)
				}
				for range 5 {
					w.tx(t, s)
					awaitEvent(t, here, anyReady)
					if there != nil {
						awaitEvent(t, there, anyReady)
					}
				}
			})
		}
	}
}

// TestTxHeldWakes commits transactions a while after their inserts, beside some
// that are rolled back.
func TestTxHeldWakes(t *testing.T) {
	s := fresh(t, postgres.Options{PollOnly: true}) // only by tracking
	events := watch(t, s)
	awaitEvent(t, events, anyReady)
	for _, held := range []time.Duration{0, 20 * time.Millisecond, 150 * time.Millisecond, 1200 * time.Millisecond} {
		kept, undone := beginAt(t, s, pgx.ReadCommitted), beginAt(t, s, pgx.ReadCommitted)
		enqueue(t, s.Tx(kept), pawl.Request{})
		enqueue(t, s.Tx(undone), pawl.Request{})
		<-time.After(held) // which is what is tested
		if err := undone.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case e := <-events:
			t.Fatalf("before the commit: %+v", e)
		default:
		}
		if err := kept.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		awaitEvent(t, events, anyReady)
	}
}

// TestTrackingNeedsNoConnection: the only connection is that of the transaction
// that is tracked.
func TestTrackingNeedsNoConnection(t *testing.T) {
	first := fresh(t, postgres.Options{})
	config := first.Pool().Config()
	config.MaxConns = 1
	s := withConfig(t, first, config)
	events := watch(t, s)
	awaitEvent(t, events, anyReady)
	for range 3 {
		tx := beginAt(t, s, pgx.ReadCommitted)
		for range 10 {
			enqueue(t, s.Tx(tx), pawl.Request{})
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		awaitEvent(t, events, anyReady)
	}
}

// TestCloseTellsOfCommits: a program that ends right after its commit has told.
func TestCloseTellsOfCommits(t *testing.T) {
	s := fresh(t, postgres.Options{})
	events := watch(t, s)
	for range 5 {
		short := beside(t, s, postgres.Options{})
		awaitListening(t, short, events)
		for range 2 { // the second does not notify
			tx := beginAt(t, short, pgx.ReadCommitted)
			enqueue(t, short.Tx(tx), pawl.Request{})
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := short.Close(); err != nil {
			t.Fatal(err)
		}
		awaitEvent(t, events, anyReady)
	}
}

// TestFacts: watchers of other processes learn which claims were ended and which
// queues were paused, also of more than are sent at a time.
func TestFacts(t *testing.T) {
	s := fresh(t, postgres.Options{})
	events := watch(t, beside(t, s, postgres.Options{}))
	awaitListening(t, s, events)
	const n = 500
	for range n {
		enqueue(t, s, pawl.Request{})
	}
	ended := map[uuid.UUID]int64{}
	for _, j := range claim(t, s, n) {
		ended[j.ID] = j.Fence
		c := pawl.Change{Verb: pawl.Cancel, IDs: []pawl.ID{j.ID}}
		if changed, err := s.Change(t.Context(), c); err != nil || changed[0].Status != pawl.Done {
			t.Fatal(changed, err)
		}
	}
	awaitEvent(t, events, func(e pawl.Event) bool {
		if e.Kind == pawl.EventEnded {
			if f, ok := ended[e.Ref.ID]; !ok || f != e.Ref.Fence || e.Queue != "default" {
				t.Errorf("of an unknown claim, or twice: %+v", e)
			}
			delete(ended, e.Ref.ID)
		}
		return len(ended) == 0
	})
}

// TestEventsAreFew: what is kept for others to read is bounded.
func TestEventsAreFew(t *testing.T) {
	s := fresh(t, postgres.Options{})
	events := watch(t, beside(t, s, postgres.Options{}))
	awaitListening(t, s, events)
	const fill = `INSERT INTO %s.pawl_event (kind, queue) SELECT 3, 'q' FROM generate_series(1, 20000)`
	if _, err := s.Pool().Exec(t.Context(), fmt.Sprintf(fill, s.Schema())); err != nil {
		t.Fatal(err)
	}
	awaitListening(t, s, events)
	var n int
	if err := s.Pool().QueryRow(context.Background(), "SELECT count(*) FROM "+s.Schema()+".pawl_event").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n > 10_001 {
		t.Errorf("%d rows are kept", n)
	}
}
