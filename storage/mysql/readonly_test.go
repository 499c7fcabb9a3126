package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
	"github.com/pawlq/pawl/worker"
)

// A failing server can be made read_only, which does not bind root. Programs
// connect as another user.
type failing struct {
	t      *testing.T
	server *testserver.MariaDBServer
	s      *mysql.Store

	mu       sync.Mutex
	refusing bool // until the next connection
}

func newFailing(t *testing.T) *failing {
	t.Helper()
	server := testserver.NewMariaDB(t, nil)
	err := server.Exec(t.Context(), "CREATE DATABASE app", "CREATE USER app@localhost", "GRANT ALL ON app.* TO app@localhost")
	if err != nil {
		t.Fatal(err)
	}
	f := &failing{t: t, server: server}
	db := connect(t, server, "app", 10, func(c *driver.Config) {
		c.User = "app"
		err = c.Apply(driver.BeforeConnect(func(context.Context, *driver.Config) error {
			f.recover()
			return nil
		}))
	})
	if err != nil {
		t.Fatal(err)
	}
	f.s = open(t, db, &mysql.Options{Logger: slog.New(slog.DiscardHandler)})
	return f
}

func (f *failing) readOnly(on string) {
	if err := f.server.Exec(context.Background(), "SET GLOBAL read_only = "+on); err != nil {
		f.t.Error(err)
	}
}

// failOver makes the server read-only until the Store connects anew, as it does
// where the new primary answers.
func (f *failing) failOver() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readOnly("1")
	f.refusing = true
}

// recover ends a failover, and reports whether there was one.
func (f *failing) recover() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.refusing {
		return false
	}
	f.readOnly("0")
	f.refusing = false
	return true
}

// A server that takes no writes any more is left for the one that does, in all
// that a Store does by itself, and no caller sees it.
func TestFailoverInsideCalls(t *testing.T) {
	f := newFailing(t)
	s := f.s
	var job *pawl.Job
	calls := []struct {
		name string
		call func() error
	}{
		{"one", func() error { _, err := s.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{})}); return err }},
		{"many", func() error {
			_, err := s.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{UniqueKey: "k"}), request(pawl.Request{})})
			return err
		}},
		{"claim", func() error {
			c, err := s.Claim(t.Context(), spec(1))
			if err == nil {
				job = c.Jobs[0]
			}
			return err
		}},
		{"extend", func() error {
			_, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: job.Ref, Lease: time.Minute}})
			return err
		}},
		{"settle", func() error {
			lost, err := s.Settle(t.Context(), []pawl.Outcome{{Ref: job.Ref, Verb: pawl.Ack}})
			if len(lost) > 0 {
				t.Errorf("lost %v", lost)
			}
			return err
		}},
		{"cycle", func() error { _, _, err := s.Cycle(t.Context(), nil, spec(1)); return err }},
		{"sweep", func() error { _, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 10}); return err }},
		{"change", func() error {
			_, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Delete, IDs: []pawl.ID{job.ID}})
			return err
		}},
	}
	for _, c := range calls {
		f.failOver()
		if err := c.call(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if f.recover() {
			t.Errorf("%s: nothing was refused", c.name)
		}
	}
}

// InTx does not make its function again, but it gives up the connection.
func TestFailoverInTx(t *testing.T) {
	f := newFailing(t)
	f.failOver()
	add := func() error {
		return f.s.InTx(t.Context(), func(_ *sql.Tx, w pawl.Writer) error {
			_, err := w.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{})})
			return err
		})
	}
	for range f.s.DB().Stats().OpenConnections {
		if err := add(); !errors.Is(err, pawl.ErrTxOver) {
			t.Errorf("error %v, want ErrTxOver", err)
		}
	}
	if err := add(); err != nil {
		t.Errorf("all connections to the old primary are used up: %v", err)
	}
}

// While the server stays read-only, callers are told so and nothing has changed;
// a pool goes on by itself once it takes writes again. What was accepted is done,
// once.
func TestReadOnlyServerUnderPool(t *testing.T) {
	f := newFailing(t)
	q := pawl.New(f.s, &pawl.Options{Logger: slog.New(slog.DiscardHandler)})
	var mu sync.Mutex
	ran := map[pawl.ID]int{}
	p := worker.New(q, worker.Func(func(_ context.Context, j *pawl.Job) error {
		mu.Lock()
		defer mu.Unlock()
		ran[j.ID]++
		return nil
	}), &worker.Options{Queues: []worker.Queue{{Name: "default", Concurrency: 10}}, Logger: slog.New(slog.DiscardHandler)})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(context.Background()); err != nil {
			t.Error(err)
		}
	})
	accepted := map[pawl.ID]bool{}
	enqueueSome := func(n int) {
		t.Helper()
		for range n {
			r, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "k"})
			if err != nil {
				t.Fatal(err)
			}
			accepted[r.ID] = true
		}
	}
	for range 3 {
		enqueueSome(50)
		f.readOnly("1")
		refused := request(pawl.Request{})
		if _, err := f.s.Enqueue(t.Context(), []*pawl.Request{refused}); !errors.Is(err, mysql.ErrServer) {
			t.Errorf("an enqueue of a server that is read-only: %v", err)
		}
		if state(t, f.s, refused.ID) != 0 {
			t.Error("a job that was refused is there")
		}
		f.readOnly("0")
	}
	enqueueSome(50)
	f.awaitCompleted(int64(len(accepted)))
	if err := p.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	for id := range accepted {
		if ran[id] != 1 {
			t.Errorf("job %v was run %d times", id, ran[id])
		}
	}
}

// awaitCompleted waits until so many jobs are completed and none is left.
func (f *failing) awaitCompleted(want int64) {
	f.t.Helper()
	var st pawl.QueueStats
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		stats, err := f.s.Count(context.Background(), "default")
		if err != nil {
			f.t.Fatal(err)
		}
		if st = stats[0]; st.Completed == want && st.Ready+st.Running+st.Scheduled == 0 {
			return
		}
	}
	f.t.Fatalf("%d jobs were accepted; numbers %+v", want, st)
}
