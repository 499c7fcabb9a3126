package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
)

func wantInvalid(t *testing.T, err error, field string) {
	t.Helper()
	var invalid *pawl.InvalidError
	if !errors.As(err, &invalid) || invalid.Field != field {
		t.Errorf("error %v, want one of %s", err, field)
	}
}

func TestMaxWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{MaxWaiters: 3})
		got := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := q.Claim(t.Context(), nil)
				got <- err
			}()
		}
		synctest.Wait()
		if _, err := q.Claim(t.Context(), nil); !errors.Is(err, pawl.ErrTooManyWaiters) {
			t.Errorf("error %v", err)
		}
		enqueue(t, q, &pawl.Request{})
		if err := <-got; err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := q.Claim(ctx, nil); !errors.Is(err, context.DeadlineExceeded) { // in the place that is free
			t.Errorf("error %v", err)
		}
		for range 2 {
			enqueue(t, q, &pawl.Request{})
			if err := <-got; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestMaxQueues(t *testing.T) {
	q := open(t, &pawl.Options{MaxQueues: 2})
	enqueue(t, q, &pawl.Request{Queue: "a"})
	_, err := q.EnqueueMany(t.Context(), []*pawl.Request{{Kind: "test", Queue: "b"}, {Kind: "test", Queue: "c"}})
	wantInvalid(t, err, "Queue")
	_, err = q.Enqueue(t.Context(), &pawl.Request{Queue: "d"}) // invalid anyhow, and no queue
	wantInvalid(t, err, "Kind")
	enqueue(t, q, &pawl.Request{Queue: "c"})
	_, err = q.WithTx(q.Storage()).Enqueue(t.Context(), &pawl.Request{Kind: "test", Queue: "b"})
	wantInvalid(t, err, "Queue")
	enqueue(t, q, &pawl.Request{Queue: "a"})
	if names, err := q.Queues(t.Context()); fmt.Sprint(names) != "[a c]" || err != nil {
		t.Errorf("queues %v, error %v", names, err)
	}
}

func TestQueuesOfAClaim(t *testing.T) {
	q := open(t, nil)
	spec := pawl.ClaimSpec{Max: 1, Lease: time.Minute}
	for i := range pawl.MaxQueues + 1 {
		spec.Queues = append(spec.Queues, pawl.QueueAsk{Queue: fmt.Sprint("q", i), Max: 1})
	}
	_, err := q.ClaimBatch(t.Context(), spec)
	wantInvalid(t, err, "Queues")
	spec.Queues = spec.Queues[1:]
	if _, err := q.ClaimBatch(t.Context(), spec); err != nil {
		t.Error(err)
	}
}

// Extends are bounded in number, total time and pace, each claim anew.
func TestExtendLimits(t *testing.T) {
	cases := map[string]struct {
		limits pawl.ExtendLimits
		every  time.Duration
		want   int // of ten
	}{
		"none":  {pawl.ExtendLimits{}, 0, 10},
		"count": {pawl.ExtendLimits{Count: 3}, time.Second, 3},
		"total": {pawl.ExtendLimits{Total: 5 * time.Second}, time.Second, 5},
		"pace":  {pawl.ExtendLimits{Every: 2 * time.Second}, time.Second, 5},
		"all":   {pawl.ExtendLimits{Count: 3, Total: 3 * time.Second, Every: 2 * time.Second}, time.Second, 2},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := open(t, &pawl.Options{ExtendLimits: c.limits})
				enqueue(t, q, &pawl.Request{})
				for range 2 {
					j, err := q.Claim(t.Context(), nil)
					if err != nil {
						t.Fatal(err)
					}
					if n := extends(t, q, j, c.every); n != c.want {
						t.Errorf("%d extends, want %d", n, c.want)
					}
					if err := q.Release(t.Context(), j, nil); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

// extends tries to extend ten times and returns how often it could.
func extends(t *testing.T, q *pawl.Queue, j *pawl.Job, every time.Duration) (n int) {
	t.Helper()
	for range 10 {
		time.Sleep(every) // of the bubble's time
		err := q.Extend(t.Context(), j, nil)
		if err == nil {
			n++
			continue
		}
		wantInvalid(t, err, "Extend")
	}
	return n
}

// A claim that another process made is bounded from its first Extend on.
func TestExtendLimitsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{ExtendLimits: pawl.ExtendLimits{Total: 5 * time.Second}})
		enqueue(t, q, &pawl.Request{})
		claimed, err := pawl.New(q.Storage(), nil).Claim(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		if n := extends(t, q, get(t, q, claimed.ID), time.Second); n != 6 {
			t.Errorf("%d extends, want 6", n)
		}
	})
}
