package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A faultKind is what is done to a run. Its number is the A of events.
type faultKind int

const (
	killWorker   faultKind = iota + 1 // SIGKILL
	killProducer                      // SIGKILL
	pauseWorker                       // SIGSTOP for longer than a lease
	stopWorker                        // SIGTERM
	killServer                        // SIGKILL, and started again
	haltServer                        // ended in order, and started again
	endBackends                       // connections are ended inside the server
	cutAll                            // connections are ended outside of it
	holdAll                           // nothing passes for longer than a lease
	slowAll                           // all that passes is slow
	flushScripts                      // Redis forgets its scripts
	fillDisk                          // nothing more can be stored for a while
	cutCommits                        // counted apart: commits that were cut
	loseWakes                         // counted apart: wake-ups that did not arrive
	doubleWakes                       // counted apart: wake-ups that came twice
	numFaultKinds
)

var faultNames = [numFaultKinds]string{"", "worker kills", "producer kills", "worker pauses", "worker stops", "server kills", "server stops",
	"backend kills", "cuts", "black holes", "slow spells", "script flushes", "full disks", "commit cuts", "lost wake-ups", "double wake-ups"}

func (k faultKind) String() string { return faultNames[k] }

// shares of the kinds in a schedule.
var faultShares = [numFaultKinds]int{killWorker: 30, killProducer: 5, pauseWorker: 5, stopWorker: 5, killServer: 6, haltServer: 1,
	endBackends: 12, cutAll: 6, holdAll: 1, slowAll: 2, flushScripts: 4, fillDisk: 3}

// A fault is one entry of a schedule.
type fault struct {
	after time.Duration // the one before
	kind  faultKind
	who   int // number that chooses a process
	spell float64
}

func (f fault) String() string { return fmt.Sprintf("%v, %d (%.2f)", f.kind, f.who, f.spell) }

// A schedule draws faults from a seed, without end. Which ones there are depends on
// the place alone.
type schedule struct {
	rnd   *rand.Rand
	every time.Duration
	kinds []faultKind // as often as their share
}

func newSchedule(seed uint64, every time.Duration, can func(faultKind) bool) *schedule {
	s := &schedule{rnd: rand.New(rand.NewPCG(seed, 0)), every: every}
	for k := killWorker; k < numFaultKinds; k++ {
		for range faultShares[k] {
			if can(k) {
				s.kinds = append(s.kinds, k)
			}
		}
	}
	return s
}

func (s *schedule) next() fault {
	gap := time.Duration(s.rnd.ExpFloat64() * float64(s.every))
	return fault{
		after: min(gap, 5*s.every),
		kind:  s.kinds[s.rnd.IntN(len(s.kinds))],
		who:   s.rnd.IntN(1 << 20),
		spell: s.rnd.Float64(),
	}
}

// share is the part of faults that are of a kind.
func (s *schedule) share(k faultKind) float64 {
	n := 0
	for _, other := range s.kinds {
		if other == k {
			n++
		}
	}
	return float64(n) / float64(len(s.kinds))
}
