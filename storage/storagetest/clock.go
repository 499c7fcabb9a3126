package storagetest

import (
	"sync"
	"time"
)

// Epoch is the instant at which a [Clock] starts.
var Epoch = time.Date(2030, time.March, 1, 12, 0, 0, 0, time.UTC)

// A Clock stands still until it is moved. It may be used concurrently.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a Clock that shows [Epoch].
func NewClock() *Clock { return &Clock{now: Epoch} }

// Now returns the time that c shows, in UTC.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves c by d and returns what it then shows.
func (c *Clock) Advance(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return c.now
}

// Set makes c show t.
func (c *Clock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = t.UTC()
}
