package worker

import (
	"slices"
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
	Canceled  int64 // those of them whose jobs were canceled or deleted by hand

	Rescued      int64 // jobs that this pool's sweeps took back from dead workers
	RescueBuried int64 // jobs that this pool's sweeps buried because too many workers died with them

	Running    int // handlers that run now
	Prefetched int // claimed jobs that wait for a slot
	Stuck      int // handlers given up that have not yet returned
	Slots      int // jobs that can run at the same time now; more may run for a while after that fell

	Claims      int64 // calls that claimed
	EmptyClaims int64 // those of them that found no jobs
	Settles     int64 // calls that settled
	Settled     int64 // outcomes settled in them

	LastProgress time.Time // when a job ended or the storage last answered

	// Queues are the numbers of the pool's queues, whoever works on them, as
	// counted at CountedAt; see Options.CountEvery.
	Queues    []pawl.QueueStats
	CountedAt time.Time
}

// ClaimBatch is the mean number of jobs in a claim that found some.
func (s Stats) ClaimBatch() float64 { return mean(s.Claimed, s.Claims-s.EmptyClaims) }

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
		if !p.closing { // else all end
			s.Slots += g.width()
		}
	}
	s.LastProgress = p.wall(p.progress)
	return s
}
