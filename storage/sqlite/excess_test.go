package sqlite_test

import (
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/excess"
	"github.com/pawlq/pawl/storage/sqlite"
)

// TestExcessBehindWindows: a sweep that may delete jobs looks at the oldest excess.Hold
// only, so that windows do not make it read all; what is behind goes in its time.
func TestExcessBehindWindows(t *testing.T) {
	c := newClock()
	s := open(t, &sqlite.Options{Clock: c.Now, Synchronous: sqlite.Off})
	const kept, plain = 10, 20
	// complete ends n jobs, all at one time.
	complete := func(n int, f func(r *pawl.Request)) {
		enqueue(t, s, requests(n, func(r *pawl.Request) { r.Retention = 24 * time.Hour }, f)...)
		for jobs := claim(t, s, pawl.MaxStep); len(jobs) > 0; jobs = claim(t, s, pawl.MaxStep) {
			settle(t, s, ack(jobs)...)
		}
		c.Advance(time.Second)
	}
	purged := func() (n int) {
		t.Helper()
		for {
			swept, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: pawl.MaxStep, MaxCompleted: kept})
			if err != nil {
				t.Fatal(err)
			}
			if n += swept.Purged; !swept.More {
				return n
			}
		}
	}
	window := func(d time.Duration) func(*pawl.Request) {
		return func(r *pawl.Request) {
			r.UniqueKey, r.UniqueMode, r.UniqueWindow = r.ID.String(), pawl.UniqueUntilWindow, d
		}
	}
	complete(1, window(time.Minute))
	complete(excess.Hold, window(time.Hour))
	complete(plain, func(*pawl.Request) {})
	complete(kept-1, window(time.Hour))
	if n := purged(); n != 0 {
		t.Errorf("purged %d jobs from behind those that their windows keep", n)
	}
	c.Advance(time.Minute)
	if n := purged(); n != 1 {
		t.Errorf("purged %d jobs, want the one whose window is over", n)
	}
	c.Advance(time.Hour)
	if n, want := purged(), excess.Hold+plain-1; n != want {
		t.Errorf("purged %d jobs when all windows were over, want %d", n, want)
	}
}
