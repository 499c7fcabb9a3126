package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// enqueueWorkload has callers that enqueue one job each at a time.
func enqueueWorkload(callers int) *Workload {
	return &Workload{Name: fmt.Sprintf("enqueue-%d", callers), About: "callers enqueue one job at a time, nobody works",
		Grid: enqueueGrid(callers), Slow: callers == 64,
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			n, took, err := c.callers(ctx, callers, c.Limit, func(ctx context.Context, j Job) error { return c.Sys.Enqueue(ctx, j) })
			return []Metric{rate(c.W.Name, n, took.Seconds())}, err
		}}
}

func enqueueGrid(callers int) []Params {
	grid := []Params{{Callers: callers}}
	if callers == 16 {
		grid = append(grid, Params{Callers: callers, Payload: bigPayload, Slow: true})
	}
	return grid
}

// callers run f in a loop each, for the time of d or until there is no more room, and
// count the calls.
func (c *Cell) callers(ctx context.Context, callers int, d time.Duration, f func(context.Context, Job) error) (int64, time.Duration, error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var n atomic.Int64
	var wg sync.WaitGroup
	first, most := c.next, c.room()
	began := time.Now()
	end := began.Add(d)
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil && time.Now().Before(end) && n.Load() < most {
				if err := f(ctx, newJob(first+n.Add(1), c.P.Payload)); err != nil {
					fail(err)
				}
			}
		})
	}
	wg.Wait()
	c.next += n.Load() + 1
	return n.Load(), time.Since(began), context.Cause(ctx)
}

// room is how many calls of an enqueue store about 1 GiB: in a minute the fastest
// would fill any memory.
func (c *Cell) room() int64 {
	const gib, rest = 1 << 30, 400 // what a job takes beside its payload
	return int64(max(gib/(max(c.P.Batch, 1)*(c.P.Payload+rest)), 1))
}

// bulkBatch is how many jobs one call of a bulk enqueue has.
const bulkBatch = 1000

func bulk() *Workload {
	return &Workload{Name: "bulk", About: "one caller enqueues many jobs in a call, nobody works",
		Grid: []Params{{Callers: 1, Batch: bulkBatch}, {Callers: 1, Batch: bulkBatch / 10, On: "redis"}, {Callers: 1, Batch: 10 * bulkBatch, Slow: true},
			{Callers: 1, Batch: bulkBatch / 10, Payload: bigPayload, Slow: true}},
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			before, err := c.size(ctx)
			if err != nil {
				return nil, err
			}
			n, took, err := c.callers(ctx, c.P.Callers, c.Limit, func(ctx context.Context, j Job) error {
				jobs := make([]Job, c.P.Batch)
				for i := range jobs {
					jobs[i] = j
				}
				return c.Sys.EnqueueMany(ctx, jobs)
			})
			if err != nil {
				return nil, err
			}
			n *= int64(c.P.Batch)
			metrics := []Metric{rate("bulk", n, took.Seconds())}
			after, err := c.size(ctx)
			if err == nil && after > before {
				metrics = append(metrics, Metric{"bytes-per-job", float64(after-before) / float64(n), "B", true})
			}
			return metrics, err
		}}
}

// enqueueTx has callers that enqueue one job in a transaction of their own. On
// PostgreSQL workers wait for jobs of another queue meanwhile, so that there is
// someone to notify.
func enqueueTx() *Workload {
	return &Workload{Name: "enqueue-tx", About: "callers enqueue one job in a transaction that writes a row, workers idle",
		Storages: []string{"postgres", "sqlite", "mysql"}, Apart: true,
		Grid: []Params{{Callers: 1, Slow: true}, {Callers: 16}, {Callers: 64, On: "postgres"}, {Callers: 64, On: "sqlite", Slow: true},
			{Callers: 64, On: "mysql", Slow: true}},
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			tx, err := as[TxSystem](c, "no enqueue in a transaction of the caller")
			if err != nil {
				return nil, err
			}
			var w Workers
			if c.Place.DB != nil {
				if w, err = c.Sys.Work(ctx, func(context.Context, int64) error { return nil }); err != nil {
					return nil, err
				}
			}
			n, took, err := c.callers(ctx, c.P.Callers, c.Limit, func(ctx context.Context, j Job) error {
				j.Queue = "elsewhere"
				_, err := tx.InTx(ctx, []Job{j}, nil)
				return err
			})
			return []Metric{rate("enqueue-tx", n, took.Seconds())}, stopped(w, err)
		}}
}
