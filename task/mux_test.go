package task_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/task"
)

func nothing[A task.Args](context.Context, *task.Job[A]) error { return nil }

// one returns the only kind of m.
func one(t *testing.T, m *task.Mux) pawl.Kind {
	t.Helper()
	kinds := m.Kinds()
	if len(kinds) != 1 {
		t.Fatalf("got %d kinds, want 1", len(kinds))
	}
	return kinds[0]
}

// claimed returns a claimed job for args.
func claimed[A task.Args](args A) *pawl.Job {
	r := task.New(args)
	return &pawl.Job{Kind: r.Kind, Payload: r.Payload, State: pawl.Running, Attempt: 1}
}

func TestKinds(t *testing.T) {
	m := task.NewMux()
	task.Register(m, nothing[welcome])
	task.Register(m, nothing[report], nil)
	task.Register(m, nothing[*pointed], &task.Options[*pointed]{Timeout: time.Minute, Backoff: pawl.Constant(time.Second)})
	m.Handle(pawl.Kind{Run: func(context.Context, *pawl.Job) ([]byte, error) { return []byte("all others"), nil }})
	type kind struct {
		Name, Queue string
		Timeout     time.Duration
		Backoff     pawl.Backoff
		Hooks       bool
	}
	var got []kind
	for _, k := range m.Kinds() {
		got = append(got, kind{k.Name, k.Queue, k.Timeout, k.Backoff, k.OnError != nil || k.OnBury != nil})
	}
	want := []kind{
		{},
		{Name: "pointed", Queue: "pointed", Timeout: time.Minute, Backoff: pawl.Constant(time.Second)},
		{Name: "report", Queue: "slow"},
		{Name: "welcome"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

type named struct{}

func (named) Kind() string { return "not a name" }

type noCodec struct{}

func (noCodec) Kind() string      { return "no codec" }
func (noCodec) Codec() task.Codec { return nil }

type nameless struct{}

func (nameless) Kind() string { return "" }

type lostQueue struct{}

func (lostQueue) Kind() string           { return "lost" }
func (lostQueue) Defaults() pawl.Request { return pawl.Request{Queue: "a b"} }

func TestRegisterPanics(t *testing.T) {
	limit := "is not 1 to 200 letters, digits, '_', '-', '.' or ':'"
	for want, register := range map[string]func(m *task.Mux){
		`task: kind "welcome" is registered twice`: func(m *task.Mux) {
			task.RegisterResult(m, func(context.Context, *task.Job[welcome]) (int, error) { return 0, nil })
		},
		`task: kind "not a name" ` + limit:                                         func(m *task.Mux) { task.Register(m, nothing[named]) },
		`task: kind "" of task_test.nameless ` + limit:                             func(m *task.Mux) { task.Register(m, nothing[nameless]) },
		`task: queue "a b" of kind "lost" ` + limit:                                func(m *task.Mux) { task.Register(m, nothing[lostQueue]) },
		`task: kind "report" has a nil handler`:                                    func(m *task.Mux) { task.Register[report](m, nil) },
		`task: kind "line" has a nil handler`:                                      func(m *task.Mux) { task.RegisterResult[line, int](m, nil) },
		`task: Args of a handler must be a concrete type`:                          func(m *task.Mux) { task.Register(m, nothing[task.Args]) },
		`task: method Defaults of task_test.hiddenDefaults needs a value receiver`: func(m *task.Mux) { task.Register(m, nothing[hiddenDefaults]) },
		`task: kind "report" is registered with more than one Options`:             func(m *task.Mux) { task.Register(m, nothing[report], nil, nil) },
		`task: method Codec of task_test.hiddenCodec needs a value receiver`: func(m *task.Mux) {
			task.RegisterResult(m, func(context.Context, *task.Job[report]) (hiddenCodec, error) { return hiddenCodec{}, nil })
		},
		`task: method Codec of task_test.noCodec returned nil`: func(m *task.Mux) { task.Register(m, nothing[noCodec]) },
		`task: kind "untyped" has a nil handler`:               func(m *task.Mux) { m.Handle(pawl.Kind{Name: "untyped"}) },
	} {
		t.Run(want, func(t *testing.T) {
			m := task.NewMux()
			task.Register(m, nothing[welcome])
			defer func() {
				if got := recover(); got != want {
					t.Errorf("got  %v\nwant %v", got, want)
				}
				if n := len(m.Kinds()); n != 1 {
					t.Errorf("the panic left %d kinds", n)
				}
			}()
			register(m)
		})
	}
}

// A Mux need not be made by NewMux, and middleware may look at it.
func TestMuxInMiddleware(t *testing.T) {
	var m task.Mux
	m.Use(func(next task.Handler) task.Handler {
		m.Use()
		return next
	})
	task.Register(&m, nothing[welcome])
	if k := one(t, &m); k.Name != "welcome" {
		t.Errorf("got %+v", k)
	}
}

func TestRun(t *testing.T) {
	type key struct{}
	failure := errors.New("failed")
	m := task.NewMux()
	task.Register(m, func(ctx context.Context, job *task.Job[welcome]) error {
		if ctx.Value(key{}) != "ctx" || job.Args.UserID != 7 || job.Attempt != 1 || job.Kind != "welcome" {
			t.Errorf("got %v, %+v", ctx, job)
		}
		return failure
	})
	ctx := context.WithValue(t.Context(), key{}, "ctx")
	if result, err := one(t, m).Run(ctx, claimed(welcome{7})); err != failure || result != nil {
		t.Errorf("got %q, %v", result, err)
	}
}

func TestRunPointer(t *testing.T) {
	m := task.NewMux()
	var got []int
	task.Register(m, func(_ context.Context, job *task.Job[*pointed]) error {
		got = append(got, job.Args.N)
		return nil
	})
	run := one(t, m).Run
	for _, payload := range []string{`{"N": 3}`, "null", `{}`} {
		if _, err := run(t.Context(), &pawl.Job{Kind: "pointed", Payload: []byte(payload)}); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]int{3, 0, 0}, got); diff != "" {
		t.Error(diff)
	}
}

func TestUndecodablePayloadIsBuried(t *testing.T) {
	m := task.NewMux()
	task.Register(m, func(context.Context, *task.Job[welcome]) error {
		t.Error("the handler ran")
		return nil
	})
	task.RegisterResult(m, func(context.Context, *task.Job[report]) (int, error) {
		t.Error("the handler ran")
		return 0, nil
	})
	for _, k := range m.Kinds() {
		job := &pawl.Job{Kind: k.Name, Payload: []byte(secret), Attempt: 1, MaxAttempts: 25}
		_, err := k.Run(t.Context(), job)
		o := pawl.OutcomeOf(job, err, pawl.Exponential{})
		var e *task.DecodeError
		if o.Verb != pawl.Bury || !errors.As(err, &e) || e.Kind != k.Name {
			t.Errorf("got %v for %v, want a burial for a DecodeError of kind %s", o.Verb, err, k.Name)
		}
		if strings.Contains(o.Error, secret) {
			t.Errorf("%q quotes the payload", o.Error)
		}
	}
}

func TestHooks(t *testing.T) {
	var got []string
	hook := func(name string) func(context.Context, *task.Job[welcome], error) {
		return func(_ context.Context, job *task.Job[welcome], err error) {
			var undecodable *task.DecodeError
			got = append(got, fmt.Sprint(name, job.Args.UserID, errors.As(err, &undecodable), errors.Is(err, errRefused)))
		}
	}
	m := task.NewMux()
	task.Register(m, nothing[welcome], &task.Options[welcome]{OnError: hook("error "), OnBury: hook("bury ")})
	k := one(t, m)
	bad := &pawl.Job{Kind: "welcome", Payload: []byte("[]")}
	k.OnError(t.Context(), claimed(welcome{7}), errRefused)
	k.OnBury(t.Context(), claimed(welcome{7}), errRefused)
	k.OnBury(t.Context(), bad, errRefused)
	_, decodeErr := k.Run(t.Context(), bad)
	k.OnError(t.Context(), bad, decodeErr)
	want := []string{"error 7 false true", "bury 7 false true", "bury 0 true true", "error 0 true false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestHookOfUndecodablePointer(t *testing.T) {
	m := task.NewMux()
	called := false
	task.Register(m, nothing[*pointed], &task.Options[*pointed]{
		OnBury: func(_ context.Context, job *task.Job[*pointed], err error) {
			called = job.Args != nil && job.Args.N == 0 && err != nil
		},
	})
	one(t, m).OnBury(t.Context(), &pawl.Job{Payload: []byte(`{"N": 1`)}, nil)
	if !called {
		t.Error("want zero args and an error")
	}
}

func TestUse(t *testing.T) {
	var got []string
	note := func(name string) func(task.Handler) task.Handler {
		return func(next task.Handler) task.Handler {
			return func(ctx context.Context, job *pawl.Job) ([]byte, error) {
				got = append(got, name+" "+job.Kind)
				result, err := next(ctx, job)
				got = append(got, name+" "+string(result))
				return append(result, '!'), err
			}
		}
	}
	m := task.NewMux()
	m.Use(note("outer"), note("middle"))
	task.RegisterResult(m, func(_ context.Context, job *task.Job[welcome]) (int64, error) {
		got = append(got, "handler")
		return job.Args.UserID, nil
	})
	m.Use(note("inner"))
	result, err := one(t, m).Run(t.Context(), claimed(welcome{7}))
	if err != nil || string(result) != "7!!!" {
		t.Errorf("got %s, %v", result, err)
	}
	want := []string{"outer welcome", "middle welcome", "inner welcome", "handler", "inner 7", "middle 7!", "outer 7!!"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMiddlewareMayChangeThePayload(t *testing.T) {
	m := task.NewMux()
	m.Use(func(next task.Handler) task.Handler {
		return func(ctx context.Context, job *pawl.Job) ([]byte, error) {
			job.Payload = []byte(`{"UserID":8}`)
			return next(ctx, job)
		}
	})
	var ran, hooked int64
	task.Register(m, func(_ context.Context, job *task.Job[welcome]) error {
		ran = job.Args.UserID
		return errRefused
	}, &task.Options[welcome]{OnError: func(_ context.Context, job *task.Job[welcome], _ error) { hooked = job.Args.UserID }})
	k, job := one(t, m), claimed(welcome{7})
	_, err := k.Run(t.Context(), job)
	k.OnError(t.Context(), job, err)
	if ran != 8 || hooked != 8 {
		t.Errorf("the handler saw %d, the hook %d, want 8", ran, hooked)
	}
}

func TestPanicsPass(t *testing.T) {
	m := task.NewMux()
	m.Use(func(next task.Handler) task.Handler { return next })
	boom := func(context.Context, *task.Job[welcome], error) { panic("hook") }
	task.Register(m, func(context.Context, *task.Job[welcome]) error { panic("handler") },
		&task.Options[welcome]{OnError: boom, OnBury: boom})
	k, job := one(t, m), claimed(welcome{7})
	for want, f := range map[string]func(){
		"handler": func() { k.Run(t.Context(), job) },
		"hook":    func() { k.OnError(t.Context(), job, nil) },
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("got %v, want the panic of the %s", got, want)
				}
			}()
			f()
		}()
	}
}
