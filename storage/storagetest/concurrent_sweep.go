package storagetest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
)

func concurrentMost(w *world, state pawl.State, v pawl.Verb) {
	const kept, more = 40, 60
	ids := w.addN(kept+more, pawl.Request{Retention: time.Hour})
	for len(ids) > 0 { // in groups of different times
		for _, j := range w.claim(min(20, len(ids))) {
			w.settled(pawl.Outcome{Ref: j.Ref, Verb: v})
		}
		ids = ids[min(20, len(ids)):]
		w.clock.Advance(time.Second)
	}
	var purged atomic.Int64
	spec := most(state, kept, 50)
	w.together(8, func(_ int, s pawl.Storage) error {
		for {
			swept, err := s.Sweep(w.ctx, spec)
			purged.Add(int64(swept.Purged))
			if err != nil || !swept.More {
				return err
			}
		}
	})
	// Jobs that another sweep is about to delete may be passed by.
	for range 4 {
		purged.Add(int64(w.sweepBy(spec).Purged))
	}
	if n := w.kept(state); n != kept {
		w.Fatalf("%d %v jobs are left, want %d", n, state, kept)
	}
	if purged.Load() != more {
		w.Fatalf("sweeps purged %d jobs, want %d", purged.Load(), more)
	}
}

// concurrentEnds sweeps while jobs end one after the other.
func concurrentEnds(w *world) {
	const n, kept = 60, 10
	w.addN(n, pawl.Request{Retention: time.Hour})
	spec := most(pawl.Completed, kept, 3)
	var ended []pawl.ID
	var over atomic.Bool
	w.together(3, func(i int, s pawl.Storage) error {
		if i > 0 {
			for !over.Load() {
				if _, err := s.Sweep(w.ctx, spec); err != nil {
					return err
				}
			}
			return nil
		}
		defer over.Store(true)
		for range n {
			c, err := s.Claim(w.ctx, asking(queueA, 1))
			if err != nil || len(c.Jobs) != 1 {
				return fmt.Errorf("claimed %d jobs: %w", len(c.Jobs), err)
			}
			if lost, err := s.Settle(w.ctx, []pawl.Outcome{{Ref: c.Jobs[0].Ref, Verb: pawl.Ack}}); err != nil || len(lost) > 0 {
				return fmt.Errorf("lost %d: %w", len(lost), err)
			}
			ended = append(ended, c.Jobs[0].ID)
			w.clock.Advance(time.Second)
		}
		return nil
	})
	w.sweptBy(spec)
	for i, id := range ended {
		if i < n-kept {
			w.gone(id)
		} else {
			w.inState(id, pawl.Completed)
		}
	}
}

func concurrentSweeps(w *world) {
	const n = 60
	w.addN(n, pawl.Request{})
	w.claim(n)
	w.addN(n, pawl.Request{Delay: time.Second, Retention: time.Second})
	w.clock.Advance(lease)
	var promoted, rescued atomic.Int64
	w.together(6, func(_ int, s pawl.Storage) error {
		for {
			swept, err := s.Sweep(w.ctx, pawl.SweepSpec{Limit: 7})
			promoted.Add(int64(swept.Promoted))
			rescued.Add(int64(len(swept.Rescued)))
			if err != nil || !swept.More {
				return err
			}
		}
	})
	w.clock.Advance(lease) // a lease may get a grace because writers were held up
	last := w.sweep()
	rescued.Add(int64(len(last.Rescued)))
	if promoted.Load() != n || rescued.Load() != n {
		w.Fatalf("promoted %d and rescued %d jobs, want %d and %d", promoted.Load(), rescued.Load(), n, n)
	}
	if s := w.stats(); s.Ready != 2*n {
		w.Fatalf("%d jobs are ready, want %d", s.Ready, 2*n)
	}
}
