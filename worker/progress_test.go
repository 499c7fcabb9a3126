package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/worker"
)

func ExampleProgress() {
	q := pawl.New(memory.New(nil), nil)
	h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
		for i := range 4 {
			err := worker.Progress(ctx, &pawl.Progress{Percent: float64(25 * i), Stage: "resizing"})
			if errors.Is(err, pawl.ErrLost) {
				return err // someone else has the job
			}
		}
		return nil
	})
	ctx := context.Background()
	receipt, err := q.Enqueue(ctx, &pawl.Request{Kind: "resize"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := worker.Drain(ctx, q, h, &worker.DrainOptions{Queues: []string{pawl.DefaultQueue}}); err != nil {
		fmt.Println(err)
		return
	}
	job, err := q.Get(ctx, receipt.Queue, receipt.ID)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(job.Progress.Percent, job.Progress.Stage)
	// Output: 75 resizing
}

// Progress is stored, and stays when heartbeats follow; the lease begins anew.
func TestProgress(t *testing.T) {
	bubble(t, func(t *testing.T) {
		want := &pawl.Progress{Percent: 40, Stage: "upload", Message: "m", Counters: map[string]int64{"rows": 7}}
		h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
			time.Sleep(5 * time.Second)
			child, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			if err := worker.Progress(child, want); err != nil {
				t.Error(err)
			}
			time.Sleep(55 * time.Second)
			return ctx.Err()
		})
		f := start(t, cycling, h, nil)
		id := f.enqueue(&pawl.Request{})
		rest(6 * time.Second)
		j := f.wantState(id, pawl.Running, "")
		if left := time.Until(j.LeaseUntil); left != 29*time.Second {
			t.Errorf("the lease lasts %v more", left)
		}
		if j.Counts.Extends != 1 {
			t.Errorf("%d extends", j.Counts.Extends)
		}
		rest(time.Minute)
		j = f.wantState(id, pawl.Completed, "")
		got := *j.Progress
		if age := j.FinishedAt.Sub(got.At); age != 55*time.Second {
			t.Errorf("progress is %v old", age)
		}
		got.At = time.Time{}
		if diff := cmp.Diff(want, &got); diff != "" {
			t.Errorf("progress (-want +got):\n%s", diff)
		}
		if n := j.Counts.Extends; n != 6 { // that one, and a heartbeat each 10 s from then on
			t.Errorf("%d extends", n)
		}
		f.stop()
	})
}

// The pool counts on the lease as Progress has extended it: the handler is told
// no sooner.
func TestProgressMovesTheLocalDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, bare)
		var ended time.Duration
		h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
			began := time.Now()
			time.Sleep(20 * time.Second) // no heartbeat came through by now
			f.storage.heal()
			if err := worker.Progress(ctx, nil); err != nil {
				t.Error(err)
			}
			f.storage.fail(false, "extend")
			<-ctx.Done()
			ended = time.Since(began)
			return ctx.Err()
		})
		f.storage.fail(false, "extend")
		f.enqueue(&pawl.Request{MaxRescues: pawl.NoRescues})
		f.start(h, nil)
		rest(2 * time.Minute)
		if ended < 45*time.Second || ended >= 50*time.Second {
			t.Errorf("told after %v, the lease ended after 50 s", ended)
		}
		f.stop()
	})
}

// A handler learns by Progress that its claim was lost, and its context ends.
func TestProgressOfALostClaim(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, bare)
		f.start(worker.Func(func(ctx context.Context, j *pawl.Job) error {
			if err := f.q.Cancel(ctx, j.Queue, j.ID); err != nil {
				t.Error(err)
			}
			if err := worker.Progress(ctx, &pawl.Progress{Percent: 1}); !errors.Is(err, pawl.ErrLost) {
				t.Errorf("Progress: %v", err)
			}
			if cause := context.Cause(ctx); !errors.Is(cause, pawl.ErrLost) {
				t.Errorf("context ended for %v", cause)
			}
			if err := worker.Progress(ctx, nil); err != context.Cause(ctx) {
				t.Errorf("Progress: %v", err)
			}
			return nil
		}), nil)
		id := f.enqueue(&pawl.Request{})
		rest(2 * time.Second)
		if j := f.wantState(id, pawl.Canceled, pawl.ReasonCancel); j.Progress != nil {
			t.Errorf("progress %+v", j.Progress)
		}
		f.stop()
		if s := f.p.Stats(); s.Lost != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

// An error of Progress ends nothing.
func TestProgressFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		if err := worker.Progress(t.Context(), nil); err == nil {
			t.Error("Progress without a handler returned nil")
		}
		f := prepare(t, bare)
		f.start(worker.Func(func(ctx context.Context, j *pawl.Job) error {
			if err := worker.Progress(ctx, &pawl.Progress{Percent: 101}); !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("beyond the limits: %v", err)
			}
			f.storage.fail(false, "extend")
			if err := worker.Progress(ctx, nil); !errors.Is(err, errStorage) {
				t.Errorf("in an outage: %v", err)
			}
			f.storage.heal()
			if err := worker.Progress(ctx, nil); err != nil {
				t.Errorf("after it: %v", err)
			}
			return ctx.Err()
		}), nil)
		id := f.enqueue(&pawl.Request{})
		rest(2 * time.Second)
		f.wantState(id, pawl.Completed, "")
		f.stop()
	})
}
