package worker_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// Each call in turn fails, before or after its effect, once.
func TestEachCallFailsOnce(t *testing.T) {
	for _, sort := range sorts {
		for _, after := range []bool{false, true} {
			for nth := range 25 {
				bubble(t, func(t *testing.T) {
					var c counting
					f := prepare(t, sort.make)
					ids := make([]pawl.ID, 30)
					for i := range ids {
						ids[i] = f.enqueue(&pawl.Request{Retention: []time.Duration{0, pawl.DeleteNow}[i%2]})
					}
					var calls atomic.Int64
					f.storage.disturb(func(_ context.Context, op string, call func() error) error {
						if calls.Add(1) != int64(nth) {
							return call()
						}
						if after && op != "watch" {
							call()
						}
						return errStorage
					})
					f.start(&c, &worker.Options{Concurrency: 3})
					rest(time.Minute)
					f.stop()
					c.want(t, len(ids))
					for i, id := range ids {
						if i%2 == 0 {
							j := f.wantState(id, pawl.Completed, "")
							if j.Counts.Rescues > 0 {
								t.Errorf("counts %+v", j.Counts)
							}
						}
					}
					if s := f.p.Stats(); s.Completed != 30 || s.Lost != 0 {
						t.Errorf("%s, call %d, after %v: stats %+v", sort.name, nth, after, s)
					}
				})
			}
		}
	}
}

// A claim whose reply is lost while the pool stops is handed back.
func TestClaimOfUnknownOutcomeAtStop(t *testing.T) {
	for _, sort := range sorts {
		t.Run(sort.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var c counting
				f := start(t, sort.make, &c, nil)
				inClaim := make(chan struct{})
				var once sync.Once
				f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
					if op != "claim" {
						return call()
					}
					first := false
					once.Do(func() { first = true })
					err := call()
					if first {
						close(inClaim)
						<-ctx.Done()
						return ctx.Err()
					}
					return err
				})
				id := f.enqueue(&pawl.Request{})
				<-inClaim
				f.stop()
				f.wantState(id, pawl.Ready, pawl.ReasonRelease)
				c.want(t, 0)
			})
		})
	}
}

// The same for one that settles too: what it settled is not lost either.
func TestCycleOfUnknownOutcomeAtStop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		first := f.enqueue(&pawl.Request{})
		second := f.enqueue(&pawl.Request{})
		inCycle := make(chan struct{})
		var once sync.Once
		f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
			err := call()
			if op == "cycle" {
				once.Do(func() { close(inCycle) })
				<-ctx.Done()
				return ctx.Err()
			}
			return err
		})
		// A job this slow ends while the fetcher waits, which then takes its
		// outcome along.
		h := worker.Func(func(context.Context, *pawl.Job) error { time.Sleep(time.Minute); return nil })
		f.start(h, &worker.Options{Concurrency: 1})
		<-inCycle
		f.stop()
		f.wantState(first, pawl.Completed, "")
		f.wantState(second, pawl.Ready, pawl.ReasonRelease)
		if s := f.p.Stats(); s.Lost != 0 || s.Completed != 1 || s.Released != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

// Jobs claimed in a call whose reply was lost run with a full lease.
func TestRecoveredClaimIsRenewed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var c counting
		f := start(t, bare, &c, nil)
		var n atomic.Int64
		f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
			if op != "claim" {
				return call()
			}
			if n.Add(1) == 1 {
				call()
			}
			return errStorage
		})
		id := f.enqueue(&pawl.Request{})
		rest(20 * time.Second)
		f.wantState(id, pawl.Running, "")
		f.storage.heal()
		rest(6 * time.Second)
		f.stop()
		c.want(t, 1)
		if j := f.wantState(id, pawl.Completed, ""); j.Counts.Extends != 1 || j.Counts.Rescues != 0 {
			t.Errorf("counts %+v", j.Counts)
		}
	})
}

// A storage so slow that a big claim takes longer than the leases in it gets
// smaller ones.
func TestSlowClaims(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var c counting
		f := prepare(t, bare)
		for range 500 {
			f.enqueue(&pawl.Request{})
		}
		f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
			if op != "claim" {
				return call()
			}
			running := func() int64 {
				stats, err := f.storage.Count(ctx, pawl.DefaultQueue)
				if err != nil {
					t.Error(err)
				}
				return stats[0].Running
			}
			before := running()
			err := call()
			time.Sleep(time.Duration(running()-before) * 50 * time.Millisecond) // a job
			return err
		})
		f.start(&c, &worker.Options{Lease: 2 * time.Second, Concurrency: 100})
		rest(10 * time.Minute)
		f.stop()
		if s := f.p.Stats(); s.Completed != 500 {
			t.Errorf("stats %+v", s)
		}
	})
}
