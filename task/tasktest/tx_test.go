package tasktest_test

import (
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/task/tasktest"
)

var errRollback = errors.New("roll back")

type txCase struct {
	*testing.T
	rec   tasktest.Recorder
	store *sqlite.Store
	q     *pawl.Queue
}

func newTxCase(t *testing.T) *txCase {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "test.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	c := &txCase{T: t, store: store}
	c.q = pawl.New(store, &pawl.Options{Middleware: []pawl.EnqueueMiddleware{c.rec.Middleware}})
	return c
}

// inTx runs f in a transaction that ends with err.
func (c *txCase) inTx(end error, f func(tx *sql.Tx, w *pawl.Tx)) {
	c.Helper()
	err := c.store.InTx(c.Context(), func(tx *sql.Tx, w pawl.Writer) error {
		f(tx, c.q.WithTx(w))
		return end
	})
	if !errors.Is(err, end) {
		c.Fatal(err)
	}
}

func (c *txCase) wantFailure(want string, f func(t tasktest.TB)) {
	c.Helper()
	if got := failure(c.T, f); !strings.Contains(got, want) {
		c.Errorf("got %q, want %q", got, want)
	}
}

func TestAssertInTransaction(t *testing.T) {
	c := newTxCase(t)
	var receipt pawl.Receipt
	c.inTx(nil, func(_ *sql.Tx, w *pawl.Tx) {
		receipt = enqueue(t, w, task.New(welcome{UserID: 7}))
		job := tasktest.AssertEnqueuedTx(t, w, &c.rec, id(7))
		if job.ID != receipt.ID || job.Args.UserID != 7 {
			t.Errorf("got %+v", job)
		}
		tasktest.AssertEnqueuedTx[welcome](t, w, &c.rec, nil)
		c.wantFailure("no job of kind \"welcome\" matches; enqueued:\n\tkind \"welcome\"", func(t tasktest.TB) {
			tasktest.AssertEnqueuedTx(t, w, &c.rec, id(8))
		})
		c.wantFailure("its transaction was rolled back or is not committed yet", func(t tasktest.TB) {
			tasktest.AssertCommitted(t, c.q, &c.rec, id(7))
		})
	})
	if job := tasktest.AssertCommitted(t, c.q, &c.rec, id(7)); job.ID != receipt.ID || job.State != pawl.Ready {
		t.Errorf("got %+v", job)
	}
	if stats, err := c.q.Stats(t.Context()); err != nil || len(stats) != 1 || stats[0].Ready != 1 {
		t.Errorf("the assertions left %+v, %v", stats, err)
	}
	if entries := c.rec.Entries(); len(entries) != 1 || entries[0].Receipt != receipt {
		t.Errorf("the assertions were recorded: %+v", entries)
	}
}

func TestAssertAfterRollback(t *testing.T) {
	c := newTxCase(t)
	var over *pawl.Tx
	c.inTx(errRollback, func(_ *sql.Tx, w *pawl.Tx) {
		over = w
		enqueue(t, w, task.New(welcome{UserID: 7}))
	})
	c.wantFailure("was enqueued, but is not in the storage: its transaction was rolled back", func(t tasktest.TB) {
		tasktest.AssertCommitted(t, c.q, &c.rec, id(7))
	})
	c.wantFailure("can't be seen in this transaction; is it over?", func(t tasktest.TB) {
		tasktest.AssertEnqueuedTx(t, over, &c.rec, id(7))
	})
	c.wantFailure("enqueued:\n\tnothing", func(t tasktest.TB) { tasktest.AssertEnqueued(t, c.q, id(7)) })
	c.inTx(errRollback, func(_ *sql.Tx, w *pawl.Tx) {
		c.wantFailure("not in this transaction, or that was undone", func(t tasktest.TB) {
			tasktest.AssertEnqueuedTx(t, w, &c.rec, id(7))
		})
	})
}

func TestAssertAfterRollbackToSavepoint(t *testing.T) {
	c := newTxCase(t)
	c.inTx(errRollback, func(tx *sql.Tx, w *pawl.Tx) {
		exec := func(s string) {
			t.Helper()
			if _, err := tx.ExecContext(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		exec("SAVEPOINT here")
		enqueue(t, w, task.New(welcome{UserID: 7}))
		tasktest.AssertEnqueuedTx(t, w, &c.rec, id(7))
		exec("ROLLBACK TO here")
		c.wantFailure("not in this transaction, or that was undone", func(t tasktest.TB) {
			tasktest.AssertEnqueuedTx(t, w, &c.rec, id(7))
		})
	})
}

// TestAssertTxOfReplaced: the job is the holder of the key.
func TestAssertTxOfReplaced(t *testing.T) {
	c := newTxCase(t)
	c.inTx(nil, func(_ *sql.Tx, w *pawl.Tx) {
		for n := range 2 {
			r := task.New(welcome{UserID: int64(n)})
			r.UniqueKey, r.OnDuplicate = "one", pawl.Replace
			enqueue(t, w, r)
		}
		tasktest.AssertEnqueuedTx(t, w, &c.rec, id(1))
	})
	tasktest.AssertCommitted(t, c.q, &c.rec, id(1))
}

func TestAssertTxShowsErrors(t *testing.T) {
	c := newTxCase(t)
	enqueue(t, c.q, task.New(welcome{UserID: 7}))
	c.store.Close()
	c.wantFailure("is not in the storage: pawl: closed", func(t tasktest.TB) {
		tasktest.AssertCommitted(t, c.q, &c.rec, id(7))
	})
	c = newTxCase(t)
	enqueue(t, c.q, &pawl.Request{Kind: "welcome", Payload: []byte("{")})
	c.wantFailure("does not decode", func(t tasktest.TB) { tasktest.AssertCommitted(t, c.q, &c.rec, id(7)) })
}
