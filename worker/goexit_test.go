package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/worker"
)

// Errors and backoffs that end their goroutine.
type unwrapExits struct{}

func (unwrapExits) Error() string { return "e" }
func (unwrapExits) Unwrap() error { runtime.Goexit(); return nil }

type isExits struct{}

func (isExits) Error() string { return "e" }
func (isExits) Is(error) bool { runtime.Goexit(); return false }

type textExits struct{}

func (textExits) Error() string { runtime.Goexit(); return "" }

type backoffExits struct{}

func (backoffExits) Delay(int, error) time.Duration { runtime.Goexit(); return 0 }

// The user's code may call runtime.Goexit wherever it is called: the job fails,
// and its slot goes on.
func TestGoexit(t *testing.T) {
	fail := errors.New("e")
	exits := func(context.Context, *pawl.Job, error) { runtime.Goexit() }
	leaves := func(worker.RunFunc) worker.RunFunc {
		return func(context.Context, *pawl.Job) ([]byte, error) { runtime.Goexit(); return nil, nil }
	}
	judged := "runtime.Goexit called while the failure was judged"
	for _, c := range []struct {
		name string
		kind pawl.Kind
		err  error
		mw   []worker.Middleware
		text string
	}{
		{name: "Backoff", kind: pawl.Kind{Backoff: backoffExits{}}, err: fail, text: judged},
		{name: "Unwrap", err: unwrapExits{}, text: judged},
		{name: "Is", err: isExits{}, text: "e"},
		{name: "Error", err: textExits{}, text: judged},
		{name: "OnError", kind: pawl.Kind{OnError: exits}, err: fail, text: "e"},
		{name: "OnBury", kind: pawl.Kind{OnBury: exits}, err: pawl.Permanent(fail), text: "e"},
		{name: "middleware", mw: []worker.Middleware{leaves}, text: "runtime.Goexit called by the handler"},
		{name: "middleware and Backoff", kind: pawl.Kind{Backoff: backoffExits{}}, mw: []worker.Middleware{leaves}, text: judged},
	} {
		for _, late := range []bool{false, true} {
			bubble(t, func(t *testing.T) {
				c.kind.Run = func(ctx context.Context, _ *pawl.Job) ([]byte, error) {
					if late {
						<-ctx.Done()
					}
					return nil, c.err
				}
				f := start(t, cycling, kinds{c.kind}, &worker.Options{Concurrency: 1, Middleware: c.mw})
				ids := []pawl.ID{f.enqueue(&pawl.Request{Timeout: time.Second, MaxAttempts: 1}), f.enqueue(&pawl.Request{Timeout: time.Second, MaxAttempts: 1})}
				rest(3 * time.Second)
				for _, id := range ids {
					if j := f.get(id); len(j.Failures) != 1 || !strings.Contains(j.Failures[0].Error, c.text) && !late {
						t.Errorf("%s, late %v: job is %v, failures %+v", c.name, late, j.State, j.Failures)
					}
				}
				f.stop()
				if s := f.p.Stats(); s.Failed != 2 || s.Running != 0 {
					t.Errorf("%s, late %v: stats %+v", c.name, late, s)
				}
			})
		}
	}
}

// The deadline of a handler that never heeds it is judged elsewhere.
func TestGoexitInBackoffOfStuckHandler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		k := pawl.Kind{Backoff: backoffExits{}, Run: func(context.Context, *pawl.Job) ([]byte, error) { <-release; return nil, nil }}
		f := start(t, cycling, kinds{k}, &worker.Options{Concurrency: 1})
		ids := []pawl.ID{f.enqueue(&pawl.Request{Timeout: time.Second, MaxAttempts: 1}), f.enqueue(&pawl.Request{Timeout: time.Second, MaxAttempts: 1})}
		rest(10 * time.Second)
		for _, id := range ids {
			if j := f.get(id); len(j.Failures) != 1 {
				t.Errorf("job is %v, failures %+v", j.State, j.Failures)
			}
		}
		close(release)
		rest(time.Second)
		f.stop()
	})
}

// An exitingLog is a slog.Handler that always ends its goroutine.
type exitingLog struct{ panickingLog }

func (exitingLog) Handle(context.Context, slog.Record) error { runtime.Goexit(); return nil }
func (l exitingLog) WithAttrs([]slog.Attr) slog.Handler      { return l }
func (l exitingLog) WithGroup(string) slog.Handler           { return l }

func TestGoexitInLogger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := pawl.New(memory.New(nil), &pawl.Options{Logger: slog.New(exitingLog{}), Backoff: pawl.Constant(time.Hour)})
		hook := func(context.Context, *pawl.Job, error) { panic("in the hook, which is logged") }
		run := func(context.Context, *pawl.Job) ([]byte, error) { return nil, errors.New("e") }
		p := worker.New(q, kinds{{Run: run, OnError: hook}}, &worker.Options{Concurrency: 1})
		result := make(chan error, 1)
		go func() { result <- p.Run(t.Context()) }()
		for range 3 {
			if _, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "k"}); err != nil {
				t.Fatal(err)
			}
		}
		rest(time.Second)
		if s := p.Stats(); s.Failed != 3 {
			t.Errorf("stats %+v", s)
		}
		if err := p.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}
