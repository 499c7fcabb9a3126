package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

// Tx returns a writer that works inside a transaction on the same file, see
// [Store.SQLTx].
func (s *Store) Tx(tx *sql.Tx) pawl.Writer { return s.SQLTx(tx) }

// SQLTx returns a writer whose Enqueue and Settle are part of a transaction on
// the same file: others see what it did when the transaction is committed, and
// nothing of it if that is rolled back.
//
// A call that fails, also because its context has ended, leaves nothing behind
// in the transaction, which can go on. If SQLite can't promise that, the error
// wraps [pawl.ErrTxOver], and so does that of every later call: when SQLite says
// that the file is busy; that the transaction reads an old snapshot (as a
// deferred transaction does that reads before it writes); that the disk is full
// or broken; or when the transaction has been rolled back already, as SQLite
// does by itself when a statement of the program is interrupted by the end of
// its context. Nothing is retried. A transaction on another file is refused with
// a [pawl.InvalidError].
//
// SQLite has one writer at a time: while the transaction is open after its
// first write, no job is enqueued, claimed, extended or settled by anyone.
//
// The writer is for one goroutine at a time, as its transaction is.
func (s *Store) SQLTx(x Querier) pawl.Writer {
	w := &txWriter{s: s, run: plain{x}}
	if _, ok := x.(*sql.DB); ok {
		w.over = &pawl.InvalidError{Field: "Querier", Limit: "a transaction, not a pool"}
	}
	return w
}

// txWriter writes in a caller's transaction.
type txWriter struct {
	s   *Store
	run runner

	mu     sync.Mutex
	over   error
	ofFile bool // it was seen to be of the Store's file
	events events
}

// Enqueue implements [pawl.Writer].
func (t *txWriter) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	r := &request{enqueue: newEnqueueCall(reqs)}
	err := t.do(ctx, "enqueue in transaction", func(b *batch) error {
		errs := make([]error, 1)
		return errors.Join(b.enqueueAll([]*request{r}, errs), errs[0])
	})
	if err != nil {
		return nil, err
	}
	return r.enqueue.receipts, nil
}

// Settle implements [pawl.Writer].
func (t *txWriter) Settle(ctx context.Context, outcomes []pawl.Outcome) (lost []pawl.Ref, err error) {
	err = t.do(ctx, "settle in transaction", func(b *batch) (err error) {
		lost, err = b.settle(outcomes)
		return err
	})
	if err != nil {
		return nil, err
	}
	return lost, nil
}

// do runs f in a savepoint of the transaction. No statement of ours is
// interrupted: SQLite could answer that with a rollback of the whole
// transaction, and the next statement would begin one of its own.
func (t *txWriter) do(ctx context.Context, what string, f func(*batch) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over != nil {
		return t.over
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	own := context.WithoutCancel(ctx)
	b := &batch{ctx: own, run: &stoppable{runner: t.run, ctx: ctx}, q: t.s.q, now: t.s.now(), events: t.events.clone()}
	err := inTransaction(own, t.run)
	if err == nil {
		err = t.checkFile(own)
	}
	if err == nil {
		err = b.savepoint(func() error { return f(b) })
	}
	if err == nil {
		t.events = b.events
		return nil
	}
	err = explain(what, err)
	if endsTransaction(err) {
		t.over = fmt.Errorf("%w: %w", pawl.ErrTxOver, err)
		return t.over
	}
	return err
}

// checkFile refuses a transaction of another file, where the jobs would be lost
// to the Store. One path of a file may differ from another, so what decides is
// the file that they lead to.
func (t *txWriter) checkFile(ctx context.Context) error {
	if t.ofFile {
		return nil
	}
	file, err := fileOf(ctx, t.run)
	if err != nil {
		return err
	}
	if t.ofFile = sameFile(file, t.s.file); !t.ofFile {
		return &pawl.InvalidError{Field: "Tx", Limit: fmt.Sprintf("a transaction on %q, the file of the Store, not on %q", t.s.file, file)}
	}
	return nil
}

func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// stoppable runs statements undisturbed, but begins none after its context has
// ended, save those that undo what was done.
type stoppable struct {
	runner
	ctx context.Context
}

func (s *stoppable) exec(ctx context.Context, st *statement, args ...any) (sql.Result, error) {
	if err := s.ctx.Err(); err != nil && st != savepointUndo && st != savepointEnd {
		return nil, err
	}
	return s.runner.exec(ctx, st, args...)
}

func (s *stoppable) query(ctx context.Context, st *statement, args ...any) (*sql.Rows, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	return s.runner.query(ctx, st, args...)
}

// errNoTransaction says that what should be a transaction is none.
var errNoTransaction = errors.New("pawl/sqlite: there is no transaction, it may have been rolled back by SQLite")

// inTransaction makes sure that there is a transaction: without one, a
// savepoint would begin it and its release commit what others want undone.
// SQLite tells by refusing to begin another.
func inTransaction(ctx context.Context, run runner) error {
	ctx = context.WithoutCancel(ctx) // what is begun is ended
	_, err := run.exec(ctx, beginRead)
	if code(err) == codeError {
		return nil
	}
	if err == nil {
		_, err = run.exec(ctx, rollback)
	}
	return errors.Join(errNoTransaction, err)
}

// InTx runs f in a transaction that may write from its begin, commits it, and
// wakes workers. If f fails, or panics, the transaction is rolled back, and
// InTx returns the error as it is. It waits for the write lock until ctx ends;
// f is not called twice. The same cautions as for [Store.SQLTx] apply: f should
// be short, since everything else waits for it.
//
// f must not call what writes outside of the transaction: neither the Store's own
// writing methods nor those of a [pawl.Queue] on it, such as Enqueue; inside it is
// q.WithTx(w).Enqueue. Such a call waits for f, and f for it, until its context
// ends; the Logger gets a warning when a transaction of this process has been open
// for 10 s while others wait. Nor may f call Close, which waits for the calls of
// others.
func (s *Store) InTx(ctx context.Context, f func(tx *sql.Tx, w pawl.Writer) error) error {
	if err := s.open(); err != nil {
		return err
	}
	tx, done, err := s.begin(ctx)
	if err != nil {
		return explain("begin", err)
	}
	defer done()
	defer tx.Rollback() // does nothing after a commit
	w := &txWriter{s: s, run: plain{tx}, ofFile: true}
	if err := f(tx, w); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		if ended := ctx.Err(); ended != nil && errors.Is(err, sql.ErrTxDone) {
			err = fmt.Errorf("%w: %w", ended, err) // that is why it is over
		}
		return explain("commit", err)
	}
	s.watch.publish(&batch{now: s.now(), events: w.events})
	return nil
}

// begin begins a transaction that has the write lock. done is to be called
// after its end.
func (s *Store) begin(ctx context.Context) (tx *sql.Tx, done func(), err error) {
	endTurn, err := s.takeTurn(ctx)
	if err != nil {
		return nil, nil, err
	}
	conn, err := s.writes.Conn(ctx)
	if err != nil {
		endTurn()
		return nil, nil, err
	}
	done = func() {
		conn.Close()
		endTurn()
	}
	err = untilFree(ctx, func() (err error) {
		if tx, err = beginOn(ctx, conn); err != nil {
			return err
		}
		if _, err = tx.ExecContext(ctx, s.q.lock.text); err != nil {
			_ = tx.Rollback() // it has nothing
		}
		return err
	})
	if err != nil {
		done()
		return nil, nil, err
	}
	s.turn.opened()
	return tx, done, nil
}

// beginOn begins a transaction, or leaves the connection to nobody: drivers may say
// that the context has ended of a transaction that has begun.
func beginOn(ctx context.Context, conn *sql.Conn) (*sql.Tx, error) {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil && !isBusy(err) {
		discard(conn)
	}
	return tx, err
}

// tellLongTx warns of a transaction of the program for which others wait, maybe
// its own goroutine.
func (s *Store) tellLongTx(open time.Duration, waiting int) {
	s.writer.mu.Lock()
	if n := s.writer.queue.Len(); n > 0 {
		waiting += n - 1 // all these have one place in the line
	}
	s.writer.mu.Unlock()
	s.warn(s.writer.ctx, "calls wait for a transaction of this process that stays open; those inside of it need its Writer",
		"open", open.Round(time.Millisecond), "waiting", waiting)
}

// takeTurn takes the turn for a transaction of the program. done ends it.
func (s *Store) takeTurn(ctx context.Context) (done func(), err error) {
	if err := s.turn.take(ctx); err != nil {
		return nil, err
	}
	since := time.Now()
	return func() {
		s.writer.delays.note(since, time.Now())
		s.turn.give()
		s.writer.lookSoon()
	}, nil
}
