package main

import (
	"context"
	"fmt"
)

const (
	heldKeys = 200 // held before the time is taken
	noKeys   = "no unique keys"
)

// enqueueUnique has callers that enqueue jobs with unique keys. Each second one
// meets a key that is held, and is not to be stored.
func enqueueUnique() *Workload {
	return &Workload{Name: "unique", About: "callers enqueue one job with a unique key at a time, half of the keys are held, nobody works",
		Lacks: map[string]string{"gue": noKeys, "goqite": noKeys, "backlite": noKeys},
		Grid:  []Params{{Callers: 16}},
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			s, err := as[UniqueSystem](c, noKeys)
			for range heldKeys {
				if err == nil {
					err = expectStored(ctx, s, c.jobs(1)[0], true)
				}
			}
			if err != nil {
				return nil, err
			}
			n, took, err := c.callers(ctx, c.P.Callers, c.Limit, func(ctx context.Context, j Job) error {
				held := j.N%2 == 0
				if held {
					j = newJob(j.N%heldKeys, c.P.Payload)
				}
				return expectStored(ctx, s, j, !held)
			})
			return []Metric{rate("unique", n, took.Seconds())}, err
		}}
}

// expectStored enqueues a job of which it is known whether its key is held.
func expectStored(ctx context.Context, s UniqueSystem, j Job, want bool) error {
	stored, err := s.EnqueueUnique(ctx, j)
	if err == nil && stored != want {
		err = fmt.Errorf("job %d: stored is %t, want %t", j.N, stored, want)
	}
	return err
}
