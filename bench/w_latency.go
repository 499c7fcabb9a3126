package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// perSecond is how many jobs an idle system gets.
const perSecond = 50

// latency is the time from the return of an enqueue, or of a commit, to the
// call of the handler, in an idle system. MySQL can't tell other processes of jobs.
func latency() *Workload {
	return &Workload{Name: "latency", About: "50 jobs/s, from the enqueue's return to the handler's start; 10 slots", Works: true, OneRetention: true, Slots: []int{10}, Apart: true, Together: []string{"mysql"},
		Takes: func(c *Cell) time.Duration { return c.Limit + settleIn },
		Run:   func(ctx context.Context, c *Cell) ([]Metric, error) { return c.latency(ctx, c.Limit) }}
}

// latencyApart is latency over processes that poll.
func latencyApart() *Workload {
	w := latency()
	w.Name, w.About, w.Storages, w.Together, w.Slow = "latency-apart", "the same, enqueued by another process, which can't tell of it", []string{"mysql"}, nil, true
	return w
}

// latencyPolling is latency without wake-ups from the database.
func latencyPolling() *Workload {
	w := latency()
	w.Name, w.About, w.Storages, w.Slow = "latency-poll-only", "the same without wake-ups, polls at their default", []string{"postgres"}, true
	w.Grid = []Params{{Poll: true}}
	return w
}

func (c *Cell) latency(ctx context.Context, d time.Duration) ([]Metric, error) {
	l := newStarts()
	w, err := c.Sys.Work(ctx, l.handle)
	if err != nil {
		return nil, err
	}
	pause(ctx, settleIn)
	err = c.paced(ctx, d, perSecond, func(j Job) error {
		if err := c.Sys.Enqueue(ctx, j); err != nil {
			return err
		}
		l.enqueued(j.N, time.Now())
		return nil
	})
	err = errors.Join(err, l.wait(ctx))
	return l.metrics("latency"), stopped(w, err)
}

// settleIn is how long workers get to come to rest before latencies are taken.
const settleIn = 500 * time.Millisecond

// paced calls f with so many jobs a second, and does not wait for one before it
// starts the next.
func (c *Cell) paced(ctx context.Context, d time.Duration, perSecond int, f func(Job) error) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	every := time.NewTicker(time.Second / time.Duration(perSecond))
	defer every.Stop()
	for end := time.Now().Add(d); time.Now().Before(end) && ctx.Err() == nil; {
		<-every.C
		j := c.jobs(1)[0]
		wg.Go(func() {
			if err := f(j); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// latencyHeld is the latency of jobs from transactions that stay open for a
// while, at half of the rate that the system has when it is driven.
func latencyHeld() *Workload {
	return &Workload{Name: "latency-held", About: "at half load, from the commit of transactions held open to the handler's start",
		Storages: []string{"postgres"}, Works: true, OneRetention: true, Slots: []int{100}, Apart: true, Slow: true,
		Takes: func(c *Cell) time.Duration { return min(c.Limit, 5*time.Second) + max(c.Limit, 10*time.Second) },
		Grid:  []Params{{Hold: "20ms", Callers: 8}, {Hold: "200ms", Callers: 8}, {Hold: "10s", Callers: 20}},
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			hold, err := time.ParseDuration(c.P.Hold)
			if err != nil {
				return nil, err
			}
			half, err := c.half(ctx, c.Limit)
			if err != nil {
				return nil, err
			}
			return c.latencyHeld(ctx, hold, max(c.Limit, hold*12/10), half)
		}}
}

// half drives the system for a while and returns half the rate that it had.
func (c *Cell) half(ctx context.Context, limit time.Duration) (float64, error) {
	f, err := c.startFlow(ctx, 0)
	if err != nil {
		return 0, err
	}
	d := min(limit, 5*time.Second)
	pause(ctx, d/5)
	return f.window(ctx, d*4/5) / 2, f.stop()
}

func (c *Cell) latencyHeld(ctx context.Context, hold, d time.Duration, perSecond float64) ([]Metric, error) {
	tx, err := as[TxSystem](c, "no enqueue in a transaction of the caller")
	if err != nil {
		return nil, err
	}
	l := newStarts()
	f, err := c.startFlowWith(ctx, perSecond, l.started)
	if err != nil {
		return nil, err
	}
	pause(ctx, settleIn)
	err = c.holders(ctx, hold, d, func(n int64) error {
		committed, err := tx.InTx(ctx, []Job{newJob(n, c.P.Payload)}, func() { pause(ctx, hold) })
		if err == nil {
			l.enqueued(n, committed)
		}
		return err
	})
	err = errors.Join(err, l.wait(ctx))
	return l.metrics("latency-held"), errors.Join(err, f.stop())
}

// holders call f with negative numbers, each holder in a loop; they begin
// spread over the time of one hold.
func (c *Cell) holders(ctx context.Context, hold, d time.Duration, f func(n int64) error) error {
	end := time.Now().Add(d)
	errs := make([]error, c.P.Callers)
	var wg sync.WaitGroup
	for i := range c.P.Callers {
		wg.Go(func() {
			pause(ctx, hold*time.Duration(i)/time.Duration(c.P.Callers))
			for k := 0; ctx.Err() == nil && errs[i] == nil && (k == 0 || time.Now().Add(hold).Before(end)); k++ {
				errs[i] = f(-int64(1 + i + k*c.P.Callers))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// starts are when jobs were enqueued and when their handlers began.
type starts struct {
	mu       sync.Mutex
	from, to map[int64]time.Time
}

func newStarts() *starts { return &starts{from: map[int64]time.Time{}, to: map[int64]time.Time{}} }

func (l *starts) handle(_ context.Context, n int64) error { l.started(n); return nil }

func (l *starts) started(n int64) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, again := l.to[n]; !again {
		l.to[n] = now
	}
}

func (l *starts) enqueued(n int64, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.from[n] = at
}

// startLimit is how long a job may take to start before the figure is given up.
const startLimit = 30 * time.Second

// wait waits until all that was enqueued has started.
func (l *starts) wait(ctx context.Context) error {
	for end := time.Now().Add(startLimit); time.Now().Before(end) && ctx.Err() == nil; pause(ctx, time.Millisecond) {
		if l.left() == 0 {
			return nil
		}
	}
	return errors.Join(ctx.Err(), fmt.Errorf("%d jobs have not started within %v", l.left(), startLimit))
}

func (l *starts) left() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for job := range l.from {
		if _, ok := l.to[job]; !ok {
			n++
		}
	}
	return n
}

// metrics are two quantiles. A handler that began before the call had returned
// waited no time.
func (l *starts) metrics(name string) []Metric {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []time.Duration
	for n, from := range l.from {
		if to, ok := l.to[n]; ok {
			all = append(all, max(to.Sub(from), 0))
		}
	}
	return quantiles(name, all)
}

// quantiles are the metrics of times: name-p50 and name-p99. The least is 1 µs,
// since 0 has no ratio to anything.
func quantiles(name string, times []time.Duration) []Metric {
	if len(times) == 0 {
		return nil
	}
	slices.Sort(times)
	at := func(q int) float64 {
		return float64(max(times[min(len(times)*q/100, len(times)-1)].Microseconds(), 1)) / 1e3
	}
	return []Metric{{name + "-p50", at(50), "ms", true}, {name + "-p99", at(99), "ms", true}}
}
