package memory

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/pawlq/pawl"
)

var ctx = context.Background()

// A clock is moved by hand.
type clock struct{ us atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.us.Store(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
	return c
}

func (c *clock) now() time.Time          { return time.UnixMicro(c.us.Load()) }
func (c *clock) advance(d time.Duration) { c.us.Add(d.Microseconds()) }

func newStore(t testing.TB) (*Store, *clock) {
	c := newClock()
	s := New(&Options{Clock: c.now})
	t.Cleanup(func() { s.Close() })
	return s, c
}

// newRequest returns a request with a new ID, in queue "q", changed by f.
func newRequest(f func(*pawl.Request)) *pawl.Request {
	r := &pawl.Request{
		ID:          uuid.Must(uuid.NewV7()),
		Queue:       "q",
		Kind:        "k",
		MaxAttempts: 3,
		MaxRescues:  5,
		MaxDepth:    pawl.Unlimited,
		Retention:   time.Hour,
	}
	if f != nil {
		f(r)
	}
	return r
}

func enqueue(t testing.TB, s *Store, reqs ...*pawl.Request) {
	t.Helper()
	receipts, err := s.Enqueue(ctx, reqs)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range receipts {
		if r.Status != pawl.Stored {
			t.Fatalf("request %d: %v", i, r.Status)
		}
	}
}

// enqueueN stores n jobs made by newRequest and f, which gets their number.
func enqueueN(t testing.TB, s *Store, n int, f func(i int, r *pawl.Request)) {
	t.Helper()
	reqs := make([]*pawl.Request, n)
	for i := range reqs {
		reqs[i] = newRequest(func(r *pawl.Request) { f(i, r) })
	}
	enqueue(t, s, reqs...)
}

func spec(n int, queues ...string) pawl.ClaimSpec {
	if len(queues) == 0 {
		queues = []string{"q"}
	}
	c := pawl.ClaimSpec{Max: n, Lease: time.Minute, Worker: "w", Token: 1}
	for _, q := range queues {
		c.Queues = append(c.Queues, pawl.QueueAsk{Queue: q, Max: n})
	}
	return c
}

func claimJobs(t testing.TB, s *Store, n int, queues ...string) []*pawl.Job {
	t.Helper()
	c, err := s.Claim(ctx, spec(n, queues...))
	if err != nil {
		t.Fatal(err)
	}
	return c.Jobs
}

func settle(t testing.TB, s *Store, outcomes ...pawl.Outcome) {
	t.Helper()
	if lost, err := s.Settle(ctx, outcomes); err != nil || len(lost) > 0 {
		t.Fatalf("lost %v, error %v", lost, err)
	}
}

func sweep(t testing.TB, s *Store, sp pawl.SweepSpec) pawl.Swept {
	t.Helper()
	swept, err := s.Sweep(ctx, sp)
	if err != nil {
		t.Fatal(err)
	}
	return swept
}

func change(t testing.TB, s *Store, c pawl.Change) []pawl.Changed {
	t.Helper()
	changed, err := s.Change(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func get(t testing.TB, s *Store, id pawl.ID) *pawl.Job {
	t.Helper()
	jobs, err := s.Get(ctx, "", id)
	if err != nil || len(jobs) != 1 || jobs[0] == nil {
		t.Fatalf("Get: %v, %v", jobs, err)
	}
	return jobs[0]
}

// listAll reads all pages and returns their jobs and number.
func listAll(t testing.TB, s *Store, l pawl.ListSpec) (jobs []*pawl.Job, pages int) {
	t.Helper()
	for {
		p, err := s.List(ctx, l)
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, p.Jobs...)
		pages++
		if p.Next == "" {
			return jobs, pages
		}
		l.Cursor = p.Next
	}
}
