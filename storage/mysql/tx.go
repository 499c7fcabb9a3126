package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

// Tx returns a writer that works inside a transaction in the database of the
// Store, see [Store.SQLTx].
func (s *Store) Tx(tx *sql.Tx) pawl.Writer { return s.SQLTx(tx) }

// SQLTx returns a writer whose Enqueue and Settle are part of a transaction in
// the database of the Store: others see what it did when that is committed, and
// nothing of it if that is rolled back. Workers of this process are told if the
// transaction is that of [Store.InTx]; others find the jobs when they poll.
//
// No two statements have the same text, so nothing in between should prepare them
// and keep what it has prepared.
//
// A call that fails, also because its context has ended, leaves nothing behind
// in the transaction, which can go on. If the server can't promise that, the
// error wraps [pawl.ErrTxOver], and so does that of every later call: after a
// deadlock, for which it rolls back the whole transaction, as it does with
// innodb_snapshot_isolation, by default from MariaDB 11.6 on, for a row that has
// changed since the snapshot; after a
// wait for a lock that took too long; and when the connection is lost, as it is when a
// context ends while a statement is under way. Nothing is retried then. Nor does
// a call do anything if there is no transaction, because a statement of the
// program has met a deadlock before.
//
// Settle waits for other open transactions that hold the job. A limit of depth
// does not count what is not committed yet. At READ UNCOMMITTED a call may take for
// there what is rolled back later.
//
// The writer is for one goroutine at a time, as its transaction is.
func (s *Store) SQLTx(x Querier) pawl.Writer {
	w := &txWriter{s: s, run: x}
	if _, ok := x.(*sql.DB); ok {
		w.over = &pawl.InvalidError{Field: "Querier", Limit: "a transaction, not a pool"}
	}
	return w
}

// txWriter writes in a caller's transaction.
type txWriter struct {
	s   *Store
	run Querier

	mu     sync.Mutex
	over   error
	events events // of InTx
}

// Enqueue implements [pawl.Writer].
func (t *txWriter) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	if len(reqs) == 0 {
		return nil, nil
	}
	e := newEnqueue(reqs)
	if err := t.do(ctx, "enqueue in transaction", e.run); err != nil {
		return nil, err
	}
	return e.receipts, nil
}

// Settle implements [pawl.Writer].
func (t *txWriter) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	st := newSettlement(outcomes)
	if err := t.do(ctx, "settle in transaction", st.run); err != nil {
		return nil, err
	}
	return st.lost(), nil
}

// Of our savepoint.
const (
	savepointBegin = "SAVEPOINT pawl_call"
	savepointUndo  = "ROLLBACK TO SAVEPOINT pawl_call"
	savepointEnd   = "RELEASE SAVEPOINT pawl_call"
)

// do runs f in a savepoint of the transaction.
func (t *txWriter) do(ctx context.Context, what string, f func(*batch) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over != nil {
		return t.over
	}
	select {
	case <-t.s.watch.gone:
		return pawl.ErrClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	events, err := t.try(ctx, f)
	if err == nil {
		t.events.add(events)
		return nil
	}
	if ended := ctx.Err(); ended != nil {
		err = withCause(ended, err)
	}
	if isEnd(err) {
		t.over = fmt.Errorf("pawl/mysql: %s: %w: %w", what, pawl.ErrTxOver, err)
		return t.over
	}
	return explain(what, err)
}

// try runs f, and once more if the snapshot of the transaction is older than
// what others have committed.
func (t *txWriter) try(ctx context.Context, f func(*batch) error) (*events, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		b := t.s.newBatch(ctx, t.run)
		b.foreign, b.latest = true, try > 1
		err := f(b)
		if err == nil {
			err = t.last(ctx, savepointEnd)
			if err == nil {
				return &b.events, nil
			}
			return nil, &undoError{err, err}
		}
		if isEnd(err) || endsTransaction(err) {
			return nil, &undoError{err, err}
		}
		if undo := t.last(ctx, savepointUndo); undo != nil {
			return nil, &undoError{err, undo}
		}
		again := code(err) == codeDuplicate || errors.Is(err, errAgain)
		if !again || try == maxTries || pause(ctx, min(try, 3)) != nil {
			return nil, err
		}
	}
}

// begin makes a savepoint, and makes sure that there is one: outside of a
// transaction the server says yes and makes none.
func (t *txWriter) begin(ctx context.Context) error {
	if err := t.exec(ctx, savepointBegin); err != nil {
		return t.unlessOver(ctx, err)
	}
	if err := t.exec(ctx, savepointUndo); err != nil {
		return t.unlessOver(ctx, err)
	}
	return nil
}

// unlessOver is the error of a statement that has changed nothing: if the
// context ended before it was sent, the transaction is as it was.
func (t *txWriter) unlessOver(ctx context.Context, err error) error {
	if !isEnd(err) && ctx.Err() != nil && t.last(ctx, "DO 0") == nil {
		return err
	}
	return &undoError{err, err}
}

// lastTimeout bounds what is done after a context has ended, by a server that may have
// gone. The driver then closes the connection.
const lastTimeout = time.Second

// last is exec that goes on for a while after the end of ctx.
func (t *txWriter) last(ctx context.Context, statement string) error {
	own, cancel := outlasting(ctx)
	defer cancel()
	return t.exec(own, statement)
}

// outlasting is a context that ends lastTimeout after ctx.
func outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-own.Done():
		case <-time.After(lastTimeout):
			cancel()
		}
	})
	return own, func() { stop(); cancel() }
}

func (t *txWriter) exec(ctx context.Context, statement string) error {
	return guarded(ctx, func(ctx context.Context) error {
		_, err := t.run.ExecContext(ctx, statement)
		return err
	})
}

// guarded runs a statement of a caller's transaction. If the context ends
// meanwhile the driver closes the connection, maybe after the statement has
// succeeded, so the transaction counts as over in any case.
func guarded(ctx context.Context, f func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err // nothing was sent
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	err := f(own)
	if stop() {
		return err
	}
	return &undoError{withCause(context.Cause(ctx), errInterrupted), err}
}

var errInterrupted = errors.New("the context ended while a statement was under way")

// undoError says that the transaction is not what it should be, or is no more.
type undoError struct{ err, undo error }

func (e *undoError) Error() string {
	if e.err == e.undo || e.undo == nil {
		return e.err.Error()
	}
	return fmt.Sprint(errors.Join(e.err, e.undo))
}

func (e *undoError) Unwrap() []error {
	if e.undo == nil {
		return []error{e.err}
	}
	return []error{e.err, e.undo}
}

func isEnd(err error) bool {
	var undo *undoError
	return errors.As(err, &undo)
}

// endsTransaction reports whether the server has rolled a transaction back, or
// one should not go on, after a statement that failed with err.
func endsTransaction(err error) bool {
	c := code(err)
	return c == codeDeadlock || c == codeChanged || c == codeLockTimeout || isReadOnly(err) || isLost(err) || errors.Is(err, sql.ErrTxDone)
}

// InTx runs f in a transaction at the server's default isolation, commits it, and
// wakes workers. If f fails, or panics, the transaction is rolled back, and InTx
// returns the error as it is. f is not called twice.
//
// What f writes without w or tx, such as by Enqueue of a [pawl.Queue] that lacks
// its WithTx, is no part of the transaction: it stays after a rollback. It also
// waits for another connection of the pool and for rows that the transaction has
// locked, which can be in vain.
func (s *Store) InTx(ctx context.Context, f func(tx *sql.Tx, w pawl.Writer) error) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	c, tx, err := s.begin(ctx)
	if err != nil {
		return explain("begin", err)
	}
	defer func() { release(c, err) }()
	defer rollBack(ctx, tx) // does nothing after a commit
	w := &txWriter{s: s, run: tx}
	if err = f(tx, w); err != nil {
		return err
	}
	if err = ctx.Err(); err != nil {
		return err
	}
	if err = commit(ctx, tx); err != nil {
		if ended := ctx.Err(); ended != nil {
			err = withCause(ended, err)
		}
		if c := code(err); c == codeDeadlock || c == codeChanged {
			return fmt.Errorf("pawl/mysql: commit: %w: %w", pawl.ErrTxOver, err)
		}
		return explain("commit", err)
	}
	s.watch.publish(&w.events)
	return nil
}

// commit is tx.Commit that ends with ctx. Commit alone would wait for a server that does
// not answer for as long as TCP does.
func commit(ctx context.Context, tx *sql.Tx) error {
	if ctx.Done() == nil {
		return tx.Commit()
	}
	if _, err := tx.ExecContext(ctx, "COMMIT"); err != nil {
		return err
	}
	_ = tx.Rollback() // of nothing: it ends tx
	return nil
}

// rollBack ends a transaction, whether ctx has ended or not. Rollback alone would wait
// for a server that does not answer for as long as TCP does: the statement before makes
// the driver close the connection then.
func rollBack(ctx context.Context, tx *sql.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTimeout)
	defer cancel()
	_, _ = tx.ExecContext(ctx, "ROLLBACK")
	_ = tx.Rollback()
}

// begin begins a transaction on a connection that is to be released. It does not end
// with ctx by itself, which would be a Rollback.
func (s *Store) begin(ctx context.Context) (c *sql.Conn, tx *sql.Tx, err error) {
	err = retry(ctx, func() (err error) {
		if c, err = s.db.Conn(ctx); err != nil {
			return err
		}
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		stop := context.AfterFunc(ctx, cancel)
		tx, err = c.BeginTx(own, nil)
		if !stop() {
			err = ctx.Err() // and tx, if there is one, has ended with own
		}
		if err != nil {
			cancel()
			release(c, err)
		}
		return err
	})
	return c, tx, err
}
