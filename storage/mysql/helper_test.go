package mysql_test

import (
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
	"github.com/pawlq/pawl/storage/storagetest"
)

// fresh opens a Store in a database of its own, on the shared server.
func fresh(t testing.TB, o *mysql.Options) *mysql.Store {
	t.Helper()
	return open(t, openDB(t, testserver.MariaDB(t), 10, nil), o)
}

func request(r pawl.Request) *pawl.Request { return storagetest.Complete(r) }

func enqueue(t testing.TB, w pawl.Writer, r pawl.Request) pawl.Receipt {
	t.Helper()
	receipts, err := w.Enqueue(t.Context(), []*pawl.Request{request(r)})
	if err != nil {
		t.Fatal(err)
	}
	return receipts[0]
}

func spec(n int) pawl.ClaimSpec {
	return pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: "default", Max: n}}, Max: n, Lease: time.Minute, Worker: "w"}
}

// claim claims exactly n jobs.
func claim(t testing.TB, s pawl.Storage, n int) []*pawl.Job {
	t.Helper()
	c, err := s.Claim(t.Context(), spec(n))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Jobs) != n {
		t.Fatalf("claimed %d jobs, want %d", len(c.Jobs), n)
	}
	return c.Jobs
}

// state of a job; 0 if it is gone.
func state(t testing.TB, s pawl.Storage, id pawl.ID) pawl.State {
	t.Helper()
	jobs, err := s.Get(t.Context(), "", id)
	if err != nil {
		t.Fatal(err)
	}
	if jobs[0] == nil {
		return 0
	}
	return jobs[0].State
}

// settle settles and fails the test if anything is lost.
func settle(t testing.TB, w pawl.Writer, outcomes ...pawl.Outcome) {
	t.Helper()
	lost, err := w.Settle(t.Context(), outcomes)
	if err != nil || len(lost) > 0 {
		t.Fatalf("settle: lost %v, error %v", lost, err)
	}
}
