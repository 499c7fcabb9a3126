package memory

import (
	"testing"

	"github.com/pawlq/pawl"
)

func TestArenaGivesPagesBack(t *testing.T) {
	var a arena
	const n = 10 * pageSize
	seen := make(map[slot]bool)
	for range 3 { // room is used again
		for range n {
			r := a.take()
			if seen[r.slot] || r.slot == 0 || a.at(r.slot) != r || r.seq != 0 {
				t.Fatalf("slot %d twice, or not empty: %+v", r.slot, r)
			}
			seen[r.slot], r.seq = true, 1
		}
		for s := range seen {
			a.give(a.at(s))
		}
		clear(seen)
		for _, p := range a.pages {
			if p != nil {
				t.Fatal("a page without records was kept")
			}
		}
	}
	if len(a.pages) != n/pageSize || len(a.room) != len(a.pages) {
		t.Errorf("%d pages, %d with room, want %d", len(a.pages), len(a.room), n/pageSize)
	}
}

// An Enqueue that drops a job and then fails brings it back as it was, though
// others were stored meanwhile.
func TestUndoKeepsDroppedRecords(t *testing.T) {
	s, _ := newStore(t)
	full := func(w pawl.WhenFull) func(*pawl.Request) {
		return func(r *pawl.Request) { r.MaxDepth, r.WhenFull, r.Retention = 1, w, pawl.DeleteNow }
	}
	first := newRequest(full(pawl.Reject))
	enqueue(t, s, first)
	reqs := []*pawl.Request{newRequest(full(pawl.DropOldest)), newRequest(full(pawl.DropOldest)), newRequest(full(pawl.Reject))}
	if _, err := s.Enqueue(ctx, reqs); err == nil {
		t.Fatal("enqueued into a full queue")
	}
	if j := get(t, s, first.ID); j.State != pawl.Ready {
		t.Errorf("the job is %v", j.State)
	}
	check(t, s)
	used := 0
	for _, p := range s.records.pages {
		for i := range p.records {
			if p.records[i].slot != 0 {
				used++
			}
		}
	}
	if used != 1 {
		t.Errorf("%d records in use, want 1", used)
	}
}
