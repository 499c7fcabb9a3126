package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
)

// TestSettleOldTwice gives the outcome of a claim that was settled before twice
// in one call, around the outcome of the job's new claim.
func TestSettleOldTwice(t *testing.T) {
	for _, last := range []pawl.Verb{pawl.Ack, pawl.Bury} {
		s := fresh(t, postgres.Options{})
		enqueue(t, s, pawl.Request{Retention: pawl.DeleteNow})
		old := pawl.Outcome{Ref: claim(t, s, 1)[0].Ref, Verb: pawl.Nack}
		settle(t, s, old)
		current := pawl.Outcome{Ref: claim(t, s, 1)[0].Ref, Verb: last}
		other := old
		other.Verb = pawl.Release
		lost, err := s.Settle(t.Context(), []pawl.Outcome{old, current, other, old})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]pawl.Ref{other.Ref}, lost); d != "" {
			t.Errorf("%v: lost refs (-want +got):\n%s", last, d)
		}
	}
}

// TestAcksGoRoundRows: an open transaction holds the row of one of the jobs that
// are acked, whose records go and whose are kept.
func TestAcksGoRoundRows(t *testing.T) {
	s := fresh(t, postgres.Options{})
	for _, retention := range []time.Duration{pawl.DeleteNow, time.Hour} {
		for range 3 {
			enqueue(t, s, pawl.Request{Retention: retention})
		}
	}
	jobs := claim(t, s, 6)
	tx := beginAt(t, s, pgx.ReadCommitted)
	var acks []pawl.Outcome
	var held []pawl.Ref
	for i, j := range jobs {
		acks = append(acks, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
		if i%3 == 1 {
			held = append(held, j.Ref)
			settle(t, s.Tx(tx), acks[i])
		}
	}
	lost, err := s.Settle(t.Context(), acks)
	var busy *pawl.BusyError
	if len(lost) > 0 || !errors.As(err, &busy) {
		t.Fatalf("lost %v, error %v; want a BusyError", lost, err)
	}
	if d := cmp.Diff(held, busy.Refs); d != "" {
		t.Errorf("busy (-want +got):\n%s", d)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	settle(t, s, acks[1], acks[4])
	if n := state(t, s, jobs[4].ID); n != pawl.Completed {
		t.Errorf("the job is %v", n)
	}
}

// TestAcksWaitShortly: the narrow statements meet a lock, so the general one,
// which passes rows by, takes over. Here it waits for the whole table.
func TestAcksWaitShortly(t *testing.T) {
	first := fresh(t, postgres.Options{})
	config := first.Pool().Config()
	config.MaxConns = 1
	s := withConfig(t, first, config)
	for range 3 {
		enqueue(t, s, pawl.Request{Retention: time.Hour})
	}
	jobs := claim(t, s, 3)
	// The connection has prepared both statements, which needs the lock too.
	settle(t, s, pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Ack}, pawl.Outcome{Ref: jobs[1].Ref, Verb: pawl.Bury})
	j := jobs[2]
	tx := beginAt(t, first, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+s.Schema()+".pawl_job IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	settled := make(chan error)
	go func() {
		_, err := s.Settle(context.WithoutCancel(t.Context()), []pawl.Outcome{{Ref: j.Ref, Verb: pawl.Ack}})
		settled <- err
	}()
	awaitQuery(t, first, `wait_event_type = 'Lock' AND query LIKE '%urgency%' || $1 || '%'`)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	if n := state(t, s, j.ID); n != pawl.Completed {
		t.Errorf("the job is %v", n)
	}
}

// awaitQuery waits until the server runs a query that meets a condition on
// pg_stat_activity and the schema of s, $1.
func awaitQuery(t *testing.T, s *postgres.Store, condition string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for found := false; !found; {
		err := s.Pool().QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE "+condition+")", s.Schema()).Scan(&found)
		if err != nil {
			t.Fatal(err)
		}
	}
}
