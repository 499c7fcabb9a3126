package worker

import (
	"sync"
	"time"
)

// A group is slots and the queues that they serve: one queue, all that have a
// weight, or with Options.Strict all of them in order. Its fields are guarded by
// Pool.mu.
type group struct {
	queues []string
	shares map[string]*share // of queues with a weight, else nil
	order  []*share          // the same as the present claim asks for them
	fixed  int               // Options.Prefetch

	work    sync.Cond // slots wait here for runs in ready
	ready   fifo
	limit   int     // how many slots there are to be
	slots   int     // those that can take a run
	lost    int     // those held by handlers that were given up, and not replaced
	running int     // runs in them
	parked  int     // slots that wait, woken ones that have not yet run included
	waking  int     // of them woken
	started instant // when a run last did, and so a slot was free

	// Moving averages over the last runs, for the prefetch.
	duration time.Duration
	size     int // bytes of payload and result
	measured bool

	dry    bool    // the last claim found less than it asked for
	wetAt  instant // when to look again even so
	events uint64  // counts what would have ended dry, to see it during a claim
	asked  int     // for in the present claim
	got    int     // by it
	seen   uint64  // events when it was made
	shrunk bool    // the limit fell after it was made
	empty  int     // claims in a row that found nothing

	careful instant // if not 0, nothing is prefetched until then and until a slot is free for what comes
}

// Bounds of the adaptive prefetch. Measured: as many as slots suffices from
// 10 ms a job; below 1 ms a round trip must bring some hundreds.
const (
	prefetchTime  = 50 * time.Millisecond // of work at hand
	prefetchMost  = 500
	prefetchBytes = 16 << 20    // of payloads at hand
	carefulTime   = time.Second // for a job handed back to be settled and claimed again
	slowJob       = 10 * time.Millisecond
	fastJob       = time.Millisecond
)

// prefetch returns how many runs are wanted beyond the free slots. The average
// knows nothing of the runs that have not ended: when all slots are busy, also
// with their newest runs for longer than the prefetch is to last, it is wrong.
func (g *group) prefetch(now instant) int {
	switch {
	case g.wary(now):
		return 0
	case g.fixed > 0:
		return min(g.fixed, g.room())
	case g.fixed < 0 || !g.measured || g.duration > prefetchTime:
		return 0
	case g.running >= g.width() && now.sub(g.started) > prefetchTime:
		return 0
	}
	n := int(time.Duration(g.width()) * prefetchTime / max(g.duration, time.Microsecond))
	switch {
	case g.duration >= slowJob:
		n = min(n, g.width())
	case g.duration > fastJob:
		n = min(n, max(g.width(), prefetchMost/5))
	default:
		n = min(n, prefetchMost)
	}
	return min(n, g.room())
}

// room returns how many runs of average size prefetchBytes holds.
func (g *group) room() int { return prefetchBytes / max(g.size, 1) }

// want returns how many runs the group lacks, or 0 if that is not worth a
// claim yet: with a free slot each one is, else half of the prefetch.
func (g *group) want(now instant) int {
	prefetch := g.prefetch(now)
	have := g.running + g.ready.len()
	lack := g.width() + prefetch - have
	if have >= g.width() && lack < max(1, prefetch/2) {
		return 0
	}
	return max(lack, 0)
}

// wary reports whether a job was handed back because it was not to wait here, and
// so is to come by a claim of what can start at once.
func (g *group) wary(now instant) bool {
	if now >= g.careful && !g.busy() {
		g.careful = 0
	}
	return g.careful != 0
}

// busy reports whether one more run would have to wait for a slot.
func (g *group) busy() bool { return g.running+g.ready.len() >= g.width() }

// ran notes the duration of a run.
func (g *group) ran(d time.Duration, size int) {
	if !g.measured {
		g.duration, g.size, g.measured = d, size, true
		return
	}
	g.duration += (d - g.duration) / 16
	g.size += (size - g.size) / 16
}

// call wakes a parked slot if there is work for one and not yet as many are
// waking as can run at all: each one that wakes calls the next.
func (g *group) call(procs int) {
	if g.ready.len() > 0 && g.parked > g.waking && g.waking < procs {
		g.waking++
		g.work.Signal()
	}
}

// wet ends dry, for there may be jobs in the queue, or if it is empty in any.
func (g *group) wet(queue string) {
	g.dry = false
	if s := g.shares[queue]; s != nil {
		s.dry = false
	}
	g.events++
}
