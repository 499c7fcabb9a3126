package worker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

func TestAck(t *testing.T) {
	for _, sort := range sorts {
		t.Run(sort.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := kinds{{Name: "k", Run: func(_ context.Context, j *pawl.Job) ([]byte, error) {
					return append([]byte("result of "), j.Payload...), nil
				}}}
				f := start(t, sort.make, h, nil)
				id := f.enqueue(&pawl.Request{Payload: []byte("this")})
				rest(2 * time.Second)
				j := f.wantState(id, pawl.Completed, "")
				if got := string(j.Result); got != "result of this" {
					t.Errorf("result %q", got)
				}
				if j.WorkerID != "tester" {
					t.Errorf("worker %q", j.WorkerID)
				}
				f.stop()
			})
		})
	}
}

func TestManyJobsOnce(t *testing.T) {
	for _, sort := range sorts {
		for _, settleNow := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/now=%v", sort.name, settleNow), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					const n = 2000
					runs := make(chan pawl.ID, 2*n)
					f := prepare(t, sort.make)
					for range n {
						f.enqueue(&pawl.Request{})
					}
					f.start(worker.Func(func(_ context.Context, j *pawl.Job) error { runs <- j.ID; return nil }),
						&worker.Options{SettleNow: settleNow})
					rest(time.Minute)
					f.stop()
					seen := make(map[pawl.ID]bool)
					for len(runs) > 0 {
						seen[<-runs] = true
					}
					s := f.p.Stats()
					want := worker.Stats{Claimed: n, Started: n, Completed: n, Settled: n}
					got := worker.Stats{Claimed: s.Claimed, Started: s.Started, Completed: s.Completed, Settled: s.Settled}
					if diff := cmp.Diff(want, got); diff != "" || len(seen) != n {
						t.Errorf("%d jobs seen; stats (-want +got):\n%s", len(seen), diff)
					}
					if settleNow != (s.SettleBatch() == 1) {
						t.Errorf("%v outcomes a settle", s.SettleBatch())
					}
					if s.ClaimBatch() < 2 {
						t.Errorf("%v jobs a claim", s.ClaimBatch())
					}
				})
			})
		}
	}
}

// The schedule of a job that fails takes hours.
func TestRetriesThenBurial(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cause := errors.New("no luck")
		var times []time.Duration
		var failed, buried int
		began := time.Now()
		h := kinds{{
			Name:    "k",
			Backoff: pawl.Schedule{time.Hour, 2 * time.Hour},
			Run: func(context.Context, *pawl.Job) ([]byte, error) {
				times = append(times, time.Since(began))
				return nil, cause
			},
			OnError: func(_ context.Context, j *pawl.Job, err error) {
				if failed++; !errors.Is(err, cause) || j.Attempt != failed {
					t.Errorf("OnError for attempt %d: %v", j.Attempt, err)
				}
			},
			OnBury: func(_ context.Context, j *pawl.Job, err error) {
				if buried++; !errors.Is(err, cause) || j.Attempt != 4 {
					t.Errorf("OnBury for attempt %d: %v", j.Attempt, err)
				}
			},
		}}
		f := start(t, cycling, h, nil)
		id := f.enqueue(&pawl.Request{MaxAttempts: 4})
		rest(6 * time.Hour)
		j := f.wantState(id, pawl.Buried, pawl.ReasonAttempts)
		want := []time.Duration{0, time.Hour, 3 * time.Hour, 5 * time.Hour}
		for i, at := range times {
			times[i] = at.Truncate(10 * time.Millisecond)
		}
		if diff := cmp.Diff(want, times); diff != "" {
			t.Errorf("runs (-want +got):\n%s", diff)
		}
		if len(j.Failures) != 4 || j.Failures[3].Error != "no luck" || j.Counts.Retries != 3 {
			t.Errorf("failures %v, counts %v", j.Failures, j.Counts)
		}
		if failed != 4 || buried != 1 {
			t.Errorf("OnError called %d times, OnBury %d times", failed, buried)
		}
		f.stop()
		if s := f.p.Stats(); s.Failed != 4 || s.Buried != 1 || s.Completed != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestWaysToFail(t *testing.T) {
	cases := []struct {
		name   string
		err    error
		state  pawl.State
		reason pawl.Reason
		in     time.Duration
		count  pawl.Counts
	}{
		{"error", errors.New("e"), pawl.Scheduled, pawl.ReasonRetry, time.Hour, pawl.Counts{Retries: 1}},
		{"permanent", pawl.Permanent(errors.New("e")), pawl.Buried, pawl.ReasonBury, 0, pawl.Counts{}},
		{"snooze", pawl.Snooze(time.Minute), pawl.Scheduled, pawl.ReasonSnooze, time.Minute, pawl.Counts{Snoozes: 1}},
		{"retry after", pawl.RetryAfter(time.Minute, errors.New("e")), pawl.Scheduled, pawl.ReasonRetry, time.Minute, pawl.Counts{Retries: 1}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := start(t, cycling, returning(c.err), nil)
				id := f.enqueue(&pawl.Request{})
				rest(10 * time.Second)
				j := f.wantState(id, c.state, c.reason)
				if c.in > 0 {
					if in := j.RunAt.Sub(j.ClaimedAt); in < c.in || in > c.in+10*time.Millisecond {
						t.Errorf("runs again %v after its claim, want %v", in, c.in)
					}
				}
				if diff := cmp.Diff(c.count, j.Counts); diff != "" {
					t.Errorf("counts (-want +got):\n%s", diff)
				}
				f.stop()
			})
		})
	}
}

type badError struct{}

func (badError) Error() string { panic("no text") }

func TestAbnormalEnds(t *testing.T) {
	type badBackoff = pawl.BackoffFunc
	cases := []struct {
		name        string
		kind        pawl.Kind
		text, stack string
	}{
		{"panic", pawl.Kind{Run: func(context.Context, *pawl.Job) ([]byte, error) { panic("ouch") }}, "panic: ouch", "TestAbnormalEnds"},
		{"goexit", pawl.Kind{Run: func(context.Context, *pawl.Job) ([]byte, error) { runtime.Goexit(); return nil, nil }}, "Goexit", "TestAbnormalEnds"},
		{"error panics", pawl.Kind{Run: func(context.Context, *pawl.Job) ([]byte, error) { return nil, badError{} }}, "no text", "badError"},
		{"backoff panics", pawl.Kind{
			Run:     func(context.Context, *pawl.Job) ([]byte, error) { return nil, errors.New("e") },
			Backoff: badBackoff(func(int, error) time.Duration { panic("no idea") }),
		}, "no idea", "TestAbnormalEnds"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c.kind.Name = "bad"
				good := pawl.Kind{Name: "good", Run: func(context.Context, *pawl.Job) ([]byte, error) { return nil, nil }}
				f := start(t, cycling, kinds{c.kind, good}, &worker.Options{Concurrency: 1})
				id := f.enqueue(&pawl.Request{Kind: "bad"})
				after := f.enqueue(&pawl.Request{Kind: "good"})
				rest(100 * time.Millisecond)
				j := f.wantState(id, pawl.Scheduled, pawl.ReasonRetry)
				if len(j.Failures) != 1 {
					t.Fatalf("failures %v", j.Failures)
				}
				if e := j.Failures[0]; !strings.Contains(e.Error, c.text) || !strings.Contains(e.Stack, c.stack) {
					t.Errorf("failure %q, stack %q; want %q, %q", e.Error, e.Stack, c.text, c.stack)
				}
				f.wantState(after, pawl.Completed, "") // the slot goes on
				f.stop()
			})
		})
	}
}

func TestHooksMayMisbehave(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := kinds{{
			Name:    "k",
			Run:     func(context.Context, *pawl.Job) ([]byte, error) { return nil, pawl.Permanent(errors.New("e")) },
			OnError: func(context.Context, *pawl.Job, error) { panic("in the hook") },
			OnBury:  func(context.Context, *pawl.Job, error) { runtime.Goexit() },
		}}
		f := start(t, cycling, h, nil)
		for range 3 {
			f.enqueue(&pawl.Request{})
		}
		rest(time.Second)
		f.stop()
		if n := f.log.count("in the hook"); n != 3 {
			t.Errorf("%d panics logged, want 3", n)
		}
		if s := f.p.Stats(); s.Buried != 3 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestOversizeResultFailsTheJobAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := kinds{{Run: func(_ context.Context, j *pawl.Job) ([]byte, error) {
			if string(j.Payload) == "big" {
				return make([]byte, 2<<20), nil
			}
			return nil, nil
		}}}
		f := prepare(t, cycling)
		big := f.enqueue(&pawl.Request{Payload: []byte("big")})
		small := f.enqueue(&pawl.Request{})
		f.start(h, nil)
		rest(time.Second)
		f.wantState(small, pawl.Completed, "")
		j := f.wantState(big, pawl.Scheduled, pawl.ReasonRetry)
		if len(j.Failures) != 1 || !strings.Contains(j.Failures[0].Error, "Result must be at most 1048576 bytes") {
			t.Errorf("failures %v", j.Failures)
		}
		f.stop()
	})
}

func TestUnknownKindIsHandedBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		run := func(context.Context, *pawl.Job) ([]byte, error) { return nil, nil }
		f := start(t, cycling, kinds{{Name: "known", Run: run}}, nil)
		id := f.enqueue(&pawl.Request{Kind: "foreign"})
		known := f.enqueue(&pawl.Request{Kind: "known"})
		rest(10 * time.Minute)
		f.wantState(known, pawl.Completed, "")
		j := f.wantState(id, pawl.Scheduled, pawl.ReasonSkip)
		if j.Attempt != 0 || j.Counts.Skips < 10 || j.Counts.Skips > 25 {
			t.Errorf("attempt %d, %d skips in ten minutes", j.Attempt, j.Counts.Skips)
		}
		if n := f.log.count("no handler"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		f.stop()
		if s := f.p.Stats(); s.Skipped != int64(j.Counts.Skips) || s.Started != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestMiddlewareOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var order []string
		mw := func(name string) worker.Middleware {
			return func(next worker.RunFunc) worker.RunFunc {
				return func(ctx context.Context, j *pawl.Job) ([]byte, error) {
					order = append(order, name)
					return next(ctx, j)
				}
			}
		}
		f := start(t, cycling, returning(nil), &worker.Options{Middleware: []worker.Middleware{mw("outer"), mw("inner")}})
		f.enqueue(&pawl.Request{})
		rest(time.Second)
		f.stop()
		if diff := cmp.Diff([]string{"outer", "inner"}, order); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

func TestValuesOfRunsContextReachHandlers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		type key struct{}
		f := prepare(t, cycling)
		got := make(chan any, 1)
		p := worker.New(f.q, worker.Func(func(ctx context.Context, _ *pawl.Job) error { got <- ctx.Value(key{}); return nil }), nil)
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		f.enqueue(&pawl.Request{})
		go func() { f.result <- p.Run(ctx) }()
		if v := <-got; v != "value" {
			t.Errorf("value %v", v)
		}
		cancel()
		if err := <-f.result; err != nil {
			t.Error(err)
		}
	})
}

func TestQueuesHaveTheirOwnSlots(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var now, most [2]int
		h := worker.Func(func(_ context.Context, j *pawl.Job) error {
			i := 0
			if j.Queue == "b" {
				i = 1
			}
			mu.Lock()
			now[i]++
			most[i] = max(most[i], now[i])
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			now[i]--
			mu.Unlock()
			return nil
		})
		f := prepare(t, cycling)
		for range 20 {
			f.enqueue(&pawl.Request{Queue: "a"})
			f.enqueue(&pawl.Request{Queue: "b"})
		}
		f.start(h, &worker.Options{Queues: []worker.Queue{{Name: "a", Concurrency: 2}, {Name: "b"}}, Concurrency: 5})
		rest(time.Minute)
		f.stop()
		if most != [2]int{2, 5} {
			t.Errorf("ran %v at the same time, want 2 and 5", most)
		}
		if s := f.p.Stats(); s.Completed != 40 || s.Slots != 7 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestStrictOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		order := make(chan string, 30)
		f := prepare(t, cycling)
		for range 10 {
			for _, queue := range []string{"low", "mid", "high"} {
				f.enqueue(&pawl.Request{Queue: queue})
			}
		}
		h := worker.Func(func(_ context.Context, j *pawl.Job) error {
			order <- j.Queue
			time.Sleep(time.Second)
			return nil
		})
		f.start(h, &worker.Options{
			Queues: []worker.Queue{{Name: "high"}, {Name: "mid"}, {Name: "low"}}, Strict: true, Concurrency: 2,
		})
		rest(time.Minute)
		f.stop()
		var got []string
		for len(order) > 0 {
			got = append(got, <-order)
		}
		want := strings.Fields(strings.Repeat("high ", 10) + strings.Repeat("mid ", 10) + strings.Repeat("low ", 10))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

func TestDefaultQueuesAreThoseOfTheKinds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		run := func(context.Context, *pawl.Job) ([]byte, error) { return nil, nil }
		f := start(t, cycling, kinds{{Name: "a", Queue: "mail", Run: run}, {Name: "b", Run: run}, {Name: "c", Queue: "mail", Run: run}}, nil)
		ids := []pawl.ID{
			f.enqueue(&pawl.Request{Kind: "a", Queue: "mail"}),
			f.enqueue(&pawl.Request{Kind: "b"}),
			f.enqueue(&pawl.Request{Kind: "c", Queue: "mail"}),
		}
		other := f.enqueue(&pawl.Request{Kind: "a", Queue: "other"})
		rest(time.Minute)
		for _, id := range ids {
			f.wantState(id, pawl.Completed, "")
		}
		f.wantState(other, pawl.Ready, "")
		f.stop()
	})
}

func TestOptionsAreValidated(t *testing.T) {
	cases := map[string]worker.Options{
		"Concurrency":       {Concurrency: -1},
		"Prefetch":          {Prefetch: -2},
		"Lease":             {Lease: time.Millisecond},
		"Heartbeat":         {Heartbeat: -1},
		"Poll":              {Poll: -1},
		"SweepEvery":        {SweepEvery: -1},
		"StopTimeout":       {StopTimeout: -1},
		"MaxStuck":          {MaxStuck: -2},
		"WorkerID":          {WorkerID: strings.Repeat("x", 256)},
		"Queue":             {Queues: []worker.Queue{{Name: "no spaces"}}},
		"Queues":            {Queues: []worker.Queue{{Name: "a"}, {Name: "a"}}},
		"Queue.Concurrency": {Queues: []worker.Queue{{Name: "a", Concurrency: -1}}},
	}
	for field, o := range cases {
		t.Run(field, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				err := worker.New(prepare(t, bare).q, returning(nil), &o).Run(t.Context())
				var invalid *pawl.InvalidError
				if !errors.As(err, &invalid) || invalid.Field != field {
					t.Errorf("error %v, want one of field %s", err, field)
				}
			})
		})
	}
	bubble(t, func(t *testing.T) {
		q := prepare(t, bare).q
		_, drainErr := worker.Drain(t.Context(), q, kinds{}, nil)
		for _, err := range []error{worker.New(q, kinds{}, nil).Run(t.Context()), drainErr} {
			if !errors.Is(err, pawl.ErrInvalid) || !strings.HasPrefix(err.Error(), "worker: no handlers registered") {
				t.Errorf("without kinds: %v", err)
			}
		}
	})
}

func TestNewPanics(t *testing.T) {
	run := func(context.Context, *pawl.Job) ([]byte, error) { return nil, nil }
	for name, k := range map[string]kinds{
		"twice":      {{Name: "a", Run: run}, {Name: "a", Run: run}},
		"no handler": {{Name: "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				defer func() {
					if recover() == nil {
						t.Error("New did not panic")
					}
				}()
				worker.New(prepare(t, bare).q, k, nil)
			})
		})
	}
}

func TestRunTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := start(t, bare, returning(nil), nil)
		if err := f.p.Run(t.Context()); err == nil {
			t.Error("second Run returned nil")
		}
		f.stop()
		synctest.Wait()
	})
}
