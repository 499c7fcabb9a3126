package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	retryEvery = 10                    // one of so many jobs fails once
	retryDelay = 10 * time.Millisecond // until it runs again, where a system can
)

// retries empties a backlog of which a part fails once, and waits until all that has
// failed has come back.
func retries() *Workload {
	return &Workload{Name: "retries", About: "workers empty a backlog of which 10 % fail once; each must come back", Works: true, Long: true, Single: true, Retry: retryDelay,
		Takes: func(c *Cell) time.Duration { return c.filling(c.retryJobs()) + c.draining(c.retryJobs()) },
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			first := c.next
			n, err := c.backlog(ctx, c.retryJobs())
			if err != nil {
				return nil, err
			}
			f := &failing{tally: newTally(int64(n)), base: first, ran: make([]atomic.Int32, n)}
			w, err := c.Sys.Work(ctx, f.handle)
			if err != nil {
				return nil, err
			}
			metrics, err := f.rate(ctx, c.Limit)
			return metrics, stopped(w, err)
		}}
}

// retryJobs is the backlog: in a quick run one that all systems empty in seconds,
// since they have to.
func (c *Cell) retryJobs() int {
	if c.Quick && c.C.Storage != "memory" {
		return c.Jobs / 20
	}
	return c.Jobs
}

// failing is a handler that fails once for one number of ten. Its tally counts the
// jobs that were done.
type failing struct {
	*tally
	base         int64
	ran          []atomic.Int32
	failed, back atomic.Int64
}

var errFails = errors.New("fails once")

func (f *failing) handle(ctx context.Context, n int64) error {
	ran := f.ran[n-f.base].Add(1)
	switch fails := n%retryEvery == 0; {
	case fails && ran == 1:
		f.failed.Add(1)
		return errFails
	case fails && ran == 2:
		f.back.Add(1)
	case ran > 1:
		return nil // once more, after it was done
	}
	return f.tally.handle(ctx, n)
}

// rate is that of the jobs that are done within the limit. Then those that have
// failed get the time to come back.
func (f *failing) rate(ctx context.Context, limit time.Duration) ([]Metric, error) {
	if err := wait(ctx, f.first, startLimit); err != nil {
		return nil, err
	}
	err := wait(ctx, f.all, limit)
	done, took := f.n.Load(), time.Since(f.began)
	if errors.Is(err, errLate) {
		err = wait(ctx, f.all, startLimit)
	}
	failed, back := f.failed.Load(), f.back.Load()
	if errors.Is(err, errLate) {
		err = fmt.Errorf("%d of %d jobs that failed have not come back, or others were not done", failed-back, failed)
	}
	return []Metric{rate("retries", done, took.Seconds()),
		{"retries-back", quotient(float64(back), float64(failed)), "of those that failed", false}}, err
}
