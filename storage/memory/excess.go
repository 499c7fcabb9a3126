package memory

import (
	"math"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/excess"
)

// A round is a walk over all queues to purge final jobs that are too many, and
// buried ones that are too old. What is kept is known only to each Sweep, so no
// timer can tell. A round takes as many sweeps as it needs; Sweep.More is false
// when it is over. A queue within its numbers costs a comparison a state.
type round struct {
	after string   // the last queue that is done; "" between rounds
	next  earliest // when the first of the jobs seen and kept will go
}

// bound is what of a state a queue keeps.
type bound struct {
	state     pawl.State
	most      int           // 0: all
	retention time.Duration // 0: they do not go by age, or a timer sees to it
}

func boundsOf(spec *pawl.SweepSpec) (bounds []bound) {
	for _, b := range []bound{{state: pawl.Completed}, {state: pawl.Buried, retention: spec.BuriedRetention}, {state: pawl.Canceled}} {
		b.most = excess.Most(*spec, b.state)
		if b.most > 0 || b.retention > 0 {
			bounds = append(bounds, b)
		}
	}
	return bounds
}

// purgeExcess goes on with the round.
func (s *Store) purgeExcess(swept *pawl.Swept, limit int, bounds []bound, next *earliest, now int64) {
	w := &s.round
	budget, left := maxHold, limit-swept.Purged
	for budget > 0 && left > 0 {
		i, found := s.search(w.after)
		if found {
			i++
		}
		if i == len(s.sorted) {
			if w.next.set {
				next.note(w.next.at)
			}
			*w = round{}
			return
		}
		q := s.sorted[i]
		budget--
		for _, b := range bounds {
			purge, seen := q.overdue(b, &w.next, left, now)
			for _, r := range purge {
				s.unlink(r)
				s.forget(r)
			}
			swept.Purged += len(purge)
			budget -= seen
			left -= len(purge)
		}
		if left > 0 {
			w.after = q.name
		}
	}
	swept.More = true
}

// overdue returns up to limit final jobs of q that are to go, and how many it
// looked at: at most maxHold, so that one behind that many jobs which only their
// unique windows keep has to wait for these.
func (q *queue) overdue(b bound, next *earliest, limit int, now int64) (purge []*record, seen int) {
	beyond := 0
	if b.most > 0 {
		beyond = q.in[b.state].size - b.most
	}
	if limit == 0 || beyond <= 0 && b.retention == 0 {
		return nil, 0
	}
	for it := range q.in[b.state].from(key{rank: math.MinInt64}) {
		at := it.at
		if seen >= beyond {
			if b.retention == 0 {
				break // neither this one nor a later one
			}
			at = after(it.at, b.retention)
		}
		r := q.records.at(it.v)
		window := r.windowEnd()
		if goes := max(at, window); goes <= now {
			purge = append(purge, r)
		} else {
			next.note(goes)
		}
		seen++
		if len(purge) == limit || seen == maxHold || at > now && window <= at {
			break // later ones go later
		}
	}
	return purge, seen
}
