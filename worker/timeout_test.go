package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// ending is a handler that waits for the end of its context and returns what
// that is; the cause and the time it took are left in its channels.
type ending struct {
	causes chan error
	after  chan time.Duration
}

func newEnding() *ending {
	return &ending{make(chan error, 100), make(chan time.Duration, 100)}
}

func (e *ending) Kinds() []pawl.Kind {
	return worker.Func(func(ctx context.Context, _ *pawl.Job) error {
		began := time.Now()
		<-ctx.Done()
		e.causes <- context.Cause(ctx)
		e.after <- time.Since(began)
		return ctx.Err()
	}).Kinds()
}

func TestTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
			if at, ok := ctx.Deadline(); !ok || time.Until(at) != 5*time.Second {
				t.Errorf("deadline in %v, %v", time.Until(at), ok)
			}
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			<-child.Done()
			if cause := context.Cause(child); cause != worker.ErrTimeout || !errors.Is(cause, context.DeadlineExceeded) {
				t.Errorf("cause %v", cause)
			}
			if ctx.Err() != context.Canceled || child.Err() != ctx.Err() {
				t.Errorf("errors %v and %v", ctx.Err(), child.Err())
			}
			return child.Err()
		})
		f := start(t, cycling, h, nil)
		id := f.enqueue(&pawl.Request{Timeout: 5 * time.Second})
		rest(5 * time.Second)
		j := f.wantState(id, pawl.Scheduled, pawl.ReasonRetry)
		if len(j.Failures) != 1 || !strings.Contains(j.Failures[0].Error, "timed out after 5s") {
			t.Errorf("failures %v", j.Failures)
		}
		f.stop()
	})
}

func TestTimeoutOfKindAndQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := newEnding()
		k := kinds{{Name: "own", Timeout: time.Minute, Run: e.Kinds()[0].Run}, {Name: "default", Run: e.Kinds()[0].Run}}
		f := start(t, cycling, k, nil)
		f.enqueue(&pawl.Request{Kind: "own"})
		f.enqueue(&pawl.Request{Kind: "default"})
		rest(time.Hour)
		if a, b := <-e.after, <-e.after; a != time.Minute || b != 30*time.Minute {
			t.Errorf("timed out after %v and %v", a, b)
		}
		f.stop()
	})
}

func TestNoTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
			if _, ok := ctx.Deadline(); ok {
				t.Error("there is a deadline")
			}
			time.Sleep(3 * time.Hour)
			return ctx.Err()
		})
		f := start(t, cycling, h, nil)
		id := f.enqueue(&pawl.Request{Timeout: pawl.NoTimeout})
		rest(3*time.Hour + time.Second)
		j := f.wantState(id, pawl.Completed, "")
		if j.Counts.Rescues != 0 || j.Counts.Extends < 1000 {
			t.Errorf("counts %+v", j.Counts)
		}
		f.stop()
	})
}

func TestHandlerThatEndsWellAfterItsTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
			<-ctx.Done()
			return nil
		})
		f := start(t, cycling, h, nil)
		id := f.enqueue(&pawl.Request{Timeout: time.Second})
		rest(time.Minute)
		f.wantState(id, pawl.Completed, "")
		f.stop()
	})
}
