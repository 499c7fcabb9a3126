package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// claimBeside is the time of a claim beside what a claim must not see, over
// that in the same storage before.
func claimBeside() *Workload {
	return &Workload{Name: "claim", About: "claims by 100, before and after the storage holds much else", Slow: true, Only: "pawl",
		Grid: []Params{{Beside: "finished", Batch: claimBatch}, {Beside: "future", Batch: claimBatch}, {Beside: "paused", Batch: claimBatch}},
		Takes: func(c *Cell) time.Duration {
			n := map[string]int{"finished": c.Finished * 2, "future": c.Finished / 5, "paused": c.Finished / 20}
			return c.filling(2*claimBatch*claimRounds + n[c.P.Beside])
		},
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			empty, err := c.claims(ctx)
			if err != nil {
				return nil, err
			}
			if err := c.fillBeside(ctx); err != nil {
				return nil, err
			}
			full, err := c.claims(ctx)
			return []Metric{{"claim-empty", empty, "ms", true}, {"claim-beside", full, "ms", true},
				{"claim-growth", quotient(full, empty), "times", true}}, err
		}}
}

const (
	claimBatch  = 100
	claimRounds = 200
	pausedQueue = "paused"
)

// claims is the median time of a claim, in ms.
func (c *Cell) claims(ctx context.Context) (float64, error) {
	s, err := as[Claimer](c, "no claims by hand")
	if err != nil {
		return 0, err
	}
	if err := c.fill(ctx, claimBatch*claimRounds, nil); err != nil {
		return 0, err
	}
	queues := []string{queueName}
	if c.P.Beside == "paused" {
		queues = []string{pausedQueue, queueName}
	}
	times := make([]time.Duration, 0, claimRounds)
	for range claimRounds {
		n, took, err := s.Cycle(ctx, claimBatch, queues...)
		if err != nil || n == 0 {
			return 0, errors.Join(err, ctx.Err())
		}
		times = append(times, took)
	}
	slices.Sort(times)
	return float64(times[len(times)/2].Microseconds()) / 1e3, nil
}

// fillBeside stores what Params.Beside names: all of Settings.Finished, or the
// part of it that the targets have.
func (c *Cell) fillBeside(ctx context.Context) error {
	switch c.P.Beside {
	case "finished":
		f, err := as[Finisher](c, "no finished jobs in bulk")
		if err != nil {
			return err
		}
		return f.Finish(ctx, c.Finished)
	case "future":
		return c.fill(ctx, c.Finished/5, func(j *Job) { j.Delay = 24 * time.Hour })
	case "paused":
		p, err := as[Pauser](c, "no pause")
		if err != nil {
			return err
		}
		if err := p.Pause(ctx, pausedQueue); err != nil {
			return err
		}
		return c.fill(ctx, c.Finished/20, func(j *Job) { j.Queue = pausedQueue })
	}
	return fmt.Errorf("beside %q: not known", c.P.Beside)
}

const noPassing = "jobs of unknown kinds are not passed over"

// foreignKinds has jobs that no worker here can run before those that one can.
func foreignKinds() *Workload {
	return &Workload{Name: "foreign-kind", About: "time until 100 jobs behind 100,000 of an unknown kind are done, at first and later",
		Storages: []string{"postgres", "sqlite", "memory"}, Works: true, OneRetention: true, Slow: true, Slots: []int{100}, Grid: []Params{{Beside: "unknown kind"}},
		Lacks: map[string]string{"gue": noPassing, "goqite": noPassing, "backlite": noPassing},
		Takes: func(c *Cell) time.Duration { return c.filling(c.Finished/10) + 5*time.Second },
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			if err := c.fill(ctx, c.Finished/10, func(j *Job) { j.Foreign = true }); err != nil {
				return nil, err
			}
			return c.foreign(ctx)
		}}
}

const (
	foreignRounds = 5
	foreignJobs   = 100
)

func (c *Cell) foreign(ctx context.Context) ([]Metric, error) {
	done := make(chan struct{}, foreignRounds*foreignJobs)
	if err := c.fill(ctx, foreignJobs, nil); err != nil {
		return nil, err
	}
	w, err := c.Sys.Work(ctx, func(context.Context, int64) error { done <- struct{}{}; return nil })
	if err != nil {
		return nil, err
	}
	var rounds []float64
	for round := 0; round < foreignRounds && err == nil; round++ {
		began := time.Now()
		if round > 0 {
			err = c.fill(ctx, foreignJobs, nil)
		}
		for n := 0; n < foreignJobs && err == nil; n++ {
			select {
			case <-done:
			case <-time.After(max(c.Limit, startLimit)):
				err = errors.New("no end within the limit")
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		rounds = append(rounds, float64(time.Since(began).Microseconds())/1e3)
	}
	if err = stopped(w, err); err != nil {
		return nil, err
	}
	later := rounds[1:]
	slices.Sort(later)
	return []Metric{{"foreign-kind-first", rounds[0], "ms", true}, {"foreign-kind-later", later[len(later)/2], "ms", true}}, nil
}
