package storagetest

import (
	"time"

	"github.com/pawlq/pawl"
)

func concurrentClaims(w *world) {
	const n, jobs = 8, 400
	w.addN(jobs, pawl.Request{})
	claimed := make([][]*pawl.Job, n)
	w.together(n, func(i int, s pawl.Storage) error {
		for {
			c, err := s.Claim(w.ctx, asking(queueA, 1+i%5))
			if err != nil || len(c.Jobs) == 0 {
				return err
			}
			claimed[i] = append(claimed[i], c.Jobs...)
		}
	})
	seen := map[pawl.ID]bool{}
	for _, mine := range claimed {
		for _, j := range mine {
			if seen[j.ID] {
				w.Fatalf("job %v was claimed twice", j.ID)
			}
			seen[j.ID] = true
		}
	}
	if s := w.stats(); len(seen) != jobs || s.Running != jobs {
		w.Fatalf("%d jobs were claimed, %d are running; want %d", len(seen), s.Running, jobs)
	}
}

// concurrentFewer lets each claimer end as a pool goes to rest: when it got fewer jobs
// than it asked for.
func concurrentFewer(w *world) {
	const n, jobs, rounds = 4, 100, 3
	for range rounds {
		for _, r := range []pawl.Request{{}, {Priority: 1}, {Delay: time.Second}} {
			w.addN(jobs, r)
			w.clock.Advance(r.Delay)
			w.together(n, func(i int, s pawl.Storage) error {
				for {
					spec := asking(queueA, 2+i)
					c, err := s.Claim(w.ctx, spec)
					if err != nil || len(c.Jobs) < spec.Max {
						return err
					}
				}
			})
			if s := w.stats(); s.Ready+s.Scheduled > 0 {
				w.Fatalf("%d ready and %d scheduled jobs of %d are left", s.Ready, s.Scheduled, jobs)
			}
		}
	}
}
