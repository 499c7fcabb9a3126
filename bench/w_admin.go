package main

import (
	"context"
	"errors"
	"sync"
	"time"
)

const noCancel = "a running job can't be canceled"

// cancelLatency is the time from the call that cancels a running job to the end
// of its handler's context.
func cancelLatency() *Workload {
	return &Workload{Name: "cancel", About: "from the cancel of a running job to the end of its handler's context", Storages: []string{"postgres", "sqlite", "memory"},
		Works: true, OneRetention: true, Slots: []int{10}, Apart: true,
		Lacks: map[string]string{"gue": noCancel, "goqite": noCancel, "backlite": noCancel},
		Takes: func(*Cell) time.Duration { return settleIn + time.Second },
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			s, err := as[Canceler](c, noCancel)
			if err != nil {
				return nil, err
			}
			started, ended := make(chan struct{}, 1), make(chan time.Time, 1)
			w, err := c.Sys.Work(ctx, func(ctx context.Context, _ int64) error {
				started <- struct{}{}
				<-ctx.Done()
				ended <- time.Now()
				return ctx.Err()
			})
			if err != nil {
				return nil, err
			}
			pause(ctx, settleIn)
			var times []time.Duration
			most := maxCancels
			if c.Quick {
				most /= 10
			}
			for end := time.Now().Add(c.Limit); time.Now().Before(end) && err == nil && len(times) < most; {
				var took time.Duration
				took, err = c.cancelOne(ctx, s, started, ended)
				times = append(times, took)
			}
			return quantiles("cancel", times), stopped(w, err)
		}}
}

// maxCancels are enough for a p99.
const maxCancels = 1000

func (c *Cell) cancelOne(ctx context.Context, s Canceler, started <-chan struct{}, ended <-chan time.Time) (time.Duration, error) {
	cancel, err := s.EnqueueKnown(ctx, c.jobs(1)[0])
	if err != nil {
		return 0, err
	}
	select {
	case <-started:
	case <-time.After(startLimit):
		return 0, errors.New("the job has not started")
	}
	began := time.Now()
	if err := cancel(ctx); err != nil {
		return 0, err
	}
	select {
	case at := <-ended:
		return at.Sub(began), nil
	case <-time.After(startLimit):
		return 0, errors.New("the handler was not told")
	}
}

// enqueuePurge is how long enqueues take while old records are removed and the
// tables vacuumed, beside how long they take in peace.
func enqueuePurge() *Workload {
	return &Workload{Name: "enqueue-purge", About: "p99 of single enqueues by 4 callers in peace, and beside purge and vacuum", Slow: true, Only: "pawl",
		Grid:  []Params{{Callers: 4, Beside: "purge"}},
		Takes: func(c *Cell) time.Duration { return c.Limit + at(c.Finished, 20_000) },
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			p, err := as[Purger](c, "no purge at will")
			if err != nil {
				return nil, err
			}
			if err := p.FinishOld(ctx, c.Finished); err != nil {
				return nil, err
			}
			inPeace, err := c.enqueueTimes(ctx)
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithCancel(ctx)
			var wg sync.WaitGroup
			var purged error
			wg.Go(func() { purged = c.purge(ctx, p) })
			beside, err := c.enqueueTimes(ctx)
			cancel()
			wg.Wait()
			if err = errors.Join(err, purged); err != nil {
				return nil, err
			}
			a, b := quantiles("enqueue-peace", inPeace), quantiles("enqueue-purge", beside)
			growth := Metric{"enqueue-purge-growth", quotient(b[1].Value, a[1].Value), "times", true}
			return append(append(a, b...), growth), nil
		}}
}

// purge removes what is over, and vacuums now and then, until ctx ends.
func (c *Cell) purge(ctx context.Context, p Purger) error {
	const perVacuum = 50
	for n := 1; ctx.Err() == nil; n++ {
		err := p.Purge(ctx)
		if err == nil && n%perVacuum == 0 && c.Place.DB != nil {
			err = c.Place.DB.Exec(ctx, "VACUUM")
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// enqueueTimes are how long single enqueues take, for half the limit.
func (c *Cell) enqueueTimes(ctx context.Context) ([]time.Duration, error) {
	var mu sync.Mutex
	var times []time.Duration
	_, _, err := c.callers(ctx, c.P.Callers, c.Limit/2, func(ctx context.Context, j Job) error {
		began := time.Now()
		err := c.Sys.Enqueue(ctx, j)
		took := time.Since(began)
		mu.Lock()
		defer mu.Unlock()
		times = append(times, took)
		return err
	})
	return times, err
}
