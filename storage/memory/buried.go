package memory

import (
	"math"

	"github.com/pawlq/pawl"
)

// A round is a walk over all queues to purge buried jobs. How long they are
// kept is known only to each Sweep, so no timer can tell. A round takes as many
// sweeps as it needs; Sweep.More is false when it is over.
type round struct {
	after string   // the last queue that is done; "" between rounds
	next  earliest // when the first of the jobs seen and kept will go
}

// purgeBuried goes on with the round of buried jobs.
func (s *Store) purgeBuried(swept *pawl.Swept, spec *pawl.SweepSpec, next *earliest, now int64) {
	w := &s.round
	budget, limit := maxHold, spec.Limit-swept.Purged
	for budget > 0 && limit > 0 {
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
		purge, seen := q.overdue(spec, &w.next, limit, now)
		for _, r := range purge {
			s.unlink(r)
			s.forget(r)
		}
		swept.Purged += len(purge)
		budget -= seen + 1
		limit -= len(purge)
		if limit > 0 {
			w.after = q.name
		}
	}
	swept.More = true
}

// overdue returns up to limit buried jobs of q whose time is over, and how many
// it looked at: at most maxHold, so that one behind that many jobs which only
// their unique windows keep has to wait for these.
func (q *queue) overdue(spec *pawl.SweepSpec, next *earliest, limit int, now int64) (purge []*record, seen int) {
	beyond := 0
	if spec.MaxBuried > 0 {
		beyond = q.in[pawl.Buried].size - spec.MaxBuried
	}
	for it := range q.in[pawl.Buried].from(key{rank: math.MinInt64}) {
		at := it.at
		if seen >= beyond {
			if spec.BuriedRetention == 0 {
				break // neither this one nor a later one
			}
			at = after(it.at, spec.BuriedRetention)
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
