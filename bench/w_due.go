package main

import (
	"context"
	"errors"
	"time"
)

const (
	dueJobs  = 20_000 // in a quick run; all of -jobs in a full one
	dueLimit = 30 * time.Second
)

// dueAtOnce has very many delayed jobs whose time comes at the same moment.
func dueAtOnce() *Workload {
	return &Workload{Name: "due-at-once", About: "delayed jobs, all due at the same moment; from then to the last one's end", Works: true, Long: true,
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			n, limit := c.Jobs, max(c.Limit, dueLimit)
			if c.Quick {
				n = min(n, dueJobs)
			}
			due := time.Now().Add(3*time.Second + time.Duration(n)*100*time.Microsecond)
			if err := c.fill(ctx, n, func(j *Job) { j.Delay = time.Until(due) }); err != nil {
				return nil, err
			}
			if wait := time.Until(due); wait < settleIn { // a slow system: the fixture took longer
				return []Metric{}, errCannot
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
