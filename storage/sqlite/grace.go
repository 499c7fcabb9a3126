package sqlite

import (
	"sync"
	"time"
)

// delays remembers from when to when the file was out of reach for this
// process, over all attempts until one succeeds: heartbeats may have failed
// meanwhile.
type delays struct {
	mu       sync.Mutex
	from, to time.Time
}

func (d *delays) note(from, to time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.from.IsZero() || from.Before(d.from) {
		d.from = from
	}
	if to.After(d.to) {
		d.to = to
	}
}

// clear returns what was noted and forgets it.
func (d *delays) clear() (from, to time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	from, to = d.from, d.to
	d.from, d.to = time.Time{}, time.Time{}
	return from, to
}

// grace is a time, by the storage's clock, at which leases could not be
// extended: those that ended between from and to, or soon after, last longer.
type grace struct {
	from, to int64
	// until is when another such time ceases to lengthen this one, so that
	// many short ones never keep a dead worker's lease alive.
	until int64
}

// minStep is the smallest step of the wall clock that counts, more than it is
// slewed by between two commits.
const minStep = 50 * time.Millisecond

// step notes that the clock has moved forward by so much to now, other than by
// the time that passed: the leases that have ended by that could not be extended.
// A step back moves a grace with it.
func (g *grace) step(by, now int64) {
	if by > 0 {
		g.add(now-by, now)
		return
	}
	g.from, g.to, g.until = g.from+by, g.to+by, g.until+by
}

func (g *grace) add(from, to int64) {
	if from < g.until {
		from = min(from, g.from)
	} else {
		g.until = to + maxGrace.Microseconds()
	}
	g.from, g.to = from, to
}
