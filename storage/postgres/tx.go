package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
)

// Tx returns a writer whose Enqueue and Settle are part of a transaction in the
// database of the Store: others see what it did when that is committed, and
// nothing of it if that is rolled back. Workers are told of the jobs at the
// commit, or some milliseconds after.
//
// A call that is refused, or whose context is over when it begins, has changed
// nothing and the transaction goes on. After any other error the transaction can
// only be rolled back: the error wraps [pawl.ErrTxOver], and so does that of
// every later call of the writer. A caller that rolls back to a savepoint of its
// own goes on with a new writer. Nothing is retried.
//
// Settle waits for other open transactions that hold the job, Enqueue for those
// that hold the same ID or unique key. A limit of depth does not count what is not
// committed yet; where [pawl.DropOldest] drops a new job of priority 0, no job of
// that queue is claimed until the transaction ends.
//
// The server refuses PREPARE TRANSACTION for one that has notified, as the writer does
// now and then: a transaction that is to be prepared needs Options.PollOnly.
//
// The writer is for one goroutine at a time, as its transaction is.
func (s *Store) Tx(tx pgx.Tx) pawl.Writer {
	// Plans that the driver keeps prepared could be of a time when the tables
	// were empty.
	mode := pgx.QueryExecModeCacheDescribe
	if s.o.PollOnly {
		mode = pgx.QueryExecModeExec
	}
	t := &txWriter{s: s, run: native{q: tx, mode: &mode}, tell: true}
	if !s.o.PollOnly {
		t.tx = tx
	}
	return t
}

// SQLTx is [Store.Tx] for a transaction of database/sql, with any driver.
func (s *Store) SQLTx(x Querier) pawl.Writer { return &txWriter{s: s, run: portable{x}, tell: true} }

// txWriter writes in a caller's transaction.
type txWriter struct {
	s    *Store
	run  runner
	tx   pgx.Tx // if it can take several statements at once
	tell bool   // others of the commit

	mu     sync.Mutex
	over   error
	told   bool
	events events // of InTx
}

// Enqueue implements [pawl.Writer].
func (t *txWriter) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	if len(reqs) == 0 {
		return nil, nil
	}
	e := t.s.newEnqueue(ctx, reqs)
	e.run, e.foreign = t.run, true
	err := t.do(ctx, "enqueue in transaction", func() error {
		last := t.word()
		if t.tx != nil && !e.twice && !e.limited() {
			e.run = &withWord{native: native{q: t.tx}, then: t.run, tx: t.tx, word: last}
		}
		if err := e.inTx(); err != nil {
			return err
		}
		return t.note(ctx, &e.events, last)
	})
	if err != nil {
		return nil, err
	}
	return e.receipts, nil
}

// savepoint is for calls that may be refused after a part was done.
const savepoint = "pawl_enqueue"

// inTx stores the requests in a caller's transaction. If one is refused, the
// transaction is as it was before.
func (e *enqueue) inTx() error {
	if !e.limited() {
		return e.all() // which refuses nothing
	}
	if err := e.run.exec(e.ctx, "SAVEPOINT "+savepoint); err != nil {
		return err
	}
	err := e.pinned(e.all)
	if errors.Is(err, pawl.ErrFull) {
		if undo := e.run.exec(e.ctx, "ROLLBACK TO SAVEPOINT "+savepoint); undo != nil {
			return undo
		}
		return &refusedError{err}
	}
	if err != nil {
		return err
	}
	return e.run.exec(e.ctx, "RELEASE SAVEPOINT "+savepoint)
}

// pinned runs f with the settings for plans that the Store makes in its own
// transactions: what counts and drops jobs would else read all of a long queue.
// If f fails, they end with the savepoint, or the transaction.
func (e *enqueue) pinned(f func() error) error {
	var had string
	err := e.run.each(e.ctx, func(row scanner) error { return row.Scan(&had) }, e.s.q.pinned)
	if err != nil {
		return err
	}
	if err := e.run.exec(e.ctx, e.s.q.pin); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return e.run.exec(e.ctx, e.s.q.unpin, had)
}

// limited reports whether a queue can be too full for a request.
func (e *enqueue) limited() bool {
	return slices.ContainsFunc(e.reqs, func(r *pawl.Request) bool { return r.MaxDepth > 0 })
}

// refusedError is that of a call that has changed nothing.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

// Settle implements [pawl.Writer].
func (t *txWriter) Settle(ctx context.Context, outcomes []pawl.Outcome) (lost []pawl.Ref, err error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	st := t.s.newSettlement(outcomes)
	err = t.do(ctx, "settle in transaction", func() error {
		if err := st.inTx(ctx, t.run); err != nil {
			return err
		}
		return t.note(ctx, &st.events, t.word())
	})
	if err != nil {
		return nil, err
	}
	t.s.batches.leaveAll(st.refs())
	return st.lost(), nil
}

// do runs f unless the transaction is over, which it is if f fails half-way.
func (t *txWriter) do(ctx context.Context, what string, f func() error) error {
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
	err := f()
	if err == nil {
		return nil
	}
	if refused := (*refusedError)(nil); errors.As(err, &refused) {
		return refused.error
	}
	t.spoil(ctx)
	t.over = fmt.Errorf("pawl/postgres: %s: %w: %w", what, pawl.ErrTxOver, err)
	return t.over
}

// spoilTimeout bounds a statement to a server that may have gone.
const spoilTimeout = time.Second

// spoil makes sure that the transaction can't be committed with a half of a
// call in it, by a statement that fails: there is no such savepoint. If the
// error came from the server or the connection is gone, that is so already.
func (t *txWriter) spoil(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spoilTimeout)
	defer cancel()
	_ = t.run.exec(ctx, "ROLLBACK TO SAVEPOINT pawl_call_failed")
}

// rollBack ends a transaction, whether ctx has ended or not. Where the server does
// not answer, the driver closes the connection, which has the same effect.
func rollBack(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spoilTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// word is the statement by which workers learn of a transaction's commit: at
// most one transaction in a while notifies, the others are tracked. It is nil if
// nobody needs it. InTx tells itself.
func (t *txWriter) word() *word {
	if !t.tell || t.told || t.s.o.PollOnly && !t.s.watch.any() {
		return nil
	}
	if t.s.mayNotify() {
		return t.s.notification()
	}
	return &word{sql: t.s.q.xid}
}

type word struct {
	sql  string
	args []any
	said bool
	xid  string // that the server has answered
}

func (s *Store) notification() *word {
	return &word{sql: s.q.notify, args: []any{[]string{s.note.ch.ready}}}
}

func (w *word) read(row scanner) error {
	if len(w.args) > 0 {
		return nil
	}
	return row.Scan(&w.xid)
}

// note says the last word if something happened.
func (t *txWriter) note(ctx context.Context, e *events, last *word) error {
	if !t.tell {
		t.events.add(e)
		return nil
	}
	if last == nil || e.empty() {
		return nil
	}
	if !last.said {
		if err := t.run.each(ctx, last.read, last.sql, last.args...); err != nil {
			return err
		}
	}
	t.told = true
	if last.xid == "" || t.s.track.add(last.xid) || t.s.o.PollOnly {
		return nil
	}
	n := t.s.notification()
	return t.run.exec(ctx, n.sql, n.args...)
}

// withWord is a runner whose first statement is an insert, after which it says
// the word at once. The insert has no plan that could be of a time when the
// tables were empty, so the driver may keep it prepared; the others follow in
// the writer's own way.
type withWord struct {
	native
	then runner
	tx   pgx.Tx
	word *word
	used bool
}

func (r *withWord) exec(ctx context.Context, sql string, args ...any) error {
	return r.then.exec(ctx, sql, args...)
}

func (r *withWord) each(ctx context.Context, f func(scanner) error, sql string, args ...any) error {
	switch {
	case r.used:
		return r.then.each(ctx, f, sql, args...)
	case r.word == nil:
		r.used = true
		return r.native.each(ctx, f, sql, args...)
	}
	r.used, r.word.said = true, true
	p := new(pipeline)
	p.each(f, sql, args...)
	p.each(r.word.read, r.word.sql, r.word.args...)
	return r.tx.SendBatch(ctx, &p.batch).Close()
}

// mayNotify reports whether the next caller's transaction may notify. It must be
// heard by the watchers of this process too.
func (s *Store) mayNotify() bool {
	if s.o.PollOnly || s.watch.any() && !s.watch.listening.Load() {
		return false
	}
	return s.note.takeTurn(time.Now())
}

// InTx runs f in a transaction at the pool's default isolation, commits it, and
// wakes workers. If f fails, or panics, the transaction is rolled back, and InTx
// returns the error as it is. f is not called twice.
//
// What f writes without w or tx, such as by Enqueue of a [pawl.Queue] that lacks
// its WithTx, is no part of the transaction: it stays after a rollback. It also
// waits for another connection of the pool and for rows that the transaction has
// locked, which can be in vain.
func (s *Store) InTx(ctx context.Context, f func(tx pgx.Tx, w pawl.Writer) error) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	begun := time.Now()
	tx, err := s.pool.Begin(ctx)
	if isCut(err) { // before anything was done
		s.refresh(begun, 0)
		tx, err = s.pool.Begin(ctx)
	}
	if err != nil {
		return explain("begin", err)
	}
	defer rollBack(ctx, tx) // does nothing after a commit
	w := s.Tx(tx).(*txWriter)
	w.tell = false
	if err := f(tx, w); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		if isOver(err) || errors.Is(err, pgx.ErrTxCommitRollback) {
			return fmt.Errorf("pawl/postgres: commit: %w: %w", pawl.ErrTxOver, err)
		}
		return explain("commit", err)
	}
	s.publish(&w.events)
	return nil
}
