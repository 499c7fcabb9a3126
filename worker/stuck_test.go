package worker_test

import (
	"context"
	"errors"
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

// A replacement that is free again goes to the next handler that holds a slot,
// and so does one that a larger pool allows.
func TestReplacementsAreUsedAgain(t *testing.T) {
	for _, grow := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			first, second := make(chan struct{}), make(chan struct{})
			h := worker.Func(func(_ context.Context, j *pawl.Job) error {
				switch string(j.Payload) {
				case "first":
					<-first
				case "second":
					<-second
				}
				return nil
			})
			f := start(t, cycling, h, &worker.Options{Concurrency: 1})
			for _, payload := range []string{"first", "second"} {
				f.enqueue(&pawl.Request{Payload: []byte(payload), Timeout: time.Second, MaxAttempts: 1})
				rest(3 * time.Second)
			}
			if s := f.p.Stats(); s.Stuck != 2 || s.Slots != 0 {
				t.Errorf("stats %+v", s)
			}
			want := 1
			if grow {
				want = 2
				f.set(pawl.DefaultQueue, 2)
			} else {
				close(first)
			}
			other := f.enqueue(&pawl.Request{})
			rest(time.Second)
			f.wantState(other, pawl.Completed, "")
			if s, h := f.p.Stats(), f.p.Health(); s.Slots != want || !h.Live || !h.Ready {
				t.Errorf("stats %+v, health %+v", s, h)
			}
			if grow {
				close(first)
			}
			close(second)
			rest(time.Second)
			if s := f.p.Stats(); s.Slots != want || s.Stuck != 0 {
				t.Errorf("stats %+v", s)
			}
			f.stop()
		})
	}
}

// A Backoff that waits for what a stuck handler holds keeps no deadline of others.
func TestBackoffThatWaitsForAStuckHandler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		e := newEnding()
		h := kinds{
			{Name: "stuck", Backoff: pawl.BackoffFunc(func(int, error) time.Duration { <-release; return time.Hour }),
				Run: func(context.Context, *pawl.Job) ([]byte, error) { <-release; return nil, nil }},
			{Name: "good", Run: e.Kinds()[0].Run},
		}
		f := start(t, cycling, h, nil)
		stuck := f.enqueue(&pawl.Request{Kind: "stuck", Timeout: time.Second})
		rest(5 * time.Second)
		f.enqueue(&pawl.Request{Kind: "good", Timeout: 10 * time.Second})
		rest(time.Hour)
		if cause, after := <-e.causes, <-e.after; cause != worker.ErrTimeout || after != 10*time.Second {
			t.Errorf("ended by %v after %v", cause, after)
		}
		f.wantState(stuck, pawl.Running, "") // extended meanwhile
		close(release)
		rest(time.Second)
		if j := f.wantState(stuck, pawl.Scheduled, pawl.ReasonRetry); j.Counts.Rescues != 0 {
			t.Errorf("counts %+v", j.Counts)
		}
		f.stop()
	})
}

// A pool that stops does not wait for a handler that it has given up, but until
// the failure is settled.
func TestStopWithAStuckHandler(t *testing.T) {
	stuck := func(release chan struct{}) worker.Func {
		return func(context.Context, *pawl.Job) error { <-release; return nil }
	}
	for _, replacements := range []int{0, worker.NoReplacements} {
		bubble(t, func(t *testing.T) {
			release := make(chan struct{})
			f := start(t, watched, stuck(release), &worker.Options{MaxStuck: replacements})
			id := f.enqueue(&pawl.Request{})
			synctest.Wait()
			began := time.Now()
			go f.p.Stop(context.Background())
			synctest.Wait()
			if err := f.q.Delete(context.Background(), "", id); err != nil {
				t.Fatal(err)
			}
			var left *worker.StopError
			if err := <-f.result; !errors.As(err, &left) || len(left.Running) != 1 || len(left.Unsettled) != 0 {
				t.Errorf("Run: %v", err)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("MaxStuck %d: stopped after %v", replacements, took)
			}
			close(release)
		})
	}
	for range 50 { // what ends first is left to chance
		bubble(t, func(t *testing.T) {
			release := make(chan struct{})
			f := start(t, cycling, stuck(release), nil)
			id := f.enqueue(&pawl.Request{Timeout: time.Second, MaxAttempts: 1})
			rest(time.Second / 2)
			if err := f.p.Stop(context.Background()); err != nil {
				t.Error(err)
			}
			var left *worker.StopError
			if err := <-f.result; !errors.As(err, &left) || len(left.Running) != 1 || len(left.Unsettled) != 0 {
				t.Errorf("Run: %v", err)
			}
			f.wantState(id, pawl.Buried, pawl.ReasonAttempts)
			close(release)
		})
	}
}

// A claim is left once: by its handler, also if that was given up and its failure
// could not be settled.
func TestLeftoverOfAStuckHandler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		f := prepare(t, cycling)
		f.storage.fail(false, "settle")
		f.start(worker.Func(func(context.Context, *pawl.Job) error { <-release; return nil }), &worker.Options{SettleNow: true})
		f.enqueue(&pawl.Request{Timeout: time.Second})
		rest(time.Minute)
		if err := f.p.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		var left *worker.StopError
		if err := <-f.result; !errors.As(err, &left) || len(left.Running) != 1 || len(left.Unsettled) != 0 {
			t.Errorf("Run: %v", err)
		}
		close(release)
	})
}
