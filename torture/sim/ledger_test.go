package sim

import (
	"testing"

	"github.com/pawlq/pawl"
)

// TestLedger tells of a job what must not be, and what may.
func TestLedger(t *testing.T) {
	id := pawl.ID{1}
	ref := func(fence int64) pawl.Ref { return pawl.Ref{ID: id, Fence: fence} }
	claim := func(l *ledger, fence int64) { l.claimed([]*pawl.Job{{Ref: ref(fence)}}) }
	settle := func(l *ledger, fence int64, verb pawl.Verb, lost ...pawl.Ref) {
		l.settled([]pawl.Outcome{{Ref: ref(fence), Verb: verb}}, lost)
	}
	for _, c := range []struct {
		name     string
		tell     func(l *ledger)
		problems int
	}{
		{"acked", func(l *ledger) { claim(l, 1); settle(l, 1, pawl.Ack) }, 0},
		{"failed and claimed again", func(l *ledger) { claim(l, 1); settle(l, 1, pawl.Nack); claim(l, 2) }, 0},
		{"a fence given twice", func(l *ledger) { claim(l, 1); settle(l, 1, pawl.Nack); claim(l, 1) }, 1},
		{"a stale ack", func(l *ledger) { claim(l, 1); claim(l, 2); settle(l, 1, pawl.Ack) }, 1},
		{"a stale nack", func(l *ledger) { claim(l, 1); claim(l, 2); settle(l, 1, pawl.Nack) }, 1},
		{"a stale release", func(l *ledger) { claim(l, 1); claim(l, 2); settle(l, 1, pawl.Release) }, 1},
		{"a stale nack that was refused", func(l *ledger) { claim(l, 1); claim(l, 2); settle(l, 1, pawl.Nack, ref(1)) }, 0},
		{"claimed after its end", func(l *ledger) { claim(l, 1); settle(l, 1, pawl.Bury); claim(l, 2) }, 1},
		{"a stale extension", func(l *ledger) { claim(l, 1); claim(l, 2); l.extended([]pawl.Renewal{{Ref: ref(1)}}, nil) }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLedger()
			l.jobs[id] = &entry{}
			c.tell(l)
			if len(l.problems) != c.problems {
				t.Errorf("%d problems, want %d: %v", len(l.problems), c.problems, l.problems)
			}
		})
	}
}
