package worker_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// telling tells what the test says.
type telling struct {
	*disturbed
	events chan pawl.Event
}

func (s *telling) Watch(ctx context.Context, f func(pawl.Event)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-s.events:
			f(e)
		}
	}
}

// However long the storage was away, its first event ends the wait.
func TestOutageEndsWithEvent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		events := make(chan pawl.Event)
		var c counting
		f := start(t, func(d *disturbed) pawl.Storage { return &telling{d, events} }, &c, nil)
		for range 20 {
			f.storage.disturb(func(context.Context, string, func() error) error { return errStorage })
			rest(10*time.Minute + time.Second)
			f.enqueue(&pawl.Request{})
			// The connections of before the outage fail once more.
			events <- pawl.Event{Kind: pawl.EventReady}
			rest(10 * time.Millisecond)
			f.storage.heal()
			rest(100 * time.Millisecond)
		}
		c.want(t, 20)
		f.stop()
	})
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

// An outage is over when there is nothing left that could show it.
func TestOutageEndsWithNothingToDo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
			<-ctx.Done()
			return nil
		})
		f := start(t, bare, h, nil)
		f.storage.disturb(func(_ context.Context, op string, call func() error) error {
			if op == "extend" {
				return errStorage
			}
			return call()
		})
		id := f.enqueue(&pawl.Request{})
		rest(5 * time.Minute)
		f.wantState(id, pawl.Completed, "")
		if n := f.log.count("storage fails to extend"); n != 1 {
			t.Errorf("the outage was logged %d times", n)
		}
		if h := f.p.Health(); !h.Ready || h.Reason != "" {
			t.Errorf("health %+v", h)
		}
		f.stop()
	})
}

// However many jobs there are, and whether settles fail or are slow, a pool holds
// a bounded number of outcomes and of their bytes.
func TestOutcomesInHandAreBounded(t *testing.T) {
	const slots, prefetch = 2, 500
	fails := func(func() error) error { return errStorage }
	slow := func(call func() error) error { time.Sleep(2 * time.Second); return call() }
	cases := []struct {
		name   string
		settle func(call func() error) error
		jobs   int
		result int
		most   int64
	}{
		{"settles fail", fails, 20_000, 0, 2*pawl.MaxStep + slots + prefetch},
		{"settles are slow", slow, 20_000, 0, 2*pawl.MaxStep + slots + prefetch},
		{"large results", fails, 500, 1 << 20, 64 + slots + 16},
	}
	for _, c := range cases {
		for _, sort := range sorts {
			t.Run(c.name+"/"+sort.name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := prepare(t, sort.make)
					f.enqueueMany(pawl.DefaultQueue, c.jobs)
					f.storage.disturb(func(_ context.Context, op string, call func() error) error {
						if op == "settle" || op == "cycle" {
							return c.settle(call)
						}
						return call()
					})
					result := make([]byte, c.result)
					f.start(kinds{{Run: func(context.Context, *pawl.Job) ([]byte, error) { return result, nil }}}, &worker.Options{Concurrency: slots})
					most := int64(0)
					for range 60 {
						rest(time.Second)
						s := f.p.Stats()
						most = max(most, s.Started-s.Settled)
					}
					if most > c.most {
						t.Errorf("%d outcomes in hand, want at most %d", most, c.most)
					}
					f.storage.heal()
					rest(time.Minute)
					if s := f.p.Stats(); s.Completed != int64(c.jobs) {
						t.Errorf("stats %+v", s)
					}
					f.stop()
				})
			})
		}
	}
}
