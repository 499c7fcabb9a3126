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
