// Package excess finds the records of final jobs that are beyond the numbers of a
// Sweep, in pieces of bounded cost, for engines that have to count them.
package excess

import (
	"sync"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/pace"
)

// Limits of the work of a Sweep.
const (
	// perSweep is how many entries of an index a Sweep reads to count, on average;
	// some 20 ms of a server's work. A count that takes more is paid for by the
	// Sweeps after it, which count nothing.
	perSweep = 100_000
	// perQueue is what the look at a queue costs besides, in entries: a round trip.
	perQueue = 500
	// exact is the number up to which what is beyond it is found anew by each
	// step of its deletion.
	exact = 10_000
	// Hold is how many of the oldest records of a queue a Sweep looks at. Those
	// behind as many that only their unique windows keep have to wait for these.
	Hold = 10_000
)

// Most returns how many records of a final state the queues may keep, 0 if there is
// no limit.
func Most(spec pawl.SweepSpec, state pawl.State) (most int) {
	switch state {
	case pawl.Completed:
		most = spec.MaxCompleted
	case pawl.Buried:
		most = spec.MaxBuried
	case pawl.Canceled:
		most = spec.MaxCanceled
	}
	if most < 0 || most > pawl.MaxKept {
		return 0
	}
	return most
}

// A Bound is a number of records that queues may keep.
type Bound struct {
	State pawl.State
	Most  int
}

// Exact reports whether each step of a deletion must itself find the place beyond
// which b allows a queue to keep records: jobs are kicked and deleted meanwhile.
func (b Bound) Exact() bool { return b.Most <= exact }

// A Cut is what a queue has too much: all records of the state up to the place Last, and it
// included, in order of FinishedAt. A number of them would be wrong as soon as
// somebody else deletes some; up to a place they are the same ones for all.
type Cut[P any] struct {
	Queue string
	Bound
	Last P
}

// Source is how an engine looks and deletes.
type Source[P any] struct {
	// Look counts in the first queue with a name after the given one, which is empty if
	// there is none, and returns how many entries that has read. With an error it returns
	// the name too, if it is known.
	Look func(after string, bounds []Bound) (queue string, cuts []Cut[P], read int, err error)
	// Nth finds the place of the nth record of a cut, from 1, if it has as many.
	Nth func(c Cut[P], n int) (place P, ok bool, err error)
	// Purge deletes up to limit records of a cut, the oldest first, but for those that a unique
	// window keeps. If the cut is Exact, each step heeds what the queue has by then.
	Purge func(c Cut[P], limit int) (n int, err error)
}

// Count is a look at a queue by two questions: atLeast counts records of a state up to
// a limit, newest finds the place that n newer ones follow.
func Count[P any](queue string, bounds []Bound, atLeast func(state pawl.State, limit int) (int, error),
	newest func(state pawl.State, n int) (P, error)) (cuts []Cut[P], read int, err error) {
	for _, bound := range bounds {
		n, err := atLeast(bound.State, bound.Most+1)
		if err != nil {
			return nil, 0, err
		}
		if read += n; n <= bound.Most {
			continue
		}
		c := Cut[P]{Queue: queue, Bound: bound}
		if c.Last, err = newest(bound.State, bound.Most); err != nil {
			return nil, 0, err
		}
		read += bound.Most
		cuts = append(cuts, c)
	}
	return cuts, read, nil
}

// A Round is how far a Store is on its way around the queues. The zero Round is at
// the beginning.
type Round[P any] struct {
	mu     sync.Mutex // held by the Sweep at work
	credit int        // of entries to read
	after  string     // the queue that was looked at last
	begun  []Cut[P]   // beyond great numbers, not yet deleted to their ends
}

// Sweep deletes up to limit records that are beyond the numbers of spec. If another
// Sweep of the Store is at it, it leaves that to it.
func (r *Round[P]) Sweep(spec pawl.SweepSpec, limit int, from Source[P]) (purged int, err error) {
	bounds := boundsOf(spec)
	if len(bounds) == 0 || limit <= 0 || !r.mu.TryLock() {
		return 0, nil
	}
	defer r.mu.Unlock()
	r.credit = min(r.credit, 0) + perSweep
	if purged, err = r.goOn(spec, limit, from); err != nil {
		return purged, err
	}
	for begin, again := r.after, false; r.credit > 0 && purged < limit; {
		queue, cuts, read, err := from.Look(r.after, bounds)
		if err != nil {
			// It may take too long. Not each Sweep is to fail, and the queues behind have
			// their turn.
			r.credit -= most(bounds)
			r.after = max(r.after, queue)
			return purged, err
		}
		r.credit -= read + perQueue
		r.after = queue
		for _, c := range cuts {
			n, err := r.purge(c, limit-purged, from)
			if purged += n; err != nil || purged == limit {
				return purged, err
			}
		}
		switch {
		case queue == "" && begin != "" && !again:
			again = true
		case queue == "", again && queue >= begin:
			return purged, nil
		}
	}
	return purged, nil
}

// goOn deletes what Sweeps before have found and not deleted.
func (r *Round[P]) goOn(spec pawl.SweepSpec, limit int, from Source[P]) (purged int, err error) {
	begun := r.begun
	r.begun = nil
	for i, c := range begun {
		if most := Most(spec, c.State); most == 0 || most > c.Most {
			continue
		}
		n, err := r.purge(c, limit-purged, from)
		if purged += n; err != nil || purged == limit {
			r.begun = append(r.begun, begun[i+1:]...)
			return purged, err
		}
	}
	return purged, nil
}

// purge deletes from the beginning of a cut, and from more of it only if unique windows
// keep some of that.
func (r *Round[P]) purge(c Cut[P], limit int, from Source[P]) (n int, err error) {
	for _, hold := range []int{limit, Hold} {
		step := c
		place, ok, err := from.Nth(c, hold)
		r.credit -= hold
		if err != nil {
			return n, err
		}
		if ok {
			step.Last = place
		}
		k, err := from.Purge(step, limit-n)
		if c.Exact() {
			r.credit -= (k/pace.Step + 1) * c.Most
		}
		if n += k; err != nil {
			return n, err
		}
		if n == limit || !ok {
			break
		}
	}
	if n == limit && !c.Exact() {
		r.begun = append(r.begun, c)
	}
	return n, nil
}

// most is how many entries a look can read.
func most(bounds []Bound) (n int) {
	for _, b := range bounds {
		n += 2*b.Most + 1
	}
	return n
}

func boundsOf(spec pawl.SweepSpec) (bounds []Bound) {
	for _, state := range []pawl.State{pawl.Completed, pawl.Buried, pawl.Canceled} {
		if most := Most(spec, state); most > 0 {
			bounds = append(bounds, Bound{state, most})
		}
	}
	return bounds
}
