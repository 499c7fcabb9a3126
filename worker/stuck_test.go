package worker_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// A handler that ignores its timeout is failed, its slot replaced, and what it
// returns later refused.
func TestStuckHandler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		var runs atomic.Int64
		h := worker.Func(func(_ context.Context, j *pawl.Job) error {
			if string(j.Payload) == "stuck" && runs.Add(1) == 1 {
				<-release
			}
			return nil
		})
		f := start(t, cycling, h, &worker.Options{Concurrency: 1})
		id := f.enqueue(&pawl.Request{Payload: []byte("stuck"), Timeout: time.Second})
		rest(3 * time.Second)
		j := f.wantState(id, pawl.Scheduled, pawl.ReasonRetry)
		if len(j.Failures) != 1 || !strings.Contains(j.Failures[0].Error, "timed out after 1s and ignored it") {
			t.Errorf("failures %v", j.Failures)
		}
		if s := f.p.Stats(); s.Stuck != 1 || s.Running != 0 || s.Slots != 1 {
			t.Errorf("stats %+v", s)
		}
		if h := f.p.Health(); !h.Live || !h.Ready {
			t.Errorf("health %+v", h)
		}
		other := f.enqueue(&pawl.Request{})
		rest(time.Second)
		f.wantState(other, pawl.Completed, "") // by the replacement
		close(release)
		rest(time.Second)
		f.wantState(id, pawl.Scheduled, pawl.ReasonRetry)
		if s := f.p.Stats(); s.Stuck != 0 || s.Slots != 1 || s.Completed != 1 || s.Failed != 1 {
			t.Errorf("stats %+v", s)
		}
		rest(2 * time.Hour)
		f.wantState(id, pawl.Completed, "")
		f.stop()
	})
}

func TestStuckWithoutReplacement(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		h := worker.Func(func(_ context.Context, j *pawl.Job) error {
			if string(j.Payload) == "stuck" {
				<-release
			}
			return nil
		})
		f := start(t, cycling, h, &worker.Options{Concurrency: 1, MaxStuck: worker.NoReplacements})
		f.enqueue(&pawl.Request{Payload: []byte("stuck"), Timeout: time.Second})
		rest(3 * time.Second)
		if s := f.p.Stats(); s.Stuck != 1 || s.Slots != 0 {
			t.Errorf("stats %+v", s)
		}
		if h := f.p.Health(); h.Live || h.Ready || !strings.Contains(h.Reason, "all slots of default are stuck") {
			t.Errorf("health %+v", h)
		}
		other := f.enqueue(&pawl.Request{})
		rest(time.Minute)
		f.wantState(other, pawl.Ready, "")
		close(release)
		rest(2 * time.Second)
		f.wantState(other, pawl.Completed, "") // by the slot that came back
		if h := f.p.Health(); !h.Live || !h.Ready || h.Reason != "" {
			t.Errorf("health %+v", h)
		}
		f.stop()
	})
}

func TestReplacementsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		h := worker.Func(func(context.Context, *pawl.Job) error { <-release; return nil })
		f := start(t, cycling, h, &worker.Options{Concurrency: 2, MaxStuck: 3})
		for range 20 {
			f.enqueue(&pawl.Request{Timeout: time.Second, MaxAttempts: 1})
		}
		rest(time.Hour)
		if s := f.p.Stats(); s.Stuck != 5 || s.Started != 5 || s.Slots != 0 || s.Buried != 5 {
			t.Errorf("stats %+v", s)
		}
		close(release)
		rest(time.Minute)
		if s := f.p.Stats(); s.Stuck != 0 || s.Slots != 2 || s.Completed != 15 {
			t.Errorf("stats %+v", s)
		}
		f.stop()
	})
}

// A handler that ignores that its claim was lost is given up without settling.
func TestStuckAfterLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		f := start(t, watched, worker.Func(func(context.Context, *pawl.Job) error { <-release; return nil }), nil)
		id := f.enqueue(&pawl.Request{})
		synctest.Wait()
		if err := f.q.Delete(context.Background(), "", id); err != nil {
			t.Fatal(err)
		}
		rest(2 * time.Second)
		if s := f.p.Stats(); s.Stuck != 1 || s.Lost != 1 || s.Slots != 10 {
			t.Errorf("stats %+v", s)
		}
		close(release)
		synctest.Wait()
		f.stop()
		if s := f.p.Stats(); s.Stuck != 0 || s.Lost != 1 || s.Completed != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}
