package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"
)

// drain empties a backlog.
func drain() *Workload {
	return &Workload{Name: "drain", About: "workers empty a backlog, handlers do nothing", Works: true,
		Grid:  []Params{{}, {Payload: bigPayload, Slow: true}},
		Takes: func(c *Cell) time.Duration { return c.takesDrain() },
		Run:   func(ctx context.Context, c *Cell) ([]Metric, error) { return c.drain(ctx, "drain", c.backlogSize()) }}
}

// drainFinished empties a backlog beside many finished jobs.
func drainFinished() *Workload {
	return &Workload{Name: "drain-1m-finished", About: "the same beside 1,000,000 finished jobs", Works: true, Slow: true, Keep: true,
		Grid: []Params{{Beside: "finished"}},
		Takes: func(c *Cell) time.Duration {
			return at(c.Finished, 20_000)/time.Duration(c.Reps) + c.takesDrain() // filled once
		},
		Prepare: func(ctx context.Context, c *Cell) error {
			f, err := as[Finisher](c, "no finished jobs in bulk")
			if err != nil {
				return err
			}
			if err := f.Finish(ctx, c.Finished); err != nil || c.Place.DB == nil {
				return err
			}
			return c.Place.DB.Exec(ctx, "VACUUM ANALYZE") // as autovacuum has done by then
		},
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			return c.drain(ctx, "drain-1m-finished", c.Jobs)
		}}
}

func (c *Cell) drain(ctx context.Context, name string, n int) ([]Metric, error) {
	n, err := c.backlog(ctx, n)
	if err != nil {
		return nil, err
	}
	before, err := c.spent(ctx)
	if err != nil {
		return nil, err
	}
	w, done, took, err := c.work(ctx, int64(n), c.Limit)
	if err != nil {
		return nil, err
	}
	after, err := c.spent(ctx)
	prefix := strings.TrimPrefix(name+"-", "drain-") // none, or 1m-finished-
	metrics := append([]Metric{rate(name, done, took.Seconds())}, before.per(done, after, prefix)...)
	if b, ok := w.(Batcher); ok {
		metrics = append(metrics, Metric{jobsPerClaim, b.JobsPerClaim(), "jobs", false})
	}
	return metrics, err
}

func (c *Cell) takesDrain() time.Duration {
	fill, drain := c.filling(c.backlogSize()), c.draining(c.backlogSize())
	if c.Quick {
		fill = min(fill, c.filled())
	}
	return fill + min(drain, c.Limit)
}

// bigPayload is the larger of the two payloads.
const bigPayload = 10_000

// backlogSize is a tenth for big payloads.
func (c *Cell) backlogSize() int {
	if c.P.Payload >= bigPayload {
		return c.Jobs / 10
	}
	return c.Jobs
}

// filled is how long a quick run fills a backlog.
func (c *Cell) filled() time.Duration { return c.Limit }

// backlog enqueues n jobs, in a quick run only as many as go into a time, and says
// how many. A slow system has enough with fewer.
func (c *Cell) backlog(ctx context.Context, n int) (filled int, err error) {
	for end := time.Now().Add(c.filled()); filled < n && (filled == 0 || !c.Quick || time.Now().Before(end)); {
		step := min(n-filled, c.fillBatch())
		if err := c.fill(ctx, step, nil); err != nil {
			return filled, err
		}
		filled += step
	}
	return filled, nil
}

// jobsPerClaim is the figure that says which batch a pool is to be compared with.
const jobsPerClaim = "jobs-per-claim"

// work runs workers until n jobs are done and recorded, or time is up. Both
// count from when the first handler was called.
func (c *Cell) work(ctx context.Context, n int64, limit time.Duration) (w Workers, done int64, took time.Duration, err error) {
	t := newTally(n)
	if w, err = c.Sys.Work(ctx, t.handle); err != nil {
		return nil, 0, 0, err
	}
	if err := wait(ctx, t.first, startLimit); err != nil {
		return w, 0, 0, stopped(w, err)
	}
	err = wait(ctx, t.all, limit)
	switch {
	case err == nil:
		err = untilSettled(ctx, w, n)
	case errors.Is(err, errLate):
		err = nil // the rate is over what was done
	}
	done, took = min(t.n.Load(), n), time.Since(t.began)
	return w, done, took, stopped(w, err)
}

// errLate is that of what was waited for in vain.
var errLate = errors.New("not within the time limit")

// wait waits for a channel that is closed.
func wait(ctx context.Context, c <-chan struct{}, limit time.Duration) error {
	select {
	case <-c:
		return nil
	case <-time.After(limit):
		return errLate
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tally counts the calls of handlers.
type tally struct {
	want       int64
	n          atomic.Int64
	began      time.Time     // of the first call, once first is closed
	first, all chan struct{} // closed with the first call, and with the wanted number of them
}

func newTally(want int64) *tally {
	return &tally{want: want, first: make(chan struct{}), all: make(chan struct{})}
}

func (t *tally) handle(context.Context, int64) error {
	t.add(1)
	return nil
}

// add counts k calls.
func (t *tally) add(k int64) {
	n := t.n.Add(k)
	if n > 0 && n-k == 0 {
		t.began = time.Now() // who waits for it may be late
		close(t.first)
	}
	if n >= t.want && n-k < t.want {
		close(t.all)
	}
}

// settlePoll is short beside any drain, and long beside the look itself.
const settlePoll = 2 * time.Millisecond

func untilSettled(ctx context.Context, w Workers, n int64) error {
	for end := time.Now().Add(stopLimit); time.Now().Before(end); time.Sleep(settlePoll) {
		settled, err := w.Settled(ctx, n)
		if settled || err != nil {
			return err
		}
	}
	return errors.New("jobs that were handled are not recorded as done")
}

// stopped stops the workers, if there are any, and joins the errors.
func stopped(w Workers, err error) error {
	if w == nil {
		return err
	}
	return errors.Join(err, w.Stop())
}
