package check

import (
	"fmt"
	"strings"
)

// A Phase is what a process was at when it died.
type Phase int

const (
	Waiting   Phase = iota // it had claimed jobs that had not begun
	Running                // jobs ran
	Settling               // it had sent outcomes, and had no answer
	Enqueuing              // it had sent requests, and had no answer
	NumPhases
)

var phaseNames = [NumPhases]string{"jobs that had not begun", "jobs that ran", "outcomes not answered", "enqueues not answered"}

func (p Phase) String() string { return phaseNames[p] }

// Phases counts the deaths in each phase. One may be in several.
type Phases [NumPhases]int64

func (n Phases) String() string {
	var parts []string
	for p, count := range n {
		parts = append(parts, fmt.Sprintf("%s %d", Phase(p), count))
	}
	return strings.Join(parts, ", ")
}

// sortDeaths counts the deaths of workers, and sorts all into phases.
func (c *checker) sortDeaths() {
	in := map[int64]*[NumPhases]bool{}
	for number := range c.died {
		in[number] = new([NumPhases]bool)
		if strings.HasPrefix(c.workers[number], "worker-") {
			c.r.WorkerDeaths++
		}
	}
	for _, j := range c.jobs {
		if at := in[j.producer]; at != nil && j.asking {
			at[Enqueuing] = true
		}
		for i := range j.claims {
			k := &j.claims[i]
			at := in[k.process]
			if phase, ok := k.phase(c.died[k.process]); ok && at != nil && !j.class.Transactional() {
				at[phase] = true
			}
		}
	}
	for _, at := range in {
		for p, hit := range at {
			if hit {
				c.r.Phases[p]++
			}
		}
	}
}

// phase is what a claim was in at a time, in µs by the wall clock, if it was not over: a claim
// that its process had lost may never have had an outcome.
func (k *claim) phase(at int64) (p Phase, ok bool) {
	switch {
	case max(k.leaseUntil, k.hopedUntil) < at:
		return 0, false
	case k.unanswered > 0:
		return Settling, true
	case k.offered != 0:
		return 0, false
	case k.starts > 0:
		return Running, true
	default:
		return Waiting, true
	}
}
