package postgres_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

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
