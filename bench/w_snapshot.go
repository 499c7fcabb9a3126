package main

import (
	"context"
	"errors"
	"time"
)

// heldSnapshot is steady work while another session holds an old snapshot, so
// that no dead row can be removed. The limit of the cell is the time of the
// hold: its first and last sixth are compared, with an ANALYZE in the middle.
// Then the snapshot ends, and half of that time later the rate is taken again.
func heldSnapshot() *Workload {
	return &Workload{Name: "held-snapshot", About: "steady work under an open snapshot: its first and its last sixth, and after it",
		Storages: []string{"postgres"}, Works: true, Slow: true,
		Grid:  []Params{{Callers: 1, Batch: steadyBatch}},
		Takes: func(c *Cell) time.Duration { return c.Limit * 3 / 2 },
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			release, err := c.Place.DB.HoldSnapshot(ctx)
			if err != nil {
				return nil, err
			}
			defer func() { release() }()
			f, err := c.startFlow(ctx, 0)
			if err != nil {
				return nil, err
			}
			sixth := c.Limit / 6
			first := f.window(ctx, sixth)
			pause(ctx, 2*sixth)
			if err := c.Place.DB.Exec(ctx, "ANALYZE"); err != nil {
				return nil, errors.Join(err, f.stop())
			}
			pause(ctx, 2*sixth)
			last := f.window(ctx, sixth)
			release()
			release = func() {}
			pause(ctx, 2*sixth)
			after := f.window(ctx, sixth)
			return []Metric{
				{"held-snapshot-start", first, "jobs/s", false},
				{"held-snapshot-end", last, "jobs/s", false},
				{"held-snapshot-kept", quotient(last, first), "of the start", false},
				{"held-snapshot-after", after, "jobs/s", false},
			}, f.stop()
		}}
}
