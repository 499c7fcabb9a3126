package postgres_test

import (
	"testing"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
)

// TestManyClaimsAreOver: a sweep that leaves rows of claims whose time has come says
// that there is more to do, and those that follow drop them all.
func TestManyClaimsAreOver(t *testing.T) {
	s := fresh(t, postgres.Options{})
	enqueue(t, s, pawl.Request{})
	running := claim(t, s, 1)[0]
	inSchema(t, s, `INSERT INTO pawl_claim (fence, token, mark, claimed_at, lease, until, lo, hi, queue, worker, seqs, xids, ids)
		SELECT -n, n, n, 1, 1, 1, n, n, 'q', 'w', ARRAY[-n], ARRAY['3'::xid8], '{}' FROM generate_series(1, 2500) n`)
	for _, want := range []struct {
		more bool
		left int
	}{{true, 1501}, {true, 501}, {false, 1}, {false, 1}} {
		swept, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		var left int
		if err := s.Pool().QueryRow(t.Context(), "SELECT count(*) FROM "+s.Schema()+".pawl_claim").Scan(&left); err != nil {
			t.Fatal(err)
		}
		if swept.More != want.more || left != want.left {
			t.Fatalf("more %v with %d claims left, want %v with %d", swept.More, left, want.more, want.left)
		}
	}
	settle(t, s, pawl.Outcome{Ref: running.Ref, Verb: pawl.Ack})
}
