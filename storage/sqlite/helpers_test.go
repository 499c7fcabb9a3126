package sqlite_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

func TestMain(m *testing.M) { helperMain(m) }

// open opens a fresh file.
func open(t testing.TB, o *sqlite.Options) *sqlite.Store {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "jobs.db"), o)
}

func openAt(t testing.TB, path string, o *sqlite.Options) *sqlite.Store {
	t.Helper()
	if o == nil {
		o = &sqlite.Options{Synchronous: sqlite.Off}
	}
	s, err := sqlite.Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// sqlDB opens a file as a program would that has tables of its own.
func sqlDB(t testing.TB, path, settings string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?"+settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// request is valid, with defaults filled in; change may adapt it.
func request(change ...func(*pawl.Request)) *pawl.Request {
	r := &pawl.Request{
		ID: uuid.Must(uuid.NewV7()), Queue: "default", Kind: "test", Payload: []byte("payload"),
		MaxAttempts: 3, MaxRescues: 5, Timeout: time.Minute, Retention: time.Hour,
	}
	for _, f := range change {
		f(r)
	}
	return r
}

func requests(n int, change ...func(*pawl.Request)) []*pawl.Request {
	reqs := make([]*pawl.Request, n)
	for i := range reqs {
		reqs[i] = request(change...)
	}
	return reqs
}

func enqueue(t testing.TB, w pawl.Writer, reqs ...*pawl.Request) []pawl.Receipt {
	t.Helper()
	receipts, err := w.Enqueue(t.Context(), reqs)
	if err != nil {
		t.Fatal(err)
	}
	return receipts
}

func ask(n int) pawl.ClaimSpec {
	return pawl.ClaimSpec{
		Queues: []pawl.QueueAsk{{Queue: "default", Max: n}}, Max: n, Lease: time.Minute, Worker: "test",
	}
}

func claim(t testing.TB, s pawl.Storage, n int) []*pawl.Job {
	t.Helper()
	c, err := s.Claim(t.Context(), ask(n))
	if err != nil {
		t.Fatal(err)
	}
	return c.Jobs
}

func get(t testing.TB, s pawl.Storage, id pawl.ID) *pawl.Job {
	t.Helper()
	jobs, err := s.Get(t.Context(), "", id)
	if err != nil {
		t.Fatal(err)
	}
	return jobs[0]
}

func count(t testing.TB, s pawl.Storage) pawl.QueueStats {
	t.Helper()
	stats, err := s.Count(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	return stats[0]
}

func ack(jobs []*pawl.Job) []pawl.Outcome {
	outcomes := make([]pawl.Outcome, len(jobs))
	for i, j := range jobs {
		outcomes[i] = pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack}
	}
	return outcomes
}

func settle(t testing.TB, w pawl.Writer, outcomes ...pawl.Outcome) {
	t.Helper()
	lost, err := w.Settle(t.Context(), outcomes)
	if err != nil || len(lost) > 0 {
		t.Fatal(err, lost)
	}
}

// execSQL runs SQL on the store's database.
func execSQL(t testing.TB, s *sqlite.Store, query string, args ...any) {
	t.Helper()
	if _, err := s.DB().ExecContext(context.Background(), query, args...); err != nil {
		t.Fatal(err)
	}
}
