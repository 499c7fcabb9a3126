package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

func TestWakeUpsAndExactSleep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		started := make(chan time.Time, 1)
		h := worker.Func(func(context.Context, *pawl.Job) error { started <- time.Now(); return nil })
		f := start(t, cycling, h, &worker.Options{Poll: time.Hour})
		rest(time.Minute)
		began := time.Now()
		f.enqueue(&pawl.Request{})
		if d := (<-started).Sub(began); d > time.Millisecond {
			t.Errorf("started after %v", d)
		}
		rest(time.Minute)
		for _, delay := range []time.Duration{1700 * time.Millisecond, 5 * time.Hour, time.Second} {
			began = time.Now()
			f.enqueue(&pawl.Request{Delay: delay})
			if d := (<-started).Sub(began); d < delay-time.Microsecond || d > delay+3*time.Millisecond {
				t.Errorf("started after %v, want %v", d, delay)
			}
		}
		f.stop()
	})
}

// Without events jobs are found by polling, scheduled ones known still on time.
func TestPolling(t *testing.T) {
	bubble(t, func(t *testing.T) {
		started := make(chan time.Time, 1)
		h := worker.Func(func(context.Context, *pawl.Job) error { started <- time.Now(); return nil })
		f := start(t, bare, h, nil)
		rest(time.Minute)
		for range 20 {
			began := time.Now()
			f.enqueue(&pawl.Request{})
			if d := (<-started).Sub(began); d > time.Second+3*time.Millisecond {
				t.Errorf("started after %v", d)
			}
			rest(10 * time.Second)
		}
		began := time.Now()
		f.enqueue(&pawl.Request{Delay: 90 * time.Second})
		// The storage's clock ticks in microseconds.
		if d := (<-started).Sub(began); d < 90*time.Second-time.Microsecond || d > 90*time.Second+3*time.Millisecond {
			t.Errorf("started after %v", d)
		}
		f.stop()
	})
}

func TestIdlePoolHardlyCalls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var calls atomic.Int64
		f := start(t, cycling, returning(nil), &worker.Options{
			Queues: []worker.Queue{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}},
		})
		f.storage.disturb(func(_ context.Context, op string, call func() error) error {
			calls.Add(1)
			return call()
		})
		rest(time.Hour)
		f.stop()
		if n := calls.Load(); n > 3600*16/10+3600/3 {
			t.Errorf("%d calls in an hour", n)
		}
	})
}
