package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

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
		"Heartbeat/spins":   {Heartbeat: 1},
		"Poll/spins":        {Poll: 1},
		"SweepEvery/spins":  {SweepEvery: 1},
		"CountEvery/spins":  {CountEvery: 1},
		"Poll":              {Poll: -1},
		"SweepEvery":        {SweepEvery: -1},
		"CountEvery":        {CountEvery: -1},
		"StopTimeout":       {StopTimeout: -1},
		"MaxStuck":          {MaxStuck: -2},
		"WorkerID":          {WorkerID: strings.Repeat("x", 256)},
		"WorkerID/lines":    {WorkerID: "a\nb"},
		"WorkerID/bytes":    {WorkerID: "\xff"},
		"Queue.Name":        {Queues: []worker.Queue{{Name: "no spaces"}}},
		"Queue.Name/none":   {Queues: []worker.Queue{{Concurrency: 5}}},
		"Queues":            {Queues: []worker.Queue{{Name: "a"}, {Name: "a"}}},
		"Queue.Concurrency": {Queues: []worker.Queue{{Name: "a", Concurrency: -1}}},
		"Queue.Weight":      {Queues: []worker.Queue{{Name: "a", Weight: -1}}},

		"Queue.Concurrency/strict": {Queues: []worker.Queue{{Name: "a", Concurrency: 1}}, Strict: true},

		"Queue.Weight/strict":    {Queues: []worker.Queue{{Name: "a", Weight: 1}}, Strict: true},
		"Queue.Concurrency/both": {Queues: []worker.Queue{{Name: "a", Weight: 1, Concurrency: 1}}},
	}
	for name, o := range cases {
		field, _, _ := strings.Cut(name, "/")
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				err := worker.New(prepare(t, bare).q, returning(nil), &o).Run(t.Context())
				var invalid *pawl.InvalidError
				if !errors.As(err, &invalid) || invalid.Field != field {
					t.Errorf("error %v, want one of field %s", err, field)
				}
				if text := err.Error(); !strings.HasPrefix(text, "worker: options: ") || len(o.Queues) > 0 && !strings.Contains(text, fmt.Sprintf("queue %q", o.Queues[0].Name)) {
					t.Errorf("error %v does not say whose it is", err)
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

// The longest times mean never, and nothing overflows.
func TestLongestTimes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &lasting{takes: 10 * time.Second}
		f := start(t, cycling, l, &worker.Options{
			Heartbeat: math.MaxInt64, Poll: math.MaxInt64, SweepEvery: math.MaxInt64, CountEvery: math.MaxInt64, StopTimeout: math.MaxInt64,
		})
		id := f.enqueue(&pawl.Request{})
		rest(time.Second)
		f.stop()
		f.wantState(id, pawl.Completed, "")
		if n := l.cut.Load(); n != 0 {
			t.Errorf("%d handlers cut short by a stop that has for ever", n)
		}
	})
}

// A kind whose jobs go to a queue that the pool does not serve is told once.
func TestKindsOfQueuesNotServed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		run := func(context.Context, *pawl.Job) ([]byte, error) { return nil, nil }
		h := kinds{{Name: "a", Queue: "mail", Run: run}, {Name: "b", Run: run}, {Name: "c", Queue: "served", Run: run}, {Run: run}}
		f := start(t, cycling, h, &worker.Options{Queues: []worker.Queue{{Name: "served"}}})
		rest(time.Minute)
		for _, line := range []string{"kind=a queue=mail", "kind=b queue=default", ""} {
			want := 1
			if line == "" {
				want = 2 // in all
			}
			if n := f.log.count(`level=WARN msg="worker: queue of a handled kind is not served" ` + line); n != want {
				t.Errorf("logged %d times of %q, want %d", n, line, want)
			}
		}
		f.stop()
	})
}
