package tasktest

import (
	"sync"
	"time"
)

// A Clock is moved by hand. Given to a storage that takes one,
//
//	clock := tasktest.NewClock(time.Now())
//	q := pawl.New(memory.New(&memory.Options{Clock: clock.Now}), nil)
//
// it moves all that the storage's clock decides together: delays and RunAt, the
// backoff of failed jobs, leases, StartBefore, retention. So a test enqueues,
// calls Advance, then Sweep of the Queue, which takes jobs from workers whose
// leases are over, and worker.Drain, which runs what is due. storage/memory and
// storage/sqlite take one, and a [Recorder] does.
//
// The storages on servers take one too, which their Store goes by instead of the
// server's clock. All Stores on the tables then have to be given the same, so it
// is for tests that have the tables to themselves, in one process.
//
// It does not move time.Now, which a pool and handlers go by: for those, run the
// test on storage/memory in a bubble of testing/synctest, where all clocks are
// one, and no Clock is needed. A Clock is safe for concurrent use.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a Clock that stands at start.
func NewClock(start time.Time) *Clock { return &Clock{now: start} }

// Now returns the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock on by d and returns the time. It panics if d is
// negative: storages rely on it.
func (c *Clock) Advance(d time.Duration) time.Time {
	if d < 0 {
		panic("tasktest: a Clock does not go back")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return c.now
}
