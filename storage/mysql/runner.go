package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/pawlq/pawl"
)

// Querier is what [Store.SQLTx] needs of a transaction: a *sql.Tx, or one of a
// package built on database/sql.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// scanner is a row.
type scanner interface{ Scan(dest ...any) error }

// batch is what one call does on one connection, mostly in a transaction.
type batch struct {
	ctx     context.Context
	s       *Store
	run     Querier
	foreign bool  // in a caller's transaction, where it waits for locks
	fast    bool  // claims and acks may go the fast way
	noWait  bool  // fails with errLocked instead of waiting for a lock
	latest  bool  // reads what is committed, not what the snapshot of a caller's transaction holds
	now     int64 // by the storage's clock; 0 until it is known
	events  events
}

func (s *Store) newBatch(ctx context.Context, run Querier) *batch {
	b := &batch{ctx: ctx, s: s, run: run}
	if s.o.Clock != nil {
		b.now = s.o.Clock().UnixMicro()
	}
	return b
}

// sql begins a statement.
func (b *batch) sql(start string) *text {
	t := &text{prefix: b.s.o.Prefix}
	if b.noWait {
		t.add(noWait)
	}
	return t.add(start)
}

func (b *batch) result(t *text) (res sql.Result, err error) {
	err = b.send(func(ctx context.Context) (err error) {
		res, err = b.run.ExecContext(ctx, string(t.buf), t.args...)
		return err
	})
	return res, err
}

// send runs a statement.
func (b *batch) send(f func(ctx context.Context) error) error {
	if b.foreign {
		return guarded(b.ctx, f)
	}
	err := f(b.ctx)
	if b.noWait && code(err) == codeLockTimeout {
		return errLocked
	}
	return err
}

func (b *batch) exec(t *text) (affected int64, err error) {
	res, err := b.result(t)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// each calls f with each row.
func (b *batch) each(t *text, f func(scanner) error) error {
	return b.send(func(ctx context.Context) error {
		rows, err := b.run.QueryContext(ctx, string(t.buf), t.args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := f(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// records loads the records that a query gives.
func (b *batch) records(t *text) (found []*record, err error) {
	err = b.each(t, func(row scanner) error {
		r := new(record)
		found = append(found, r)
		return r.scan(row)
	})
	return found, err
}

// column returns the one column that a query gives.
func column[T any](b *batch, t *text) (all []T, err error) {
	err = b.each(t, func(row scanner) error {
		var v T
		err := row.Scan(&v)
		all = append(all, v)
		return err
	})
	return all, err
}

// number returns the one number that a query gives; 0 for NULL and for no row.
func (b *batch) number(t *text) (int64, error) {
	all, err := column[sql.NullInt64](b, t)
	if err != nil || len(all) == 0 {
		return 0, err
	}
	return all[0].Int64, nil
}

// serverNow is the server's time whatever the session's time zone is.
const serverNow = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

// time appends the present time.
func (b *batch) time(t *text) *text {
	if b.now == 0 {
		return t.add(serverNow)
	}
	return t.num(b.now)
}

// lookAtClock makes sure that the time is known.
func (b *batch) lookAtClock() (err error) {
	if b.now == 0 {
		b.now, err = b.number(b.sql("SELECT " + serverNow))
	}
	return err
}

// alone runs f outside of a transaction: it is for one statement that writes, or
// for several that read.
func (s *Store) alone(ctx context.Context, f func(b *batch) error) error {
	return retry(ctx, func() error { return s.onConn(ctx, func(c *sql.Conn) error { return f(s.newBatch(ctx, c)) }) })
}

// inTx runs f in a transaction of the Store's own, and again if that meets a
// conflict. Each statement sees what others have committed before it, whatever
// the server's default is. What f has learned goes with it if it is run again.
func (s *Store) inTx(ctx context.Context, f func(b *batch) error) error {
	return s.inTxAt(ctx, "READ COMMITTED", "START TRANSACTION", f)
}

// reading runs f on the tables as they are at one moment.
func (s *Store) reading(ctx context.Context, f func(b *batch) error) error {
	return s.inTxAt(ctx, "REPEATABLE READ", "START TRANSACTION READ ONLY", f)
}

func (s *Store) inTxAt(ctx context.Context, level, start string, f func(b *batch) error) error {
	var events events
	err := retry(ctx, func() error {
		return s.onConn(ctx, func(c *sql.Conn) error {
			b := s.newBatch(ctx, c)
			err := transact(ctx, c, level, start, func() error { return f(b) })
			events = b.events
			return err
		})
	})
	if err == nil {
		s.watch.publish(&events)
	}
	return err
}

// transact runs f in a transaction. It is made by statements, for a [sql.Tx] waits for a
// server that does not answer to COMMIT, whether ctx has ended or not.
func transact(ctx context.Context, c *sql.Conn, level, start string, f func() error) error {
	if _, err := c.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL "+level); err != nil {
		return err
	}
	if _, err := c.ExecContext(ctx, start); err != nil {
		throwAway(c) // the level would be that of its next transaction
		return err
	}
	if err := f(); err != nil {
		undo(ctx, c)
		return err
	}
	if _, err := c.ExecContext(ctx, "COMMIT"); err != nil {
		undo(ctx, c)
		return &commitError{err}
	}
	return nil
}

// undo rolls the transaction of a connection back, whether ctx has ended or not.
func undo(ctx context.Context, c *sql.Conn) {
	ctx, cancel := outlasting(ctx)
	defer cancel()
	if _, err := c.ExecContext(ctx, "ROLLBACK"); err != nil {
		throwAway(c)
	}
}

// commitError is that of a commit. What became of it is not known, unless the
// server has answered that it was undone.
type commitError struct{ err error }

func (e *commitError) Error() string { return "commit: " + e.err.Error() }

func (e *commitError) Unwrap() error { return e.err }

// onConn runs f on a connection of the pool, which is thrown away if it leads to
// a server that takes no writes any more: another one may find the server that
// does.
func (s *Store) onConn(ctx context.Context, f func(c *sql.Conn) error) error {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { release(c, err) }()
	err = f(c)
	return err
}

// release gives a connection back, unless err says that its server takes no
// writes.
func release(c *sql.Conn, err error) {
	if isReadOnly(err) {
		throwAway(c)
	}
	_ = c.Close()
}

// throwAway keeps a connection from going back to the pool.
func throwAway(c *sql.Conn) { _ = c.Raw(func(any) error { return driver.ErrBadConn }) }

// open is the error of calls after Close, or whose context is over.
func (s *Store) open(ctx context.Context) error {
	select {
	case <-s.watch.gone:
		return pawl.ErrClosed
	default:
		return ctx.Err()
	}
}

// events are what a batch will have made true once it is committed.
type events struct {
	ready map[string]int64 // queue: in how many microseconds the first job becomes due
	other []pawl.Event
}

// due notes that a job of the queue can be claimed at a time.
func (b *batch) due(queue string, at int64) { b.events.dueIn(queue, max(0, at-b.now)) }

// dueIn notes that a job of the queue can be claimed after some microseconds.
func (e *events) dueIn(queue string, in int64) {
	if old, ok := e.ready[queue]; ok && old <= in {
		return
	}
	if e.ready == nil {
		e.ready = make(map[string]int64)
	}
	e.ready[queue] = in
}

// ended notes that a claim was ended by someone other than its worker.
func (e *events) ended(ref pawl.Ref) {
	e.other = append(e.other, pawl.Event{Kind: pawl.EventEnded, Queue: ref.Queue, Ref: ref})
}

func (e *events) add(o *events) {
	for queue, in := range o.ready {
		e.dueIn(queue, in)
	}
	e.other = append(e.other, o.other...)
}

var errNoRow = errors.New("pawl/mysql: the server returned no row")
