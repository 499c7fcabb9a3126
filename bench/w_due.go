package main

import (
	"context"
	"errors"
	"time"
)

const (
	dueJobs  = 20_000 // in a quick run; all of -jobs in a full one
	dueLimit = 30 * time.Second
	dueLead  = time.Second // before the moment, beside the time that the jobs take to store
)

// dueAtOnce has very many delayed jobs whose time comes at the same moment.
func dueAtOnce() *Workload {
	return &Workload{Name: "due-at-once", About: "delayed jobs, all due at the same moment; from then to the last one's end", Works: true, Long: true, Single: true,
		Takes: func(c *Cell) time.Duration {
			n, limit := c.due()
			return dueLead + c.dueFill(n) + min(limit, c.draining(n))
		},
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			n, limit := c.due()
			due := time.Now().Add(dueLead + c.dueFill(n))
			n, err := c.fillUntil(ctx, n, due.Add(-settleIn), func(j *Job) { j.Delay = time.Until(due) })
			if err != nil {
				return nil, err
			}
			t := newTally(int64(n))
			w, err := c.Sys.Work(ctx, t.handle)
			if err != nil {
				return nil, err
			}
			pause(ctx, time.Until(due))
			early := t.n.Load()
			if err = wait(ctx, t.all, limit); errors.Is(err, errLate) {
				err = nil // the rate is over what was done
			}
			took := time.Since(due)
			return []Metric{rate("due-at-once", t.n.Load()-early, took.Seconds())}, stopped(w, err)
		}}
}

// due is how many jobs are due, and how long they may take. With a limit of 2 s
// that is 30 s, since slow systems would show nothing in less.
func (c *Cell) due() (n int, limit time.Duration) {
	n, limit = c.Jobs, max(c.Limit, min(dueLimit, 15*c.Limit))
	if c.Quick {
		n = min(n, dueJobs)
	}
	return n, limit
}

// dueFill is how long a system gets to store n jobs that are to be due together.
func (c *Cell) dueFill(n int) time.Duration { return at(n, 10_000) }

// fillUntil is fill that ends with the time, and says how many jobs there are: a
// system that stores slowly has fewer of them.
func (c *Cell) fillUntil(ctx context.Context, n int, end time.Time, change func(*Job)) (filled int, err error) {
	for filled < n && (filled == 0 || time.Now().Before(end)) {
		step := min(n-filled, (c.fillBatch()+1)/2)
		if err := c.fill(ctx, step, change); err != nil {
			return filled, err
		}
		filled += step
	}
	return filled, nil
}
