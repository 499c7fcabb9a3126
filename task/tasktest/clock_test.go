package tasktest_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/task/tasktest"
	"github.com/pawlq/pawl/worker"
)

// TestClock moves a schedule, a backoff, a lease and an expiry by one clock, on
// the storages that take one.
func TestClock(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, clock *tasktest.Clock) pawl.Storage{
		"memory": func(_ *testing.T, clock *tasktest.Clock) pawl.Storage {
			return memory.New(&memory.Options{Clock: clock.Now})
		},
		"sqlite": func(t *testing.T, clock *tasktest.Clock) pawl.Storage {
			s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "test.db"), &sqlite.Options{Clock: clock.Now})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			clock := tasktest.NewClock(time.Now())
			c := &clocked{T: t, Clock: clock, q: pawl.New(open(t, clock), &pawl.Options{
				Backoff: pawl.Constant(10 * time.Minute), Lease: time.Minute,
			})}
			c.run()
		})
	}
}

type clocked struct {
	*testing.T
	*tasktest.Clock
	q *pawl.Queue
}

func (c *clocked) run() {
	later := task.New(welcome{UserID: 1})
	later.Delay = time.Hour
	enqueue(c.T, c.q, later)
	c.wantRuns(0)
	c.Advance(time.Hour - time.Microsecond)
	c.wantRuns(0)
	c.Advance(time.Microsecond)
	c.wantRuns(1) // and fails
	c.Advance(10*time.Minute - time.Microsecond)
	c.wantRuns(0)
	c.Advance(time.Microsecond)
	c.wantRuns(1)

	expiring := task.New(welcome{UserID: 2})
	expiring.StartBefore = c.Now().Add(2 * time.Minute)
	enqueue(c.T, c.q, expiring)
	claimed, err := c.q.Claim(c.Context(), nil)
	if err != nil {
		c.Fatal(err)
	}
	c.Advance(time.Minute)
	c.wantRuns(1) // the job of the dead worker
	if err := c.q.Ack(c.Context(), claimed, nil); !errors.Is(err, pawl.ErrLost) {
		c.Errorf("the dead worker acked: %v", err)
	}
	c.Advance(10 * time.Minute)
	c.wantRuns(0) // StartBefore has come
}

// wantRuns sweeps, and drains with a handler that fails at first.
func (c *clocked) wantRuns(want int) {
	c.Helper()
	if _, err := c.q.Sweep(c.Context()); err != nil {
		c.Fatal(err)
	}
	tasks := task.NewMux()
	task.Register(tasks, func(_ context.Context, job *task.Job[welcome]) error {
		if job.Attempt == 1 {
			return errFailed
		}
		return nil
	})
	ran, err := worker.Drain(c.Context(), c.q, tasks, nil)
	if err != nil || len(ran) != want {
		c.Fatalf("%d runs, %v, want %d", len(ran), err, want)
	}
}

func TestClockItself(t *testing.T) {
	start := time.Date(2026, 3, 29, 1, 59, 59, 0, time.UTC)
	clock := tasktest.NewClock(start)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() { clock.Advance(time.Second) })
	}
	all.Wait()
	if got := clock.Now(); !got.Equal(start.Add(10 * time.Second)) {
		t.Errorf("got %v", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("the clock went back")
		}
	}()
	clock.Advance(-1)
}

// A Recorder takes the storage's Clock, and then agrees about what is due.
func TestRecorderTakesAClock(t *testing.T) {
	clock := tasktest.NewClock(time.Now().Add(1000 * time.Hour))
	rec := tasktest.Recorder{Clock: clock.Now}
	q := pawl.New(memory.New(&memory.Options{Clock: clock.Now}), &pawl.Options{Middleware: []pawl.EnqueueMiddleware{rec.Middleware}})
	for n, at := range []time.Duration{-time.Hour, time.Hour} {
		r := task.New(welcome{UserID: int64(n)})
		r.RunAt = clock.Now().Add(at)
		enqueue(t, q, r)
		stored, recorded := tasktest.AssertEnqueued(t, q, id(int64(n))), tasktest.AssertRecorded(t, &rec, id(int64(n)))
		if stored.State != recorded.State || !stored.CreatedAt.Equal(recorded.CreatedAt.Truncate(time.Microsecond)) {
			t.Errorf("stored %v at %v, recorded %v at %v", stored.State, stored.CreatedAt, recorded.State, recorded.CreatedAt)
		}
	}
}
