// Package excess finds the records of final jobs that are beyond the numbers of a
// Sweep, in pieces of bounded cost, for engines that have to count them.
package excess

import (
	"sync"

	"github.com/pawlq/pawl"
)

// Limits of the work of a Sweep.
const (
	// perSweep is how many entries of an index a Sweep reads to count, on average;
	// some 20 ms of a server's work. A count that takes more is paid for by the
	// Sweeps after it, which count nothing.
	perSweep = 100_000
	// perQueue is what the look at a queue costs besides, in entries: a round trip.
	perQueue = 500
	// exact is the number up to which what is beyond it is found anew for each
	// step of its deletion.
	exact = 10_000
	// Hold is how many of the oldest records of a queue a step looks at. Those
	// behind as many that only their unique windows keep have to wait for these.
	Hold = 10_000
)

// Most returns how many records of a final state the queues may keep, 0 if there is
// no limit.
func Most(spec pawl.SweepSpec, state pawl.State) int {
	most := map[pawl.State]int{
		pawl.Completed: spec.MaxCompleted, pawl.Buried: spec.MaxBuried, pawl.Canceled: spec.MaxCanceled,
	}[state]
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
	// there is none, and returns how many entries that has read.
	Look func(after string, bounds []Bound) (queue string, cuts []Cut[P], read int, err error)
	// Purge deletes up to limit records, the oldest first.
	Purge func(c Cut[P], limit int) (n int, err error)
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
			r.credit -= most(bounds) // it may take too long: not each Sweep is to fail
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

func (r *Round[P]) purge(c Cut[P], limit int, from Source[P]) (n int, err error) {
	n, err = from.Purge(c, limit)
	if err == nil && n == limit && c.Most > exact {
		r.begun = append(r.begun, c)
	}
	return n, err
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
