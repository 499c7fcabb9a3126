package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/worker"
)

// An isPanics is an error that can't be compared.
type isPanics struct{}

func (isPanics) Error() string { return "e" }
func (isPanics) Is(error) bool { panic("in Is") }

// An error whose methods panic fails its job alone, also when the context had
// ended and the pool asks whether that is what the error is of.
func TestErrorsMayPanicOnceTheContextEnded(t *testing.T) {
	var missing *url.Error
	for name, bad := range map[string]error{"nil pointer": missing, "Is": isPanics{}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := start(t, cycling, worker.Func(func(ctx context.Context, _ *pawl.Job) error {
					<-ctx.Done()
					return bad
				}), nil)
				id := f.enqueue(&pawl.Request{Timeout: time.Second})
				rest(2 * time.Second)
				j := f.wantState(id, pawl.Scheduled, pawl.ReasonRetry)
				if len(j.Failures) != 1 || !strings.Contains(j.Failures[0].Error, "panic while the failure was judged") {
					t.Errorf("failures %+v", j.Failures)
				}
				f.stop()
			})
		})
	}
}

// A panickingLog is a slog.Handler that always panics.
type panickingLog struct{ slog.Handler }

func (panickingLog) Enabled(context.Context, slog.Level) bool    { return true }
func (l panickingLog) Handle(context.Context, slog.Record) error { panic("in the log") }
func (l panickingLog) WithAttrs([]slog.Attr) slog.Handler        { return l }
func (l panickingLog) WithGroup(string) slog.Handler             { return l }

// A logger that panics disturbs neither the jobs nor the stop.
func TestLoggerMayPanic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := pawl.New(memory.New(nil), &pawl.Options{Logger: slog.New(panickingLog{}), Backoff: pawl.Constant(time.Hour)})
		p := worker.New(q, returning(errors.New("e")), nil)
		result := make(chan error, 1)
		go func() { result <- p.Run(t.Context()) }()
		if _, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "k"}); err != nil {
			t.Fatal(err)
		}
		rest(time.Second)
		synctest.Wait()
		if s := p.Stats(); s.Failed != 1 {
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

// Hooks that block hold up a stop no longer than handlers may.
func TestHooksMayBlock(t *testing.T) {
	for name, heeds := range map[string]bool{"for ever": false, "until the end of ctx": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				release := make(chan struct{})
				h := kinds{{
					Name: "k",
					Run:  func(context.Context, *pawl.Job) ([]byte, error) { return nil, errors.New("e") },
					OnError: func(ctx context.Context, _ *pawl.Job, _ error) {
						if <-ctx.Done(); !heeds {
							<-release
						}
					},
				}}
				f := start(t, cycling, h, &worker.Options{StopTimeout: 5 * time.Second})
				f.enqueue(&pawl.Request{})
				f.enqueue(&pawl.Request{})
				rest(time.Second)
				began := time.Now()
				if err := f.p.Stop(context.Background()); err != nil {
					t.Error(err)
				}
				err := <-f.result
				var left *worker.StopError
				switch {
				case heeds && err != nil:
					t.Errorf("Run: %v", err)
				case !heeds && (!errors.As(err, &left) || left.Hooks != 2 || !strings.HasSuffix(left.Error(), "2 calls of hooks left")):
					t.Errorf("Run: %v, want 2 hooks left", err)
				}
				if d := time.Since(began); d > 6*time.Second {
					t.Errorf("stopped after %v", d)
				}
				close(release)
			})
		})
	}
}

// A hook may stop its pool.
func TestHookMayStop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var f *fixture
		h := kinds{{
			Name: "k",
			Run:  func(context.Context, *pawl.Job) ([]byte, error) { return nil, errors.New("e") },
			OnError: func(ctx context.Context, _ *pawl.Job, _ error) {
				if err := f.p.Stop(ctx); err != nil || ctx.Err() != nil {
					t.Errorf("Stop: %v, context: %v", err, ctx.Err())
				}
			},
		}}
		f = start(t, cycling, h, nil)
		f.enqueue(&pawl.Request{})
		began := time.Now()
		if err := <-f.result; err != nil {
			t.Errorf("Run: %v", err)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("stopped after %v", d)
		}
	})
}

// Jobs kept for hooks that can't keep up are bounded by their payloads.
func TestHooksHoldOffClaimsByBytes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		h := kinds{{
			Name:    "k",
			Run:     func(context.Context, *pawl.Job) ([]byte, error) { return nil, errors.New("e") },
			OnError: func(context.Context, *pawl.Job, error) { <-release },
		}}
		f := start(t, cycling, h, &worker.Options{Concurrency: 1, Prefetch: 1})
		payload := make([]byte, 1<<20)
		const jobs = 100
		for range jobs {
			f.enqueue(&pawl.Request{Payload: payload})
		}
		rest(time.Second)
		if n := f.p.Stats().Failed; n < 60 || n > 75 {
			t.Errorf("%d jobs of 1 MiB failed while hooks wait", n)
		}
		close(release)
		rest(time.Second)
		if n := f.p.Stats().Failed; n != jobs {
			t.Errorf("%d jobs failed once hooks went on", n)
		}
		f.stop()
	})
}
