package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
)

// stopLimit is how long workers may take to stop.
const stopLimit = 30 * time.Second

// Settings are those of the whole run.
type Settings struct {
	Limit    time.Duration // of a cell
	Reps     int
	Jobs     int // backlog of drains
	Finished int // records beside which to drain; other fixtures are parts of it
	Payload  int
	Quick    bool
}

// A Cell is one system in one workload.
type Cell struct {
	Settings
	W *Workload
	P Params
	C *Contender
	V Variant

	Sys   System
	Place *Place
	lost  bool  // it hangs: nothing of it may be touched
	next  int64 // number of the next job
}

// Name is what -run selects.
func (c *Cell) Name() string {
	return fmt.Sprintf("%s/%s/%s/%s", c.W.Name, c.C.Storage, c.C.Name, c.P)
}

// String lists the parameters that are set.
func (p Params) String() string {
	var parts []string
	add := func(format string, v any, set bool) {
		if set {
			parts = append(parts, fmt.Sprintf(format, v))
		}
	}
	add("%s", p.Config, p.Config != "")
	add("%s", p.Retention, p.Retention != "")
	add("slots=%d", p.Slots, p.Slots > 0)
	add("batch=%d", p.Batch, p.Batch > 0)
	add("callers=%d", p.Callers, p.Callers > 0)
	add("hold=%s", p.Hold, p.Hold != "")
	add("beside=%s", p.Beside, p.Beside != "")
	add("poll%s", "", p.Poll)
	add("%d B", p.Payload, true)
	return strings.Join(parts, ",")
}

// with fills in what the variant adds.
func (p Params) with(w *Workload, v Variant, payload int) Params {
	p.Config, p.Payload = v.Config, cmp.Or(p.Payload, payload)
	if w.Works {
		p.Slots, p.Retention = v.Slots, v.Retention
		p.Batch = cmp.Or(p.Batch, v.Batch)
	}
	return p
}

// open makes a place and the system in it, and prepares them.
func (c *Cell) open(ctx context.Context, places *Places) (err error) {
	if c.Place, err = places.New(ctx, c.C.Storage); err != nil {
		return err
	}
	v := c.V
	v.Payload, v.PollOnly, v.Retry = c.P.Payload, c.P.Poll, c.W.Retry
	v.Apart = c.W.Apart && !slices.Contains(c.W.Together, c.C.Storage)
	if c.Sys, err = c.C.Open(ctx, c.Place, v); err != nil {
		return errors.Join(err, c.Place.Remove(ctx))
	}
	c.next = 0
	if c.W.Prepare == nil {
		return nil
	}
	if err := c.W.Prepare(ctx, c); err != nil {
		return errors.Join(err, c.close(ctx))
	}
	return nil
}

func (c *Cell) close(ctx context.Context) error {
	err := errors.Join(c.Sys.Close(), c.Place.Remove(ctx))
	c.Sys, c.Place = nil, nil
	return err
}

// run makes one measurement.
func (c *Cell) run(ctx context.Context) ([]Metric, error) {
	if c.Place.DB != nil {
		if err := c.Place.DB.Exec(ctx, "CHECKPOINT"); err != nil {
			return nil, err
		}
	}
	runtime.GC()
	return c.W.Run(ctx, c)
}

// jobs makes the next n jobs.
func (c *Cell) jobs(n int) []Job {
	jobs := make([]Job, n)
	for i := range jobs {
		jobs[i] = newJob(c.next, c.P.Payload)
		c.next++
	}
	return jobs
}

// A fixture is made of so many jobs at a time, or as many as have so many bytes:
// servers limit a statement.
const fillBatch, fillBytes = 1000, 1 << 20

func (c *Cell) fillBatch() int { return min(fillBatch, max(fillBytes/c.P.Payload, 1)) }

// fill enqueues n jobs, changed by change if it is not nil.
func (c *Cell) fill(ctx context.Context, n int, change func(*Job)) error {
	for n > 0 {
		jobs := c.jobs(min(n, c.fillBatch()))
		for i := range jobs {
			if change != nil {
				change(&jobs[i])
			}
		}
		if err := c.Sys.EnqueueMany(ctx, jobs); err != nil {
			return err
		}
		n -= len(jobs)
	}
	return nil
}

// errCannot is returned by workloads that a system can't take part in.
var errCannot = errors.New("not offered")

// as returns the system as a T, or errCannot for the lack of what that is.
func as[T any](c *Cell, what string) (T, error) {
	t, ok := c.Sys.(T)
	if !ok {
		return t, cannot(what)
	}
	return t, nil
}

func cannot(what string) error { return fmt.Errorf("%w: %s", errCannot, what) }
