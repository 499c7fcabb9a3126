package tasktest_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/task/tasktest"
)

type welcome struct {
	UserID int64
	Extra  any `json:",omitempty"`
}

func (welcome) Kind() string { return "welcome" }

type resize struct{ Width int }

func (resize) Kind() string { return "resize" }

func (resize) Defaults() pawl.Request {
	return pawl.Request{Queue: "pictures", MaxAttempts: 2, Timeout: time.Second, Lease: time.Minute}
}

var errFailed = errors.New("failed")

func TestRun(t *testing.T) {
	err := tasktest.Run(t.Context(), func(_ context.Context, job *task.Job[resize]) error {
		if job.Args.Width != 7 || job.Attempt != 1 || job.Queue != "pictures" || job.State != pawl.Running ||
			job.MaxAttempts != 2 || job.ID == (pawl.ID{}) || job.Fence == 0 || job.MaxRescues != 5 ||
			job.LeaseUntil.Sub(job.ClaimedAt) != time.Minute {
			t.Errorf("got %+v", job.Job)
		}
		return errFailed
	}, resize{7})
	if err != errFailed {
		t.Errorf("got %v, want what the handler returned", err)
	}
}

func TestRunShowsEncodingProblems(t *testing.T) {
	never := func(context.Context, *task.Job[welcome]) error {
		t.Error("the handler ran")
		return nil
	}
	var e *task.EncodeError
	if err := tasktest.Run(t.Context(), never, welcome{Extra: func() {}}); !errors.As(err, &e) {
		t.Errorf("got %v, want an EncodeError", err)
	}
}

func TestRunRecoversPanics(t *testing.T) {
	err := tasktest.Run(t.Context(), func(context.Context, *task.Job[welcome]) error { panic(errFailed) }, welcome{})
	var p *tasktest.PanicError
	if !errors.As(err, &p) || !errors.Is(err, errFailed) || !strings.Contains(string(p.Stack), "TestRunRecoversPanics") {
		t.Errorf("got %v", err)
	}
	if !strings.HasPrefix(err.Error(), "panic: failed\n") {
		t.Errorf("got %q", err)
	}
	err = tasktest.Run(t.Context(), func(context.Context, *task.Job[welcome]) error { panic("text") }, welcome{})
	if !errors.As(err, &p) || p.Value != "text" || errors.Unwrap(p) != nil {
		t.Errorf("got %v", err)
	}
}

func TestRunLetsGoexitPass(t *testing.T) {
	returned, done := false, make(chan struct{})
	go func() {
		defer close(done)
		tasktest.Run(t.Context(), func(context.Context, *task.Job[welcome]) error {
			runtime.Goexit()
			return nil
		}, welcome{})
		returned = true
	}()
	<-done
	if returned {
		t.Error("Run swallowed what t.FailNow does")
	}
}

func TestRunResult(t *testing.T) {
	double := func(_ context.Context, job *task.Job[resize]) (int, error) { return 2 * job.Args.Width, nil }
	if got, err := tasktest.RunResult(t.Context(), double, resize{4}); got != 8 || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	fail := func(context.Context, *task.Job[resize]) (int, error) { return 9, errFailed }
	if got, err := tasktest.RunResult(t.Context(), fail, resize{4}); got != 0 || err != errFailed {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestJob(t *testing.T) {
	at := time.Now().Add(time.Hour)
	r := &pawl.Request{Kind: "k", Payload: []byte("x"), Meta: map[string]string{"a": "b"}, RunAt: at, Delay: 0}
	job, err := tasktest.Job(r)
	if err != nil || !job.RunAt.Round(0).Equal(at.Round(0)) && job.RunAt.Sub(at) > time.Microsecond {
		t.Errorf("got %+v, %v", job, err)
	}
	job.Payload[0], job.Meta["a"] = 'y', "c"
	if string(r.Payload) != "x" || r.Meta["a"] != "b" {
		t.Error("the job shares memory with the request")
	}
	if _, err := tasktest.Job(&pawl.Request{}); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("a request without a kind: got %v", err)
	}
	if _, err := tasktest.Job(nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("no request: got %v", err)
	}
}

func TestRunJobCallsHooks(t *testing.T) {
	var got []string
	var result error
	hook := func(name string) func(context.Context, *task.Job[resize], error) {
		return func(_ context.Context, _ *task.Job[resize], err error) {
			if err == result {
				got = append(got, name)
			}
		}
	}
	m := task.NewMux()
	task.Register(m, func(context.Context, *task.Job[resize]) error { return result },
		&task.Options[resize]{OnError: hook("error"), OnBury: hook("bury")})
	run := func(attempt int, err error) []string {
		job, jobErr := tasktest.Job(task.New(resize{}))
		if jobErr != nil {
			t.Fatal(jobErr)
		}
		job.Attempt, result, got = attempt, err, nil
		if _, err := tasktest.RunJob(t.Context(), m, job); err != result {
			t.Errorf("got %v, want %v", err, result)
		}
		return got
	}
	for name, c := range map[string]struct{ got, want []string }{
		"success":       {run(1, nil), nil},
		"snooze":        {run(1, pawl.Snooze(time.Second)), nil},
		"first failure": {run(1, errFailed), []string{"error"}},
		"last failure":  {run(2, errFailed), []string{"error", "bury"}},
		"permanent":     {run(1, pawl.Permanent(errFailed)), []string{"error", "bury"}},
		"another delay": {run(1, pawl.RetryAfter(time.Second, errFailed)), []string{"error"}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestRunJobTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := task.NewMux()
		left := func(ctx context.Context) time.Duration {
			if d, ok := ctx.Deadline(); ok {
				return time.Until(d)
			}
			return 0
		}
		var got time.Duration
		task.Register(m, func(ctx context.Context, _ *task.Job[welcome]) error {
			got = left(ctx)
			return nil
		}, &task.Options[welcome]{Timeout: time.Minute})
		m.Handle(pawl.Kind{Run: func(ctx context.Context, _ *pawl.Job) ([]byte, error) {
			got = left(ctx)
			return nil, nil
		}})
		for _, c := range []struct {
			r    pawl.Request
			want time.Duration
		}{
			{pawl.Request{Kind: "welcome", Payload: []byte("{}")}, time.Minute},
			{pawl.Request{Kind: "welcome", Payload: []byte("{}"), Timeout: time.Second}, time.Second},
			{pawl.Request{Kind: "welcome", Payload: []byte("{}"), Timeout: pawl.NoTimeout}, 0},
			{pawl.Request{Kind: "other"}, 30 * time.Minute},
		} {
			job, err := tasktest.Job(&c.r)
			if err != nil {
				t.Fatal(err)
			}
			got = -1
			if _, err := tasktest.RunJob(t.Context(), m, job); err != nil || got != c.want {
				t.Errorf("%s with timeout %v: got %v, %v, want %v", c.r.Kind, c.r.Timeout, got, err, c.want)
			}
		}
	})
}

func TestRunJobOfUnknownKind(t *testing.T) {
	_, err := tasktest.RunJob(t.Context(), task.NewMux(), &pawl.Job{Kind: "lost"})
	if err == nil || err.Error() != `tasktest: kind "lost" is not registered` {
		t.Errorf("got %v", err)
	}
}
