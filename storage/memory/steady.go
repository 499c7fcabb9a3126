package memory

import "time"

// minStep is the smallest step of the wall clock that the store follows.
// Smaller differences come from slewing and are not worth a look.
const minStep = 100 * time.Millisecond

// steady is the store's clock if the caller gives none. It shows the wall clock
// of the time when it was made, plus the time that has passed since: if the
// wall clock is set, or the machine sleeps, no lease ends by that. While nothing
// runs it follows the wall clock.
type steady struct {
	// read gives the wall clock, and the time that has passed by a clock that
	// nobody sets.
	read   func() (wall time.Time, passed time.Duration)
	offset int64 // what to add to passed, in nanoseconds since 1970
}

func newSteady(read func() (time.Time, time.Duration)) *steady {
	wall, passed := read()
	return &steady{read: read, offset: wall.UnixNano() - int64(passed)}
}

// system reads the clocks of the machine.
func system() func() (time.Time, time.Duration) {
	start := time.Now()
	return func() (time.Time, time.Duration) {
		now := time.Now()
		return now, now.Sub(start)
	}
}

// now returns the time in microseconds since 1970. Leases are at stake while
// something is running.
func (c *steady) now(running bool) int64 {
	wall, passed := c.read()
	at := c.offset + int64(passed)
	if by := wall.UnixNano() - at; !running && max(by, -by) >= int64(minStep) {
		c.offset += by
		at += by
	}
	return at / int64(time.Microsecond)
}
