package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	leases         = 10_000
	leastHeartbeat = 11 * time.Second // pawl's default is 10 s
	noLeases       = "running jobs have no leases that are extended"
)

// heartbeat has very many jobs of one process running at the same time, which do
// nothing but hold their leases.
func heartbeat() *Workload {
	return &Workload{Name: "heartbeat", About: "10,000 jobs of one process run and only hold their leases: what that costs, and how many are lost",
		Works: true, OneRetention: true, Slow: true, Slots: []int{leases},
		Lacks: map[string]string{"river": noLeases, "gue": noLeases, "backlite": noLeases},
		Takes: func(c *Cell) time.Duration {
			return c.filling(leases) + c.draining(leases) + max(c.Limit, leastHeartbeat)
		},
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			n := int64(min(c.Jobs, leases))
			if err := c.fill(ctx, int(n), nil); err != nil {
				return nil, err
			}
			h := &holding{tally: newTally(n), release: make(chan struct{})}
			w, err := c.Sys.Work(ctx, h.handle)
			if err != nil {
				return nil, err
			}
			metrics, err := c.holdLeases(ctx, h)
			close(h.release)
			return metrics, stopped(w, err)
		}}
}

// holding is a handler that runs until it is released. Its tally counts runs.
type holding struct {
	*tally
	release  chan struct{}
	canceled atomic.Int64
}

func (h *holding) handle(ctx context.Context, _ int64) error {
	h.add(1)
	select {
	case <-h.release:
		return nil
	case <-ctx.Done():
		h.canceled.Add(1)
		return ctx.Err()
	}
}

// holdLeases takes the cost of the leases of jobs once all of them run. A lease is
// lost if its handler is told to end, or the job runs again beside it.
func (c *Cell) holdLeases(ctx context.Context, h *holding) ([]Metric, error) {
	if err := wait(ctx, h.all, 2*startLimit); err != nil {
		return nil, fmt.Errorf("%d of %d jobs run: %w", h.n.Load(), h.want, err)
	}
	before, err := c.spent(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	pause(ctx, max(c.Limit, leastHeartbeat))
	took := time.Since(began)
	after, err := c.spent(ctx)
	lost := max(h.canceled.Load(), h.n.Load()-h.want)
	return []Metric{
		{"heartbeat-cpu", (after.cpu - before.cpu).Seconds() / took.Minutes(), "CPU s/min", true},
		{"heartbeat-lost", float64(lost), "leases", true},
	}, err
}
