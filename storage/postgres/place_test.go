package postgres

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
)

// TestMovedRows reads what was claimed after all rows have moved since, and acks
// it.
func TestMovedRows(t *testing.T) {
	pool := planPool(t)
	s, err := New(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	reqs := make([]*pawl.Request, 20)
	for i := range reqs {
		reqs[i] = &pawl.Request{ID: uuid.Must(uuid.NewV7()), Queue: "q", Kind: "k", MaxAttempts: 3, MaxRescues: 3, Retention: time.Hour}
	}
	if _, err := s.Enqueue(t.Context(), reqs); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "DELETE FROM pawl_job WHERE seq = 1", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	c, err := s.Claim(t.Context(), pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: "q", Max: 10}}, Max: 10, Lease: time.Minute, Worker: "w"})
	if err != nil || len(c.Jobs) != 10 {
		t.Fatal(err, len(c.Jobs))
	}
	if _, err := pool.Exec(t.Context(), "VACUUM FULL pawl_job", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	var stayed, mark int64
	if err := pool.QueryRow(t.Context(), `SELECT count(j.seq), min(c.mark) FROM pawl_claim c CROSS JOIN LATERAL unnest(c.tids, c.seqs) AS u(tid, seq)
		LEFT JOIN pawl_job j ON j.ctid = u.tid AND j.seq = u.seq`).Scan(&stayed, &mark); err != nil {
		t.Fatal(err)
	}
	if stayed != 0 {
		t.Fatalf("%d rows are still in their place", stayed)
	}
	found := make(map[pawl.ID]bool)
	err = s.read(t.Context(), func(row scanner) error {
		r := new(record)
		err := r.scanFresh(row, &claimed{fence: 1, worker: "w"})
		found[r.id] = r.state == pawl.Running
		return err
	}, s.q.findFresh, mark)
	if err != nil {
		t.Fatal(err)
	}
	outcomes := make([]pawl.Outcome, len(c.Jobs))
	for i, j := range c.Jobs {
		if !found[j.ID] {
			t.Errorf("%v was not found where it went", j.ID)
		}
		outcomes[i] = pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack}
	}
	if lost, err := s.Settle(t.Context(), outcomes); err != nil || len(lost) > 0 {
		t.Error(lost, err)
	}
}
