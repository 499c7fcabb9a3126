package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/worker"
)

const poolJobs = 4000

// TestPool runs thousands of jobs, some of which fail, panic or give up, while
// the server is killed, and accounts for each run of each.
func TestPool(t *testing.T) {
	server := testserver.NewPostgres(t, &testserver.PostgresOptions{Fsync: true, MaxConnections: 50})
	quiet := slog.New(slog.DiscardHandler) // of the outage, and a stack for each panic
	s := open(t, openPool(t, server, 20), &postgres.Options{Logger: quiet})
	q := pawl.New(s, &pawl.Options{Logger: quiet, Backoff: pawl.Constant(10 * time.Millisecond)})
	r := &runs{n: map[pawl.ID]int{}, reached: make(chan struct{})}
	jobs := r.enqueue(t, q)
	p := worker.New(q, worker.Func(r.run), &worker.Options{
		Queues: []worker.Queue{{Name: "default", Concurrency: 20}}, SweepEvery: 200 * time.Millisecond, Logger: quiet,
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(wg.Wait)
	await(t, "a third of the runs", r.reached)
	server.Kill()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	// The Store's own pool may keep connections of before for a while.
	look := pawl.New(beside(t, s, postgres.Options{}), nil)
	awaitEmpty(t, look)
	if err := p.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	r.account(t, look, jobs)
}

// A plan is what a job of the test does, by its number.
type plan struct {
	runs  int // that count
	state pawl.State
}

func planOf(i int) plan {
	switch i % 20 {
	case 3, 4, 5:
		return plan{2, pawl.Completed}
	case 6:
		return plan{1, pawl.Buried}
	case 7:
		return plan{3, pawl.Buried} // all its attempts
	}
	return plan{1, pawl.Completed}
}

// runs counts how often each job was run.
type runs struct {
	total   atomic.Int64
	reached chan struct{} // closed when a third is done

	mu sync.Mutex
	n  map[pawl.ID]int
}

// enqueue returns the IDs in order of number.
func (r *runs) enqueue(t *testing.T, q *pawl.Queue) (ids []pawl.ID) {
	t.Helper()
	reqs := make([]*pawl.Request, poolJobs)
	for i := range reqs {
		reqs[i] = &pawl.Request{Kind: "k", Payload: strconv.AppendInt(nil, int64(i), 10), MaxAttempts: 3}
	}
	receipts, err := q.EnqueueMany(t.Context(), reqs)
	if err != nil {
		t.Fatal(err)
	}
	for _, receipt := range receipts {
		ids = append(ids, receipt.ID)
	}
	return ids
}

func (r *runs) run(_ context.Context, j *pawl.Job) error {
	r.mu.Lock()
	r.n[j.ID]++
	r.mu.Unlock()
	if r.total.Add(1) == poolJobs/3 {
		close(r.reached)
	}
	i, err := strconv.Atoi(string(j.Payload))
	if err != nil {
		return pawl.Permanent(err)
	}
	switch n := i % 20; {
	case n == 3 && j.Attempt == 1, n == 7:
		return errors.New("failed")
	case n == 4 && j.Attempt == 1:
		return pawl.RetryAfter(time.Millisecond, errors.New("failed"))
	case n == 5 && j.Attempt == 1:
		panic("failed")
	case n == 6:
		return pawl.Permanent(errors.New("failed"))
	}
	return nil
}

// account compares what became of each job with its plan. A run more than
// planned is one whose claim was taken back by a rescue.
func (r *runs) account(t *testing.T, q *pawl.Queue, ids []pawl.ID) {
	t.Helper()
	rescued := 0
	for i, id := range ids {
		j, err := q.Get(t.Context(), "default", id)
		if err != nil {
			t.Fatal(err)
		}
		want, n := planOf(i), r.n[id]
		rescued += j.Counts.Rescues
		if j.State != want.state || j.Attempt != want.runs || n < want.runs || n > want.runs+j.Counts.Rescues {
			t.Errorf("job %d is %v after %d attempts, %d runs and %d rescues; want %v after %d",
				i, j.State, j.Attempt, n, j.Counts.Rescues, want.state, want.runs)
		}
	}
	t.Logf("%d runs, %d rescues", r.total.Load(), rescued)
}

func await(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s: not within a minute", what)
	}
}

// awaitEmpty waits until all jobs have ended.
func awaitEmpty(t *testing.T, q *pawl.Queue) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(time.Minute); ; {
		stats, err := q.Stats(t.Context(), "default")
		if err != nil {
			t.Fatal(err)
		}
		if s := stats[0]; s.Scheduled+s.Ready+s.Running == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("after a minute there are left: %+v", stats[0])
		}
	}
}
