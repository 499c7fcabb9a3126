package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

func TestTxCommitAndRollback(t *testing.T) {
	s := open(t, nil)
	for _, commit := range []bool{true, false} {
		tx, err := s.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		r := request()
		enqueue(t, s.Tx(tx), r)
		if get(t, s, r.ID) != nil {
			t.Error("seen before the commit")
		}
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if got := get(t, s, r.ID) != nil; got != commit {
			t.Errorf("commit %v: stored %v", commit, got)
		}
	}
}

func TestTxSettle(t *testing.T) {
	s := open(t, nil)
	enqueue(t, s, request())
	j := claim(t, s, 1)[0]
	boom := errors.New("boom")
	err := s.InTx(t.Context(), func(tx *sql.Tx, w pawl.Writer) error {
		settle(t, w, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
		return boom
	})
	if err != boom {
		t.Errorf("got %v, want the error of f as it is", err)
	}
	if got := get(t, s, j.ID).State; got != pawl.Running {
		t.Errorf("after a rollback the job is %v", got)
	}
	if err := s.InTx(t.Context(), func(tx *sql.Tx, w pawl.Writer) error {
		settle(t, w, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := get(t, s, j.ID).State; got != pawl.Completed {
		t.Errorf("after the commit the job is %v", got)
	}
}

func TestInTxPanicRollsBack(t *testing.T) {
	s := open(t, nil)
	r := request()
	func() {
		defer func() { recover() }()
		_ = s.InTx(t.Context(), func(tx *sql.Tx, w pawl.Writer) error {
			enqueue(t, w, r)
			panic("boom")
		})
	}()
	if get(t, s, r.ID) != nil {
		t.Error("stored by a transaction that panicked")
	}
	enqueue(t, s, r) // and the file is free
}

// A failed call or statement, or a savepoint, leaves the transaction usable.
func TestTxGoesOn(t *testing.T) {
	s := open(t, nil)
	execSQL(t, s, "CREATE TABLE mine (n INTEGER PRIMARY KEY)")
	kept, undone, refused := request(), request(), request(func(r *pawl.Request) { r.MaxDepth = 1 })
	first := request(func(r *pawl.Request) { r.UniqueKey = "k" })
	err := s.InTx(t.Context(), func(tx *sql.Tx, w pawl.Writer) error {
		for _, q := range []string{"INSERT INTO mine VALUES (1)", "SAVEPOINT mine"} {
			if _, err := tx.Exec(q); err != nil {
				return err
			}
		}
		enqueue(t, w, undone)
		if _, err := tx.Exec("ROLLBACK TO mine"); err != nil {
			return err
		}
		if _, err := tx.Exec("INSERT INTO mine VALUES (1)"); err == nil {
			t.Error("no constraint error")
		}
		enqueue(t, w, kept)
		_, err := w.Enqueue(t.Context(), []*pawl.Request{first, refused})
		if !errors.Is(err, pawl.ErrFull) {
			t.Errorf("got %v, want ErrFull", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if get(t, s, kept.ID) == nil || get(t, s, undone.ID) != nil || get(t, s, refused.ID) != nil || get(t, s, first.ID) != nil {
		t.Error("want one job kept and three not stored")
	}
}

func TestOldSnapshotEndsTheTx(t *testing.T) {
	db := sqlDB(t, t.TempDir()+"/jobs.db", "_pragma=busy_timeout(0)")
	s, err := sqlite.New(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	testOldSnapshot(t, s)
}

// oldSnapshot enqueues in a deferred transaction that has read before someone
// else wrote.
func oldSnapshot(t *testing.T, s *sqlite.Store) (pawl.Writer, error) {
	t.Helper()
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	var n int
	if err := tx.QueryRow("SELECT count(*) FROM pawl_job").Scan(&n); err != nil {
		t.Fatal(err)
	}
	enqueue(t, s, request())
	w := s.SQLTx(tx)
	_, err = w.Enqueue(t.Context(), requests(1))
	return w, err
}

func testOldSnapshot(t *testing.T, s *sqlite.Store) {
	t.Helper()
	w, err := oldSnapshot(t, s)
	if !errors.Is(err, pawl.ErrTxOver) {
		t.Fatalf("got %v, want ErrTxOver", err)
	}
	if _, again := w.Settle(t.Context(), nil); again != err {
		t.Errorf("a later call gives %v, want %v", again, err)
	}
}

// An ack whose transaction stays open for three leases costs no lease.
func TestOpenTxLosesNoLease(t *testing.T) {
	const lease = 300 * time.Millisecond
	s := open(t, nil)
	enqueue(t, s, requests(2)...)
	spec := ask(2)
	spec.Lease = lease
	c, err := s.Claim(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	sweeper := openAt(t, fileOf(t, s), nil)
	swept := make(chan pawl.Swept, 1)
	err = s.InTx(t.Context(), func(tx *sql.Tx, w pawl.Writer) error {
		settle(t, w, pawl.Outcome{Ref: c.Jobs[0].Ref, Verb: pawl.Ack})
		go func() { // waits for the lock all the time, as heartbeats do
			sw, err := sweeper.Sweep(context.Background(), pawl.SweepSpec{Limit: 10})
			if err != nil {
				t.Error(err)
			}
			swept <- sw
		}()
		<-time.After(3 * lease)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if sw := <-swept; len(sw.Rescued) > 0 {
		t.Fatalf("the lease was given away at once: %+v", sw)
	}
	lost, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: c.Jobs[1].Ref, Lease: lease}})
	if err != nil || len(lost) > 0 {
		t.Errorf("the lease is lost: %v %v", lost, err)
	}
}

// A call inside of a transaction that forgets to use it waits until its context
// ends, and a warning says why.
func TestCallBesideItsTransactionIsWarnedOf(t *testing.T) {
	ctx, cancel := context.WithCancel(within(t))
	log := &onWarning{do: cancel}
	s := open(t, &sqlite.Options{Logger: slog.New(log)})
	sqlite.LongTx(s, time.Millisecond)
	if err := s.InTx(t.Context(), func(*sql.Tx, pawl.Writer) error {
		_, err := s.Enqueue(ctx, requests(1))
		return err
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if got := log.text.Load(); got == nil || !strings.Contains(*got, "transaction of this process that stays open") {
		t.Errorf("told %v", got)
	}
}

// So is one on a database that the program opened, whose transactions stand in no
// line.
func TestCallBesideTheProgramsTransactionIsWarnedOf(t *testing.T) {
	ctx, cancel := context.WithCancel(within(t))
	log := &onWarning{do: cancel}
	db := sqlDB(t, t.TempDir()+"/jobs.db", "_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)")
	s, err := sqlite.New(t.Context(), db, &sqlite.Options{Logger: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sqlite.LongTx(s, time.Millisecond)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := s.Enqueue(ctx, requests(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if got := log.text.Load(); got == nil || !strings.Contains(*got, "keeps locked") {
		t.Errorf("told %v", got)
	}
}

// onWarning is a slog.Handler that does something at a warning.
type onWarning struct {
	do   func()
	text atomic.Pointer[string]
}

func (*onWarning) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w *onWarning) WithAttrs([]slog.Attr) slog.Handler         { return w }
func (w *onWarning) WithGroup(string) slog.Handler              { return w }
func (w *onWarning) Handle(_ context.Context, r slog.Record) error {
	w.text.Store(&r.Message)
	w.do()
	return nil
}

func TestInTxWakes(t *testing.T) {
	s := open(t, nil)
	events := watch(t, s)
	quiet(events)
	if err := s.InTx(t.Context(), func(tx *sql.Tx, w pawl.Writer) error {
		_, err := w.Enqueue(t.Context(), requests(1))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	named := false
	for !named {
		named = (<-events).Queue == "default"
	}
}

// InTx on the program's own database, whose transactions are deferred, has the
// write lock from its begin all the same.
func TestInTxOnCallersDB(t *testing.T) {
	path := t.TempDir() + "/jobs.db"
	db := sqlDB(t, path, "")
	s, err := sqlite.New(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	other := openAt(t, path, nil)
	enqueued := make(chan error, 1)
	err = s.InTx(t.Context(), func(tx *sql.Tx, w pawl.Writer) error {
		var n int
		if err := tx.QueryRow("SELECT count(*) FROM pawl_job").Scan(&n); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := other.Enqueue(ctx, requests(1))
			enqueued <- err
		}()
		waitFor(t, func() bool { return sqlite.InHand(other) })
		cancel()
		if err := <-enqueued; !errors.Is(err, context.Canceled) {
			t.Errorf("someone else wrote meanwhile: %v", err)
		}
		_, err := w.Enqueue(t.Context(), requests(1))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if c := count(t, s); c.Ready != 1 {
		t.Errorf("%d jobs, want 1", c.Ready)
	}
	// It waits for others until its context ends.
	if err := other.InTx(t.Context(), func(*sql.Tx, pawl.Writer) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		err := s.InTx(ctx, func(*sql.Tx, pawl.Writer) error { return nil })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want context.DeadlineExceeded", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A transaction that only reads waits for nobody.
func TestReadOnlyTx(t *testing.T) {
	s := open(t, nil)
	if err := s.InTx(t.Context(), func(*sql.Tx, pawl.Writer) error {
		tx, err := s.DB().BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
		if err != nil {
			return err
		}
		defer tx.Rollback()
		var n int
		return tx.QueryRow("SELECT count(*) FROM pawl_job").Scan(&n)
	}); err != nil {
		t.Fatal(err)
	}
	if s.DB().Driver() == nil {
		t.Error("no driver")
	}
}

// A transaction of another file is refused, also if it holds such tables, and
// goes on; the same file by another path is not.
func TestTxOfAnotherFile(t *testing.T) {
	s, other := open(t, nil), open(t, nil)
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(fileOf(t, s), link); err != nil {
		t.Skipf("the system gives no symbolic links: %v", err)
	}
	for _, c := range []struct {
		db    *sql.DB
		wrong bool
	}{{other.DB(), true}, {sqlDB(t, link, "_txlock=immediate"), false}} {
		tx, err := c.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Tx(tx).Enqueue(t.Context(), requests(1))
		if errors.Is(err, pawl.ErrInvalid) != c.wrong || err != nil && !c.wrong {
			t.Errorf("another file %v: got %v", c.wrong, err)
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
	}
	if n, m := count(t, s).Ready, count(t, other).Ready; n != 1 || m != 0 {
		t.Errorf("%d jobs in the file, %d in the other, want 1 and 0", n, m)
	}
}
