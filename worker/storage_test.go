package worker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// counting is a handler that counts its runs by job.
type counting struct {
	mu   sync.Mutex
	runs map[pawl.ID]int
}

func (c *counting) Kinds() []pawl.Kind {
	return worker.Func(func(_ context.Context, j *pawl.Job) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.runs == nil {
			c.runs = make(map[pawl.ID]int)
		}
		c.runs[j.ID]++
		return nil
	}).Kinds()
}

func (c *counting) want(t *testing.T, n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.runs) != n {
		t.Errorf("%d jobs ran, want %d", len(c.runs), n)
	}
	for id, runs := range c.runs {
		if runs != 1 {
			t.Errorf("job %v ran %d times", id, runs)
		}
	}
}

// A pool outlives an hour without its storage, and says so once.
func TestOutage(t *testing.T) {
	for _, sort := range sorts {
		t.Run(sort.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var c counting
				f := start(t, sort.make, &c, nil)
				rest(time.Minute)
				for range 50 {
					f.enqueue(&pawl.Request{})
				}
				// What is unsettled for an hour is another's by then.
				rest(2 * time.Second)
				var calls atomic.Int64
				f.storage.disturb(func(context.Context, string, func() error) error {
					calls.Add(1)
					return errStorage
				})
				for range 50 {
					f.enqueue(&pawl.Request{})
				}
				rest(time.Hour)
				h := f.p.Health()
				if !h.Live || h.Ready || !strings.Contains(h.Reason, "storage fails to claim for") {
					t.Errorf("health %+v", h)
				}
				if n := calls.Load(); n > 3*3600 {
					t.Errorf("%d calls in an hour", n)
				}
				f.storage.heal()
				rest(time.Minute)
				if h := f.p.Health(); !h.Live || !h.Ready || h.Reason != "" || time.Since(h.LastProgress) > 10*time.Second {
					t.Errorf("health %+v", h)
				}
				f.stop()
				c.want(t, 100)
				for _, what := range []string{"claim", "sweep"} {
					if n := f.log.count("storage fails to " + what); n != 1 {
						t.Errorf("outage of %s logged %d times", what, n)
					}
					if n := f.log.count("storage can " + what + " again"); n != 1 {
						t.Errorf("its end logged %d times", n)
					}
				}
			})
		})
	}
}

// Calls that hang until their context ends are errors like others.
func TestHangs(t *testing.T) {
	for _, sort := range sorts {
		t.Run(sort.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var c counting
				f := start(t, sort.make, &c, nil)
				var calls atomic.Int64
				f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
					if calls.Add(1)%3 == 0 && op != "watch" {
						<-ctx.Done()
						return ctx.Err()
					}
					return call()
				})
				for range 50 {
					f.enqueue(&pawl.Request{})
				}
				rest(10 * time.Minute)
				f.storage.heal()
				rest(time.Minute)
				if s := f.p.Stats(); s.Completed != 50 {
					for j, err := range f.q.Jobs(context.Background(), pawl.Filter{States: []pawl.State{pawl.Scheduled, pawl.Ready, pawl.Running}}) {
						t.Errorf("%v at %v: %+v, %v", j, time.Now(), s, err)
					}
				}
				f.stop()
				c.want(t, 50)
			})
		})
	}
}

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

// While settles fail, the heartbeat keeps the claims, and no job runs again.
func TestSettleOutage(t *testing.T) {
	for _, sort := range sorts {
		for _, after := range []bool{false, true} {
			bubble(t, func(t *testing.T) {
				var c counting
				f := prepare(t, sort.make)
				f.storage.fail(after, "settle", "cycle")
				ids := make([]pawl.ID, 5)
				for i := range ids {
					ids[i] = f.enqueue(&pawl.Request{})
				}
				f.start(&c, nil)
				rest(10 * time.Minute)
				f.storage.heal()
				rest(10 * time.Second)
				for _, id := range ids {
					f.wantState(id, pawl.Completed, "")
				}
				f.stop()
				c.want(t, len(ids))
				if s := f.p.Stats(); s.Completed != 5 || s.Lost != 0 {
					t.Errorf("%s, after %v: stats %+v", sort.name, after, s)
				}
			})
		}
	}
}

func TestBusyOutcomesAreSettledLater(t *testing.T) {
	for _, sort := range sorts {
		bubble(t, func(t *testing.T) {
			var c counting
			f := prepare(t, sort.make)
			ids := make([]pawl.ID, 10)
			for i := range ids {
				ids[i] = f.enqueue(&pawl.Request{})
			}
			held := true
			f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
				outcomes := outcomesOf(ctx)
				i := slices.IndexFunc(outcomes, func(o pawl.Outcome) bool { return o.Ref.ID == ids[3] })
				if !held || i < 0 {
					return call()
				}
				// The others are settled, as the contract says.
				rest := slices.Delete(slices.Clone(outcomes), i, i+1)
				if _, err := f.storage.Storage.Settle(ctx, rest); err != nil {
					return err
				}
				return &pawl.BusyError{Refs: []pawl.Ref{outcomes[i].Ref}}
			})
			f.start(&c, nil)
			rest(time.Minute)
			for i, id := range ids {
				if i != 3 {
					f.wantState(id, pawl.Completed, "")
				}
			}
			f.wantState(ids[3], pawl.Running, "")
			f.storage.heal()
			rest(time.Second)
			f.wantState(ids[3], pawl.Completed, "")
			f.stop()
			c.want(t, len(ids))
			if s := f.p.Stats(); s.Completed != 10 {
				t.Errorf("%s: stats %+v", sort.name, s)
			}
		})
	}
}

// An outcome that no call can settle does not hinder others, and ends as a
// failure of its job.
func TestGuiltyOutcome(t *testing.T) {
	for _, sort := range sorts {
		for _, guilt := range []error{errStorage, &pawl.InvalidError{Field: "Result", Limit: "storable"}} {
			bubble(t, func(t *testing.T) {
				var c counting
				f := prepare(t, sort.make)
				ids := make([]pawl.ID, 40)
				for i := range ids {
					ids[i] = f.enqueue(&pawl.Request{})
				}
				guilty := ids[5]
				f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
					for _, o := range outcomesOf(ctx) {
						if o.Ref.ID == guilty && o.Verb == pawl.Ack {
							return guilt
						}
					}
					return call()
				})
				f.start(&c, nil)
				rest(5 * time.Second)
				for _, id := range ids {
					if id != guilty {
						f.wantState(id, pawl.Completed, "")
					}
				}
				for range 90 { // others go on succeeding
					f.enqueue(&pawl.Request{})
					rest(time.Second)
				}
				rest(2 * time.Second)
				j := f.wantState(guilty, pawl.Scheduled, pawl.ReasonRetry)
				if len(j.Failures) != 1 || !strings.Contains(j.Failures[0].Error, guilt.Error()) {
					t.Errorf("failures %v", j.Failures)
				}
				f.stop()
				if s := f.p.Stats(); s.Completed != 129 || s.Failed != 1 {
					t.Errorf("%s: stats %+v", sort.name, s)
				}
			})
		}
	}
}

// A job that can't be handed back is left to its lease, unspent.
func TestHopelessHandBack(t *testing.T) {
	for _, sort := range sorts {
		for _, guilt := range []error{errStorage, &pawl.InvalidError{Field: "Delay", Limit: "storable"}} {
			bubble(t, func(t *testing.T) {
				f := prepare(t, sort.make)
				foreign := f.enqueue(&pawl.Request{Kind: "foreign", MaxAttempts: 1, MaxRescues: 100})
				f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
					for _, o := range outcomesOf(ctx) {
						if o.Verb == pawl.Skip {
							return guilt
						}
					}
					return call()
				})
				ok := func(context.Context, *pawl.Job) ([]byte, error) { return nil, nil }
				f.start(kinds{{Name: "k", Run: ok}}, nil)
				for range 3 * 60 { // others go on succeeding
					f.enqueue(&pawl.Request{})
					rest(time.Second)
				}
				j := f.get(foreign)
				if j.Counts.Rescues < 1 || j.Counts.Retries > 0 || j.Attempt > 1 {
					t.Errorf("%s: attempt %d, counts %+v", sort.name, j.Attempt, j.Counts)
				}
				for _, failure := range j.Failures {
					if failure.Error != "lease expired" {
						t.Errorf("%s: failure %+v", sort.name, failure)
					}
				}
				if n := f.log.count("panic"); n > 0 {
					t.Errorf("%d panics", n)
				}
				f.storage.heal()
				rest(5 * time.Minute)
				f.stop()
				if s := f.p.Stats(); s.Completed != 180 || s.Failed != 0 || s.Skipped == 0 {
					t.Errorf("%s: stats %+v", sort.name, s)
				}
			})
		}
	}
}

// An outcome that can't be stored in any form is given up.
func TestHopelessOutcome(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var c counting
		f := prepare(t, cycling)
		id := f.enqueue(&pawl.Request{MaxRescues: pawl.NoRescues})
		f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
			for _, o := range outcomesOf(ctx) {
				if o.Ref.ID == id {
					return &pawl.InvalidError{Field: "Outcome", Limit: "storable"}
				}
			}
			return call()
		})
		f.start(&c, nil)
		rest(time.Minute)
		f.wantState(id, pawl.Buried, pawl.ReasonRescues)
		f.stop()
	})
}

// Events that are lost, late or doubled change nothing but speed.
func TestEventsAreHints(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var c counting
		f := prepare(t, func(d *disturbed) pawl.Storage { return &noisy{cyclingStorage{watchedStorage{d}}} })
		f.start(&c, nil)
		for range 100 {
			f.enqueue(&pawl.Request{})
			rest(500 * time.Millisecond)
		}
		rest(10 * time.Second)
		f.stop()
		c.want(t, 100)
	})
}

// noisy doubles each second event, drops each third, and ends its watch often.
type noisy struct{ cyclingStorage }

func (n *noisy) Watch(ctx context.Context, f func(pawl.Event)) error {
	ctx, cancel := context.WithTimeout(ctx, 7*time.Second)
	defer cancel()
	events := 0
	return n.cyclingStorage.Watch(ctx, func(e pawl.Event) {
		switch events++; {
		case events%3 == 0:
			return
		case events%2 == 0:
			f(e)
		}
		f(e)
		f(pawl.Event{Kind: pawl.EventReady, Queue: "foreign"})
		f(pawl.Event{Kind: pawl.EventEnded, Ref: pawl.Ref{ID: pawl.ID{1}}})
	})
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

// write is a transaction of nothing: what it settles is settled at once, or
// with lost set never.
type write struct {
	pawl.Writer
	rolledBack bool
}

func (w write) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	if w.rolledBack {
		return nil, nil
	}
	return w.Writer.Settle(ctx, outcomes)
}

func TestSettledInTransaction(t *testing.T) {
	failure := errors.New("failed after that")
	cases := []struct {
		name       string
		rolledBack bool
		bury       bool
		err        error
		retention  time.Duration
		window     time.Duration
		meddle     func(f *fixture, j *pawl.Job)
		state      pawl.State // 0: gone
		reason     pawl.Reason
		text       string
		count      worker.Stats
	}{
		{name: "committed", state: pawl.Completed, count: worker.Stats{Completed: 1}},
		{name: "committed, then an error", err: failure, state: pawl.Completed, count: worker.Stats{Completed: 1}},
		{name: "committed and deleted", retention: pawl.DeleteNow, count: worker.Stats{Completed: 1}},
		{name: "committed and purged", retention: 30 * time.Second, count: worker.Stats{Completed: 1}},
		{name: "committed and kept by its window", retention: pawl.DeleteNow, window: time.Hour, state: pawl.Completed, count: worker.Stats{Completed: 1}},
		{name: "buried", bury: true, state: pawl.Buried, reason: pawl.ReasonBury, count: worker.Stats{Failed: 1, Buried: 1}},
		{name: "rolled back", rolledBack: true, state: pawl.Scheduled, reason: pawl.ReasonRetry, text: pawl.ErrNotCommitted.Error(), count: worker.Stats{Failed: 1}},
		{name: "rolled back with an error", rolledBack: true, err: failure, state: pawl.Scheduled, reason: pawl.ReasonRetry, text: failure.Error(), count: worker.Stats{Failed: 1}},
		{name: "canceled meanwhile", rolledBack: true, state: pawl.Canceled, reason: pawl.ReasonCancel, count: worker.Stats{Lost: 1},
			meddle: func(f *fixture, j *pawl.Job) { f.q.Cancel(context.Background(), "", j.ID) }},
		{name: "deleted meanwhile, kept by a window", retention: pawl.DeleteNow, window: time.Hour, rolledBack: true, count: worker.Stats{Lost: 1},
			meddle: func(f *fixture, j *pawl.Job) { f.q.Delete(context.Background(), "", j.ID) }},
		{name: "deleted meanwhile", rolledBack: true, count: worker.Stats{Lost: 1},
			meddle: func(f *fixture, j *pawl.Job) { f.q.Delete(context.Background(), "", j.ID) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, cycling)
				r := &pawl.Request{Retention: c.retention}
				if c.window > 0 {
					r.UniqueKey, r.UniqueMode, r.UniqueWindow = "key", pawl.UniqueUntilWindow, c.window
				}
				id := f.enqueue(r)
				h := worker.Func(func(ctx context.Context, j *pawl.Job) error {
					tx := f.q.WithTx(write{f.storage, c.rolledBack})
					settle := func() error { return tx.Ack(ctx, j, nil) }
					if c.bury {
						settle = func() error { return tx.Bury(ctx, j, failure) }
					}
					if err := settle(); err != nil {
						t.Error(err)
					}
					if c.meddle != nil {
						c.meddle(f, j)
					}
					time.Sleep(time.Minute) // heartbeats must not mistake the commit for a loss
					if ctx.Err() != nil && c.meddle == nil {
						t.Errorf("context ended: %v", context.Cause(ctx))
					}
					return c.err
				})
				var failOnce atomic.Bool
				f.storage.disturb(func(_ context.Context, op string, call func() error) error {
					if op == "get" && failOnce.CompareAndSwap(false, true) {
						return errStorage
					}
					return call()
				})
				f.start(h, nil)
				rest(61 * time.Second)
				if c.state != 0 {
					j := f.wantState(id, c.state, c.reason)
					if c.text != "" && (len(j.Failures) != 1 || j.Failures[0].Error != c.text) {
						t.Errorf("failures %v", j.Failures)
					}
				} else if _, err := f.q.Get(context.Background(), "", id); !errors.Is(err, pawl.ErrNotFound) {
					t.Errorf("Get: %v", err)
				}
				f.stop()
				s := f.p.Stats()
				got := worker.Stats{Completed: s.Completed, Failed: s.Failed, Buried: s.Buried, Lost: s.Lost}
				if got != c.count {
					t.Errorf("stats %+v, want %+v", got, c.count)
				}
			})
		})
	}
}

// A pool that can't find out what became of a transaction stops all the same.
func TestVerifyEndsWithThePool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		f.enqueue(&pawl.Request{})
		f.storage.fail(false, "get")
		f.start(worker.Func(func(ctx context.Context, j *pawl.Job) error {
			return f.q.WithTx(write{f.storage, false}).Ack(ctx, j, nil)
		}), nil)
		synctest.Wait()
		err := f.p.Stop(context.Background())
		if err != nil {
			t.Error(err)
		}
		var left *worker.StopError
		if err := <-f.result; !errors.As(err, &left) || len(left.Running) != 1 {
			t.Errorf("Run: %v", err)
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
