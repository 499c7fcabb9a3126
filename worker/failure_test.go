package worker_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

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
