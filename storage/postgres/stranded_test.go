package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
)

func sweep(t *testing.T, s *postgres.Store) {
	t.Helper()
	if _, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 100}); err != nil {
		t.Fatal(err)
	}
}

// TestStranded: a job that is behind the head, but in no claim, runs all the
// same; one that is in a claim, or late, is left alone.
func TestStranded(t *testing.T) {
	s := fresh(t, postgres.Options{})
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	late := enqueue(t, s.Tx(tx), pawl.Request{}).ID
	for range 3 {
		enqueue(t, s, pawl.Request{})
	}
	stranded := claim(t, s, 2)
	running := claim(t, s, 1)[0]
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	inSchema(t, s, "UPDATE pawl_job SET run_at = run_at - 120000000")
	sweep(t, s)
	if got := state(t, s, stranded[0].ID); got != pawl.Running {
		t.Fatalf("a job in a claim is %v", got)
	}
	inSchema(t, s, "DELETE FROM pawl_claim WHERE cardinality(seqs) = 2")
	sweep(t, s)
	again := map[pawl.ID]bool{late: true, stranded[0].ID: true, stranded[1].ID: true}
	for _, j := range claim(t, s, 3) {
		if !again[j.ID] {
			t.Errorf("claimed %v", j.ID)
		}
		delete(again, j.ID)
	}
	settle(t, s, pawl.Outcome{Ref: running.Ref, Verb: pawl.Ack})
}

// TestUnusedHeads: heads of queues that are used no more go, but none with a job
// that is fresh.
func TestUnusedHeads(t *testing.T) {
	s := fresh(t, postgres.Options{})
	enqueue(t, s, pawl.Request{})
	job := claim(t, s, 1)[0]
	heads := func(want int) {
		t.Helper()
		sweep(t, s)
		var n int
		if err := s.Pool().QueryRow(t.Context(), "SELECT count(*) FROM "+s.Schema()+".pawl_head").Scan(&n); err != nil || n != want {
			t.Errorf("%d heads, error %v, want %d", n, err, want)
		}
	}
	const pass = "DO $$ BEGIN FOR i IN 1..10100 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
	if _, err := s.Pool().Exec(t.Context(), pass, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	heads(1)
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	late := enqueue(t, s.Tx(tx), pawl.Request{}).ID
	settle(t, s, pawl.Outcome{Ref: job.Ref, Verb: pawl.Ack})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	heads(1) // there is a job that no claim has taken
	settle(t, s, pawl.Outcome{Ref: claim(t, s, 1)[0].Ref, Verb: pawl.Ack})
	heads(1) // which has moved it
	if _, err := s.Pool().Exec(t.Context(), pass, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	heads(0)
	if id := enqueue(t, s, pawl.Request{}).ID; claim(t, s, 1)[0].ID != id || id == late {
		t.Error("claimed another job than the new one")
	}
	claim(t, s, 0)
}
