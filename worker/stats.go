package worker

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pawlq/pawl"
)

// Stats are the numbers of a pool since it was made.
type Stats struct {
	Claimed   int64 // jobs claimed
	Started   int64 // handlers called
	Completed int64 // jobs acked
	Failed    int64 // runs that failed, those that led to a burial included
	Buried    int64 // jobs buried after a run here
	Released  int64 // jobs handed back
	Snoozed   int64 // jobs that asked to run again later
	Skipped   int64 // jobs handed back because no handler runs their kind
	Lost      int64 // claims that ended before this pool could settle them, or were given up

	Rescued      int64 // jobs that this pool's sweeps took back from dead workers
	RescueBuried int64 // jobs that this pool's sweeps buried because too many workers died with them

	Running    int // handlers that run now
	Prefetched int // claimed jobs that wait for a slot
	Stuck      int // handlers given up that have not yet returned
	Slots      int // jobs that can run at the same time now; more may run for a while after that fell

	Claims  int64 // calls that claimed
	Settles int64 // calls that settled
	Settled int64 // outcomes settled in them

	LastProgress time.Time // when a job ended or the storage last answered

	// Queues are the numbers of the pool's queues, whoever works on them, as
	// counted at CountedAt; see Options.CountEvery.
	Queues    []pawl.QueueStats
	CountedAt time.Time
}

// ClaimBatch is the mean number of jobs in a claim.
func (s Stats) ClaimBatch() float64 { return mean(s.Claimed, s.Claims) }

// SettleBatch is the mean number of outcomes in a settle.
func (s Stats) SettleBatch() float64 { return mean(s.Settled, s.Settles) }

func mean(sum, n int64) float64 {
	if n == 0 {
		return 0
	}
	return float64(sum) / float64(n)
}

// Stats returns the numbers of the pool.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Queues = slices.Clone(s.Queues)
	for _, g := range p.groups {
		s.Slots += g.width()
	}
	s.LastProgress = p.wall(p.progress)
	return s
}

// Health says how a pool is. It follows progress, not occupancy: a pool whose
// slots are all busy with long jobs is well.
type Health struct {
	// Live is false if only a new process can help: the slots of a queue are
	// all held by handlers that ignore the end of their contexts, or the pool
	// has not looked for jobs for a minute, though it looks every ten seconds at
	// least, because a call of the storage does not return.
	Live bool
	// Ready is false while the pool does not take up jobs: before Run, from
	// stop on, and while the storage has failed for some time.
	Ready bool
	// Reason says what is wrong, or is empty.
	Reason string
	// LastProgress is when a job ended or the storage last answered.
	LastProgress time.Time
}

// unreadyAfter is how long the storage may fail before the pool counts as not
// ready; shorter failures are common and heal.
const unreadyAfter = 10 * time.Second

// deadAfter is how long the fetcher may make no round. At the longest, one that
// is well waits for roundEvery and then for a call's timeout and its repetition.
const deadAfter = time.Minute

// Health returns how the pool is.
func (p *Pool) Health() Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := Health{Live: true, Ready: true, LastProgress: p.wall(p.progress)}
	var reasons []string
	unready := func(reason string) {
		h.Ready = false
		reasons = append(reasons, reason)
	}
	if !p.started {
		unready("not running")
	}
	if p.stopping {
		unready("stopping")
	}
	for _, g := range p.groups {
		if g.slots == 0 && !p.closing {
			h.Live = false
			unready(fmt.Sprintf("all slots of %s are stuck", strings.Join(g.queues, ", ")))
		}
	}
	now := p.now()
	if silent := now.sub(p.round); p.begun && !p.stopping && silent >= deadAfter {
		h.Live = false
		unready(fmt.Sprintf("has not looked for jobs for %v", silent.Round(time.Second)))
	}
	for _, what := range slices.Sorted(maps.Keys(p.bad)) {
		since := now.sub(p.bad[what])
		if since >= unreadyAfter && what != "watch" && what != "count" { // without those it works as well
			unready(fmt.Sprintf("storage fails to %s for %v", what, since.Round(time.Second)))
		}
	}
	h.Reason = strings.Join(reasons, "; ")
	return h
}
