package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
	"github.com/pawlq/pawl/storage/storagetest"
	"github.com/pawlq/pawl/worker"
)

// levels are those at which programs run their transactions.
var levels = []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead}

// business makes a table of the program's own, with two rows.
func business(t *testing.T, db *sql.DB) {
	t.Helper()
	run(t, db, "CREATE TABLE orders (n INT PRIMARY KEY, v INT NOT NULL)")
	run(t, db, "INSERT INTO orders VALUES (1, 0), (2, 0)")
}

func run(t *testing.T, x mysql.Querier, statement string) {
	t.Helper()
	if _, err := x.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func beginTx(t *testing.T, db *sql.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

func number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// deadlocked makes a transaction the victim of a deadlock that its program's
// own statement meets, and returns it with what it had enqueued.
func deadlocked(t *testing.T, s *mysql.Store) (tx *sql.Tx, w pawl.Writer, id pawl.ID) {
	t.Helper()
	other := beginTx(t, s.DB(), sql.LevelRepeatableRead)
	for i := range 50 { // the server rolls back who has changed least
		run(t, other, fmt.Sprintf("INSERT INTO orders VALUES (%d, 0)", 100+i))
	}
	run(t, other, "UPDATE orders SET v = 1 WHERE n = 1")
	tx = beginTx(t, s.DB(), sql.LevelRepeatableRead)
	w = s.Tx(tx)
	run(t, tx, "UPDATE orders SET v = 2 WHERE n = 2")
	id = enqueue(t, w, pawl.Request{}).ID
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = other.Exec("UPDATE orders SET v = 1 WHERE n = 2") })
	_, err := tx.Exec("UPDATE orders SET v = 2 WHERE n = 1")
	wg.Wait()
	var e *driver.MySQLError
	if !errors.As(err, &e) || e.Number != 1213 {
		t.Fatalf("error is %v, want a deadlock", err)
	}
	if err := other.Rollback(); err != nil {
		t.Fatal(err)
	}
	return tx, w, id
}

// After a deadlock the server has no transaction any more, and runs each
// statement alone: what a writer did then would stay for good.
func TestDeadlockInCallersTransaction(t *testing.T) {
	s := fresh(t, nil)
	business(t, s.DB())
	first := enqueue(t, s, pawl.Request{}).ID
	ref := claim(t, s, 1)[0].Ref
	tx, w, id := deadlocked(t, s)
	later := request(pawl.Request{})
	for range 2 {
		if _, err := w.Enqueue(t.Context(), []*pawl.Request{later}); !errors.Is(err, pawl.ErrTxOver) {
			t.Errorf("enqueue after a deadlock: error %v, want ErrTxOver", err)
		}
		if _, err := s.Tx(tx).Settle(t.Context(), []pawl.Outcome{{Ref: ref, Verb: pawl.Ack}}); !errors.Is(err, pawl.ErrTxOver) {
			t.Errorf("settle after a deadlock: error %v, want ErrTxOver", err)
		}
	}
	_ = tx.Commit() // of nothing
	if v := number(t, s.DB(), "SELECT SUM(v) FROM orders"); v != 0 {
		t.Errorf("the program's rows add up to %d, want 0: the transaction was rolled back", v)
	}
	if state(t, s, id) != 0 || state(t, s, later.ID) != 0 || state(t, s, first) != pawl.Running {
		t.Error("jobs of a transaction that was rolled back are there, or a claim was settled")
	}
}

// A deadlock that our own statement meets is not retried either.
func TestDeadlockInCall(t *testing.T) {
	s := fresh(t, nil)
	enqueue(t, s, pawl.Request{})
	enqueue(t, s, pawl.Request{})
	jobs := claim(t, s, 2)
	settleIn := func(w pawl.Writer, i int) error {
		_, err := w.Settle(context.Background(), []pawl.Outcome{{Ref: jobs[i].Ref, Verb: pawl.Ack}})
		return err
	}
	writers := make([]pawl.Writer, 2)
	txs := make([]*sql.Tx, 2)
	for i := range writers {
		txs[i] = beginTx(t, s.DB(), sql.LevelRepeatableRead)
		writers[i] = s.Tx(txs[i])
		if err := settleIn(writers[i], i); err != nil {
			t.Fatal(err)
		}
	}
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() { errs[i] = settleIn(writers[i], 1-i) })
	}
	// Who is not the victim waits for the other's locks, which its end gives free.
	wg.Wait()
	victim := 0
	if errs[0] == nil {
		victim = 1
	}
	if !errors.Is(errs[victim], pawl.ErrTxOver) || errs[1-victim] != nil {
		t.Fatalf("errors are %v, want one ErrTxOver", errs)
	}
	if err := settleIn(writers[victim], victim); !errors.Is(err, pawl.ErrTxOver) {
		t.Errorf("the writer of a transaction that is over: %v", err)
	}
	if err := txs[1-victim].Commit(); err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		if got := state(t, s, j.ID); got != pawl.Completed {
			t.Errorf("job is %v, want completed by the transaction that went on", got)
		}
	}
}

// A wait for a lock that takes too long ends the writer, not the server.
func TestLockTimeoutInCallersTransaction(t *testing.T) {
	s := fresh(t, nil)
	enqueue(t, s, pawl.Request{})
	ack := []pawl.Outcome{{Ref: claim(t, s, 1)[0].Ref, Verb: pawl.Ack}}
	holder := beginTx(t, s.DB(), sql.LevelRepeatableRead)
	settle(t, s.Tx(holder), ack...)
	tx := beginTx(t, s.DB(), sql.LevelRepeatableRead)
	run(t, tx, "SET innodb_lock_wait_timeout = 1")
	w := s.Tx(tx)
	id := enqueue(t, w, pawl.Request{}).ID
	for range 2 {
		if _, err := w.Settle(t.Context(), ack); !errors.Is(err, pawl.ErrTxOver) {
			t.Fatalf("error is %v, want ErrTxOver", err)
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if state(t, s, id) != 0 {
		t.Error("a job of a transaction that was rolled back is there")
	}
	if err := holder.Commit(); err != nil {
		t.Fatal(err)
	}
}

// A program's savepoint and a statement that failed are its own affair.
func TestSavepointsAndFailures(t *testing.T) {
	s := fresh(t, nil)
	business(t, s.DB())
	for _, level := range levels {
		tx := beginTx(t, s.DB(), level)
		w := s.Tx(tx)
		kept := enqueue(t, w, pawl.Request{}).ID
		run(t, tx, "SAVEPOINT mine")
		undone := enqueue(t, w, pawl.Request{UniqueKey: "k"}).ID
		run(t, tx, "ROLLBACK TO SAVEPOINT mine")
		if _, err := tx.Exec("INSERT INTO orders VALUES (1, 0)"); err == nil {
			t.Fatal("a duplicate row was inserted")
		}
		last := enqueue(t, w, pawl.Request{UniqueKey: "k"})
		if last.Status != pawl.Stored {
			t.Errorf("%v: the key of an undone enqueue is held: %v", level, last.Status)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if state(t, s, kept) != pawl.Ready || state(t, s, undone) != 0 || state(t, s, last.ID) != pawl.Ready {
			t.Errorf("%v: the wrong jobs are there", level)
		}
		for _, j := range claim(t, s, 2) {
			settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
		}
	}
}

// What others have committed after a transaction's snapshot was taken is met all
// the same.
func TestOldSnapshot(t *testing.T) {
	s := fresh(t, nil)
	tx := beginTx(t, s.DB(), sql.LevelRepeatableRead)
	w := s.Tx(tx)
	var n int
	if err := tx.QueryRow("SELECT COUNT(*) FROM pawl_job").Scan(&n); err != nil {
		t.Fatal(err)
	}
	holder := enqueue(t, s, pawl.Request{UniqueKey: "k"})
	present := request(pawl.Request{})
	if _, err := s.Enqueue(t.Context(), []*pawl.Request{present}); err != nil {
		t.Fatal(err)
	}
	jobs := claim(t, s, 2)
	receipts, err := w.Enqueue(t.Context(), []*pawl.Request{
		request(pawl.Request{UniqueKey: "k"}), request(pawl.Request{ID: present.ID, UniqueKey: "other"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if receipts[0].Status != pawl.Duplicate || receipts[0].ID != holder.ID || receipts[1].Status != pawl.Exists {
		t.Errorf("receipts are %+v", receipts)
	}
	for _, j := range jobs {
		settle(t, w, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := state(t, s, holder.ID); got != pawl.Completed {
		t.Errorf("the job is %v, want completed", got)
	}
}

// TestPoolInTransactions has handlers that ack in a transaction which stays open
// for three leases, while the heartbeat goes on.
func TestPoolInTransactions(t *testing.T) {
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			s := fresh(t, nil)
			business(t, s.DB())
			q := pawl.New(s, &pawl.Options{Logger: slog.New(slog.DiscardHandler)})
			const lease = 3 * time.Second // a busy machine must not miss three heartbeats
			receipt, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "k", Lease: lease})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			p := worker.New(q, worker.Func(func(ctx context.Context, j *pawl.Job) error {
				defer close(done)
				tx, err := s.DB().BeginTx(ctx, &sql.TxOptions{Isolation: level})
				if err != nil {
					return err
				}
				defer tx.Rollback()
				if _, err := tx.ExecContext(ctx, "UPDATE orders SET v = v + 1"); err != nil {
					return err
				}
				if err := q.WithTx(s.Tx(tx)).Ack(ctx, j, nil); err != nil {
					return err
				}
				select { // the lease runs out and is renewed meanwhile
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(2 * lease):
				}
				return tx.Commit()
			}), &worker.Options{Queues: []worker.Queue{{Name: "default"}}, SweepEvery: lease / 10})
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := p.Run(t.Context()); err != nil {
					t.Error(err)
				}
			})
			<-done
			if err := p.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			wg.Wait()
			if n := number(t, s.DB(), "SELECT SUM(v) FROM orders"); n != 2 {
				t.Errorf("the handler had effect %d times, want 2 rows once", n)
			}
			j, err := q.Get(t.Context(), "", receipt.ID)
			if err != nil || j.State != pawl.Completed || j.Counts.Rescues != 0 {
				t.Errorf("job %+v, error %v; want it completed and never rescued", j, err)
			}
		})
	}
}

// A pool of one connection serves the Store and the transactions of handlers.
func TestPoolOfOneConnection(t *testing.T) {
	db := openDB(t, testserver.MariaDB(t), 1, nil)
	s := open(t, db, nil)
	q := pawl.New(s, nil)
	const n = 30
	for range n {
		if _, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "k"}); err != nil {
			t.Fatal(err)
		}
	}
	ran := make(chan struct{}, n)
	p := worker.New(q, worker.Func(func(ctx context.Context, j *pawl.Job) error {
		defer func() { ran <- struct{}{} }()
		return s.InTx(ctx, func(_ *sql.Tx, w pawl.Writer) error { return q.WithTx(w).Ack(ctx, j, nil) })
	}), &worker.Options{Queues: []worker.Queue{{Name: "default", Concurrency: 5}}})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for range n {
		select {
		case <-ran:
		case <-time.After(30 * time.Second):
			t.Fatal("the pool does not get on")
		}
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	stats, err := s.Count(t.Context(), "default")
	if err != nil || stats[0].Completed != n {
		t.Errorf("numbers %+v, error %v; want %d completed", stats, err, n)
	}
}

// InTx tells the watchers of its Store at the commit.
func TestInTxWakes(t *testing.T) {
	s := fresh(t, &mysql.Options{PollInterval: -1})
	events := make(chan pawl.Event, 100)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() { _ = s.Watch(ctx, func(e pawl.Event) { events <- e }) })
	defer wg.Wait()
	defer cancel()
	<-events // that it watches
	errNo := errors.New("no")
	for _, fails := range []error{errNo, nil} {
		err := s.InTx(t.Context(), func(_ *sql.Tx, w pawl.Writer) error {
			enqueue(t, w, pawl.Request{Queue: fmt.Sprint("fails-", fails != nil)})
			return fails
		})
		if !errors.Is(err, fails) {
			t.Fatal(err)
		}
	}
	select {
	case e := <-events:
		if e.Kind != pawl.EventReady || e.Queue != "fails-false" {
			t.Errorf("the first event is %+v, want that of the transaction that was committed", e)
		}
	case <-time.After(10 * time.Second):
		t.Error("no event")
	}
}

// The contract holds in transactions at READ COMMITTED, and however the driver
// sends arguments and reads times.
func TestStorageOtherwise(t *testing.T) {
	for name, edit := range map[string]func(*driver.Config){
		"interpolated": func(c *driver.Config) {
			c.InterpolateParams, c.ClientFoundRows, c.MultiStatements = true, true, true
		},
		"times parsed": func(c *driver.Config) {
			c.ParseTime, c.Loc = true, time.FixedZone("zone", 5*3600)
			c.Params = map[string]string{"time_zone": "'+05:00'", "sql_mode": "'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'"}
			if err := c.Apply(driver.Charset("latin1", "latin1_bin")); err != nil {
				t.Error(err)
			}
		},
		"read committed": func(c *driver.Config) { c.Params = map[string]string{"tx_isolation": "'READ-COMMITTED'"} },
		"serializable":   func(c *driver.Config) { c.Params = map[string]string{"tx_isolation": "'SERIALIZABLE'"} },
	} {
		t.Run(name, func(t *testing.T) {
			h := harness(t, edit)
			h.Groups = []string{"rules", "tx"}
			storagetest.Run(t, h)
		})
	}
}

// With innodb_snapshot_isolation the server ends a transaction that meets a row
// which has changed since its snapshot.
func TestSnapshotIsolation(t *testing.T) {
	s := fresh(t, nil)
	enqueue(t, s, pawl.Request{})
	j := claim(t, s, 1)[0]
	tx := beginTx(t, s.DB(), sql.LevelRepeatableRead)
	run(t, tx, "SET SESSION innodb_snapshot_isolation = ON")
	run(t, tx, "SELECT COUNT(*) INTO @n FROM pawl_meta")
	if _, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: j.Ref, Lease: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	w := s.Tx(tx)
	for range 2 {
		if _, err := w.Settle(t.Context(), []pawl.Outcome{{Ref: j.Ref, Verb: pawl.Ack}}); !errors.Is(err, pawl.ErrTxOver) {
			t.Errorf("error %v, want ErrTxOver", err)
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
}
