package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// lasting is a handler whose runs take a time; it counts those whose context
// ended.
type lasting struct {
	takes time.Duration
	cut   atomic.Int64
}

func (l *lasting) Kinds() []pawl.Kind {
	return worker.Func(func(ctx context.Context, _ *pawl.Job) error {
		select {
		case <-time.After(l.takes):
		case <-ctx.Done():
			l.cut.Add(1)
		}
		return ctx.Err()
	}).Kinds()
}

func (f *fixture) set(queue string, n int) {
	f.t.Helper()
	if err := f.p.SetConcurrency(queue, n); err != nil {
		f.t.Fatal(err)
	}
	synctest.Wait()
}

func (f *fixture) wantSlots(slots, running int) {
	f.t.Helper()
	if s := f.p.Stats(); s.Slots != slots || s.Running != running {
		f.t.Errorf("%d slots, %d running, want %d and %d", s.Slots, s.Running, slots, running)
	}
}

var tenInAll = map[string]worker.Options{
	"own":      {Concurrency: 10},
	"strict":   {Concurrency: 10, Strict: true, Queues: []worker.Queue{{Name: "default"}, {Name: "other"}}},
	"weighted": {Concurrency: 10, Queues: []worker.Queue{{Name: "default", Weight: 2}, {Name: "other", Weight: 1}}},
}

// A new concurrency holds at once, with one claim, and cuts no run.
func TestConcurrencyChangesWhileRunning(t *testing.T) {
	for _, sort := range sorts {
		for name, o := range tenInAll {
			t.Run(sort.name+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := prepare(t, sort.make)
					f.enqueueMany("default", 1000)
					h := &lasting{takes: time.Second}
					f.start(h, &o)
					f.wantSlots(10, 10)
					rest(time.Second / 2)
					claims := f.p.Stats().Claims
					f.set("default", 50)
					f.wantSlots(50, 50)
					if n := f.p.Stats().Claims - claims; n != 1 {
						t.Errorf("%d claims", n)
					}
					rest(time.Second / 4)
					started := f.p.Stats().Started
					f.set("default", 5)
					f.wantSlots(5, 50)
					rest(time.Second/4 + time.Millisecond) // the first ten have ended
					f.wantSlots(5, 40)
					rest(time.Second / 2) // and the others
					f.wantSlots(5, 5)
					if n := f.p.Stats().Started - started; n != 5 {
						t.Errorf("%d started", n)
					}
					rest(10 * time.Second)
					f.wantSlots(5, 5)
					f.stop()
					if n := h.cut.Load(); n > 0 {
						t.Errorf("%d runs were cut", n)
					}
					if s := f.p.Stats(); s.Completed != s.Started || s.Lost != 0 {
						t.Errorf("stats %+v", s)
					}
				})
			})
		}
	}
}

// What was claimed for slots that are no more goes back to those who have some.
func TestLessConcurrencyHandsBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		f.enqueueMany("default", 1000)
		f.start(&lasting{takes: 10 * time.Millisecond}, &worker.Options{Concurrency: 50})
		rest(time.Second / 10)
		if s := f.p.Stats(); s.Prefetched < 20 {
			t.Fatalf("stats %+v", s)
		}
		f.set("default", 5)
		if s := f.p.Stats(); s.Prefetched > 0 || s.Released < 20 {
			t.Errorf("stats %+v", s)
		}
		for range 100 {
			rest(12 * time.Millisecond) // in which those end that ran
			if s := f.p.Stats(); s.Running > 5 {
				t.Fatalf("stats %+v", s)
			}
		}
		rest(10 * time.Second)
		f.stop()
		if s := f.p.Stats(); s.Completed != 1000 {
			t.Errorf("stats %+v", s)
		}
	})
}

// A claim that was under way when the concurrency fell brings too many.
func TestLessConcurrencyDuringAClaim(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, bare)
		f.enqueueMany("default", 100)
		f.storage.disturb(func(_ context.Context, op string, call func() error) error {
			err := call()
			if op == "claim" {
				time.Sleep(time.Second)
			}
			return err
		})
		f.start(&lasting{takes: time.Minute}, &worker.Options{Concurrency: 50, Prefetch: worker.NoPrefetch})
		f.set("default", 5)
		rest(2 * time.Second)
		f.wantSlots(5, 5)
		if s := f.p.Stats(); s.Released != 45 || s.Prefetched != 0 {
			t.Errorf("stats %+v", s)
		}
		f.storage.heal()
		f.stop()
	})
}

// Slots that idle end, and come again.
func TestConcurrencyOfAnIdlePool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := start(t, watched, &lasting{takes: time.Second}, &worker.Options{Concurrency: 50})
		f.set("default", 1)
		f.enqueueMany("default", 4)
		rest(time.Second / 2)
		f.wantSlots(1, 1)
		f.set("default", 3)
		f.wantSlots(3, 3)
		rest(time.Minute)
		f.stop()
		if s := f.p.Stats(); s.Completed != 4 {
			t.Errorf("stats %+v", s)
		}
	})
}

// A handler that was given up counts until it returns, unless it was replaced, or
// was one too many before.
func TestConcurrencyBesideStuckHandlers(t *testing.T) {
	for name, c := range map[string]struct {
		maxStuck          int
		less, more, freed int
	}{
		"replaced": {maxStuck: 10, less: 2, more: 6, freed: 6},
		"kept":     {maxStuck: worker.NoReplacements, less: 0, more: 3, freed: 6},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				free := make(chan struct{})
				f := prepare(t, cycling)
				h := worker.Func(func(ctx context.Context, j *pawl.Job) error {
					if j.Timeout > 0 {
						<-free // whatever its context says
						return nil
					}
					<-ctx.Done()
					return ctx.Err()
				})
				for range 3 {
					f.enqueue(&pawl.Request{Timeout: time.Second, Priority: -1, MaxAttempts: 1})
				}
				f.enqueueMany("default", 20)
				f.start(h, &worker.Options{Concurrency: 3, MaxStuck: c.maxStuck, StopTimeout: time.Millisecond})
				rest(3 * time.Second)
				f.set("default", 2)
				if s := f.p.Stats(); s.Stuck != 3 || s.Slots != c.less {
					t.Errorf("stats %+v, want %d slots", s, c.less)
				}
				f.set("default", 6)
				if s := f.p.Stats(); s.Stuck != 3 || s.Slots != c.more || s.Running != c.more {
					t.Errorf("stats %+v, want %d slots", s, c.more)
				}
				close(free)
				synctest.Wait()
				if s := f.p.Stats(); s.Stuck != 0 || s.Slots != c.freed || s.Running != c.freed {
					t.Errorf("stats %+v, want %d slots", s, c.freed)
				}
				f.stop()
			})
		})
	}
}

// Handlers beyond a lowered limit that are given up cost no slot.
func TestLessConcurrencyBeforeHandlersGetStuck(t *testing.T) {
	for name, c := range map[string]struct{ maxStuck, slots int }{
		"replaced": {maxStuck: 0, slots: 2},
		"one":      {maxStuck: 1, slots: 1},
		"kept":     {maxStuck: worker.NoReplacements, slots: 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				free := make(chan struct{})
				f := prepare(t, cycling)
				h := worker.Func(func(_ context.Context, j *pawl.Job) error {
					if j.Timeout > 0 {
						<-free // whatever its context says
					}
					return nil
				})
				for range 5 {
					f.enqueue(&pawl.Request{Timeout: 10 * time.Second, MaxAttempts: 1})
				}
				f.start(h, &worker.Options{Concurrency: 5, MaxStuck: c.maxStuck, StopTimeout: time.Millisecond})
				rest(time.Second)
				f.set("default", 2)
				rest(time.Minute)
				if s := f.p.Stats(); s.Stuck != 5 || s.Slots != c.slots {
					t.Errorf("stats %+v, want %d slots", s, c.slots)
				}
				id := f.enqueue(&pawl.Request{})
				rest(time.Minute)
				want := pawl.Completed
				if c.slots == 0 {
					want = pawl.Ready
				}
				f.wantState(id, want, "")
				close(free)
				rest(time.Minute)
				f.wantState(id, pawl.Completed, "")
				if s := f.p.Stats(); s.Stuck != 0 || s.Slots != 2 {
					t.Errorf("stats %+v, want 2 slots", s)
				}
				f.stop()
			})
		})
	}
}

// MaxStuck holds however often the limit falls and rises while handlers are stuck.
func TestConcurrencyThatVariesBesideStuckHandlers(t *testing.T) {
	for _, maxStuck := range []int{worker.NoReplacements, 2} {
		bubble(t, func(t *testing.T) {
			free := make(chan struct{})
			h := worker.Func(func(context.Context, *pawl.Job) error { <-free; return nil })
			f := start(t, cycling, h, &worker.Options{Concurrency: 5, MaxStuck: maxStuck})
			for range 30 {
				f.enqueue(&pawl.Request{Timeout: 10 * time.Second, MaxAttempts: 1})
			}
			for range 3 {
				rest(time.Second)
				f.set("default", 1)
				rest(time.Minute)
				f.set("default", 5)
			}
			rest(time.Minute)
			if s, want := f.p.Stats(), 5+max(maxStuck, 0); s.Stuck != want || s.Slots != 0 {
				t.Errorf("MaxStuck %d: stats %+v, want %d stuck", maxStuck, s, want)
			}
			close(free)
			rest(time.Minute)
			if s := f.p.Stats(); s.Stuck != 0 || s.Slots != 5 {
				t.Errorf("MaxStuck %d: stats %+v, want 5 slots", maxStuck, s)
			}
			f.stop()
		})
	}
}

func TestSetConcurrencyBeforeAndAfterRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		f.enqueueMany("default", 10)
		f.p = worker.New(f.q, &lasting{takes: time.Second}, &worker.Options{Concurrency: 50})
		f.set("default", 7)
		if h := f.p.Health(); h.Reason != "not running" {
			t.Errorf("health %+v", h)
		}
		go func() { f.result <- f.p.Run(t.Context()) }()
		synctest.Wait()
		f.wantSlots(7, 7)
		f.stop()
		f.set("default", 100) // which starts nothing
	})
}

func TestSetConcurrencyIsValidated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		p := worker.New(f.q, returning(nil), nil)
		bad := worker.New(f.q, kinds{}, nil)
		for name, err := range map[string]error{
			"none": p.SetConcurrency("default", 0), "many": p.SetConcurrency("default", 100_001),
			"other queue": p.SetConcurrency("other", 1), "no handlers": bad.SetConcurrency("default", 1),
		} {
			if !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("%s: error %v", name, err)
			}
		}
		if err := p.SetConcurrency("other", 1); !strings.Contains(err.Error(), `"other"`) {
			t.Errorf("error %v does not name the queue", err)
		}
	})
}
