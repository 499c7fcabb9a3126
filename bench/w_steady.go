package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// steady enqueues and works at the same time, as fast as both go.
func steady() *Workload {
	return &Workload{Name: "steady", About: "one caller enqueues by 500 while workers work", Works: true, Long: true,
		Grid: []Params{{Callers: 1, Batch: steadyBatch}},
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			limit := c.Limit
			if c.C.Storage == "memory" {
				limit = min(limit, steadyInMemory)
			}
			before, err := c.spent(ctx)
			if err != nil {
				return nil, err
			}
			f, err := c.startFlow(ctx, 0)
			if err != nil {
				return nil, err
			}
			pause(ctx, limit/10) // until it flows well
			perSecond := f.window(ctx, limit*9/10)
			if err := f.stop(); err != nil {
				return nil, err
			}
			after, err := c.spent(ctx)
			return append([]Metric{{"steady", perSecond, "jobs/s", false}}, before.per(f.done.Load(), after, "steady-")...), err
		}}
}

const (
	steadyBatch    = 500
	steadyInMemory = 5 * time.Second  // in more, what is kept would fill it
	steadyBacklog  = 20 * steadyBatch // where the caller waits for the workers
)

// A flow enqueues and works until it is stopped.
type flow struct {
	done   atomic.Int64
	begun  chan struct{} // closed when one is done
	onDone func(n int64) // of jobs with negative numbers, which are not the flow's

	w      Workers
	cancel context.CancelFunc
	wg     sync.WaitGroup
	err    error // of the caller
}

// startFlow starts a flow, of a number of jobs a second if that is not 0, and
// waits until its first job is done.
func (c *Cell) startFlow(ctx context.Context, perSecond float64) (*flow, error) {
	return c.startFlowWith(ctx, perSecond, nil)
}

func (c *Cell) startFlowWith(ctx context.Context, perSecond float64, onDone func(int64)) (*flow, error) {
	f := &flow{onDone: onDone, begun: make(chan struct{})}
	ctx, f.cancel = context.WithCancel(ctx)
	var err error
	f.w, err = c.Sys.Work(context.WithoutCancel(ctx), func(_ context.Context, n int64) error {
		if n < 0 {
			f.onDone(n)
		} else if f.done.Add(1) == 1 {
			close(f.begun)
		}
		return nil
	})
	if err != nil {
		f.cancel()
		return nil, err
	}
	f.wg.Go(func() { f.err = c.feed(ctx, f, perSecond) })
	if err := wait(ctx, f.begun, startLimit); err != nil {
		return nil, errors.Join(err, f.stop())
	}
	return f, nil
}

// window is the rate of the flow over a time, or over as much more as it takes
// until a job is done.
func (f *flow) window(ctx context.Context, d time.Duration) float64 {
	before, began := f.done.Load(), time.Now()
	pause(ctx, d)
	for f.done.Load() == before && ctx.Err() == nil && time.Since(began) < d+startLimit {
		pause(ctx, time.Millisecond)
	}
	return float64(f.done.Load()-before) / time.Since(began).Seconds()
}

// feed enqueues until ctx ends.
func (c *Cell) feed(ctx context.Context, f *flow, perSecond float64) error {
	began := time.Now()
	for sent := 0; ctx.Err() == nil; {
		late := perSecond == 0 || float64(sent) < time.Since(began).Seconds()*perSecond
		if int64(sent)-f.done.Load() > steadyBacklog || !late {
			pause(ctx, time.Millisecond)
			continue
		}
		n := steadyBatch
		if perSecond > 0 {
			n = max(min(int(perSecond/50), steadyBatch), 1) // 50 calls a second, or more
		}
		if err := c.Sys.EnqueueMany(ctx, c.jobs(n)); err != nil && ctx.Err() == nil {
			return err
		}
		sent += n
	}
	return nil
}

func (f *flow) stop() error {
	f.cancel()
	f.wg.Wait()
	return stopped(f.w, f.err)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
