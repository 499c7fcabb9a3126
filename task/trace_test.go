package task_test

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

type traceKey struct{}

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestTrace(t *testing.T) {
	inject := func(ctx context.Context, meta map[string]string) {
		if trace, ok := ctx.Value(traceKey{}).(map[string]string); ok {
			maps.Copy(meta, trace)
		}
	}
	q := pawl.New(memory.New(nil), &pawl.Options{Middleware: []pawl.EnqueueMiddleware{task.InjectTrace(inject)}})
	var got []string
	tasks := task.NewMux()
	task.Register(tasks, func(ctx context.Context, _ *task.Job[welcome]) error {
		got = append(got, ctx.Value(traceKey{}).(string))
		return nil
	})
	tasks.Use(task.ExtractTrace(func(ctx context.Context, meta map[string]string) context.Context {
		return context.WithValue(ctx, traceKey{}, meta["traceparent"])
	}))
	traced := context.WithValue(t.Context(), traceKey{}, map[string]string{"traceparent": parent})
	for _, ctx := range []context.Context{traced, t.Context()} {
		if _, err := q.Enqueue(ctx, task.New(welcome{7})); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := worker.Drain(t.Context(), q, tasks, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{parent, ""}, got); diff != "" {
		t.Error(diff)
	}
}

// TestTraceNeverRefusesAJob fills Meta with what a request has itself, then with
// what of the trace has room.
func TestTraceNeverRefusesAJob(t *testing.T) {
	carried := map[string]string{
		"traceparent": parent, "tracestate": strings.Repeat("s", 500), "baggage": strings.Repeat("b", 8000),
		"tenant": "injected", "bad": "\xff",
	}
	q := pawl.New(memory.New(nil), &pawl.Options{Middleware: []pawl.EnqueueMiddleware{
		task.InjectTrace(func(_ context.Context, meta map[string]string) { maps.Copy(meta, carried) }),
	}})
	own := strings.Repeat("x", pawl.MaxMetaSize-len("tenant")-len("traceparent")-len(parent))
	for name, c := range map[string]struct{ meta, want map[string]string }{
		"empty": {nil, map[string]string{"traceparent": parent, "tracestate": carried["tracestate"], "tenant": "injected"}},
		"own":   {map[string]string{"tenant": "own"}, map[string]string{"traceparent": parent, "tracestate": carried["tracestate"], "tenant": "own"}},
		"full":  {map[string]string{"tenant": own}, map[string]string{"traceparent": parent, "tenant": own}},
		"over":  {map[string]string{"tenant": own + "x"}, map[string]string{"tenant": own + "x"}},
	} {
		r := task.New(welcome{7})
		r.Meta = maps.Clone(c.meta)
		receipt, err := q.Enqueue(t.Context(), r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		job, err := q.Get(t.Context(), receipt.Queue, receipt.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, job.Meta); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(c.meta, r.Meta); diff != "" {
			t.Errorf("%s: the request was changed: %s", name, diff)
		}
	}
}
