// Package sqlite keeps jobs in a SQLite file, for one or several processes on
// one machine.
//
// [Open] opens a file with the driver modernc.org/sqlite, which needs no C.
// [New] uses a database that the program has opened already, with that driver
// or with github.com/mattn/go-sqlite3, so that jobs lie beside the program's
// own tables and can be enqueued and settled in its transactions, see
// [Store.InTx] and [Store.Tx].
//
// # Durability
//
// With the default, [Full], what a method has returned without error survives
// the loss of power, as far as the disk keeps what it has synced. All calls
// that arrive while a commit is under way share the next, so that many
// concurrent callers cost few syncs.
//
// # One writer at a time
//
// SQLite lets one transaction write at a time, over all processes. In this
// process all who want to write stand in one line, in order of arrival: the
// calls of the Store, which share a turn, [Store.InTx], and what the program
// does through [Store.DB]. Among processes each asks again every now and then
// until it has the lock. A call waits until its context ends; "database is
// locked" never comes out of the Store's own methods.
//
// But a transaction that has written and stays open delays everything: no job
// is enqueued, claimed, extended or settled meanwhile. Keep such transactions
// short, and do slow work before they begin. The same goes for a process that is
// stopped (by a debugger, SIGSTOP or a frozen container) in the middle of a
// commit: SQLite can't take the lock from it, so the writing of all processes
// waits until it goes on or ends. Nothing else is held up: calls give up
// when their contexts end, reads go on, and if the process is killed its lock is
// free at once and what it had not committed is gone.
//
// A lease that ends while this process can't write, or soon after, lasts longer
// by its length, at most 10 s, so that its heartbeat can come through. (The
// length of a lease that was extended and is not the job's own is not kept: it
// counts as long as from the claim to the lease's end.) A Store
// that has not tried to write meanwhile does not know of it, and may give
// such a lease away. The same grace have leases that end by a step of the
// wall clock or while the machine sleeps.
//
// Reads ([Store.Get], [Store.List], [Store.Count]) see the file as it is at one
// moment. They are never blocked and block nobody.
//
// # Order
//
// Claims come in exact order, unless more than 10,000 scheduled jobs of the
// asked queues have become due since the last claim or sweep.
package sqlite

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/excess"
)

// Store is a [pawl.Storage] on one SQLite file. It also implements
// [pawl.Watcher] and [pawl.Cycler]. Make one with [Open] or [New] and end it
// with Close.
type Store struct {
	o      *Options
	q      *statements
	own    bool
	steady func() time.Duration // a clock that nobody sets; nil with a clock of the caller
	file   string               // its path, as SQLite says
	writer *writer
	watch  watchers
	turn   turn // of whoever of this process writes
	round  excess.Round[finalPlace]

	// The pools: the program's, that of the writer and of InTx, and that of
	// reads. They are three for a file of ours, so that whatever the program
	// does with its own, the Store never waits for a connection.
	db, writes, reads *sql.DB
	opened            atomic.Int32 // connections of db that have opened the file

	closing sync.Once
}

var (
	_ pawl.Storage = (*Store)(nil)
	_ pawl.Watcher = (*Store)(nil)
	_ pawl.Cycler  = (*Store)(nil)
)

// DB returns the database that New was given. If the Store was made by Open, it
// is a pool of its own for the program's tables in the same file, closed with
// the Store: transactions begun on it may write at once (BEGIN IMMEDIATE) and
// take turns with the Store, and statements outside of one wait for the file
// too, both until their context ends. Of a text of several statements each waits
// by itself, at most 10 s, and those before one that fails have been run; use
// a transaction for all or nothing. Only one transaction of a process can
// write: who has one open and waits for another waits in vain.
func (s *Store) DB() *sql.DB { return s.db }

// shared reports whether the pool has no connection for the writer alone.
func (s *Store) shared() bool { return !s.own && s.db.Stats().MaxOpenConnections == 1 }

// now is the storage's clock in microseconds.
func (s *Store) now() int64 { return s.o.Clock().UnixMicro() }

// Close ends the Store after the calls that are under way. Later calls fail
// with [pawl.ErrClosed], and so do those under way that can't write within 10 s,
// because a transaction or another process holds the file.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		close(s.watch.gone)
		s.writer.close()
		if s.own {
			err = s.closePools()
		}
	})
	return explain("close", err)
}

func (s *Store) open() error {
	select {
	case <-s.watch.gone:
		return pawl.ErrClosed
	default:
		return nil
	}
}

// explainRead is explain for a read that Close may have overtaken.
func (s *Store) explainRead(what string, err error) error {
	if err != nil && s.open() != nil {
		return pawl.ErrClosed
	}
	return explain(what, err)
}

// Enqueue implements [pawl.Writer].
func (s *Store) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	receipts, err := s.enqueue(ctx, reqs)
	return receipts, explain("enqueue", err)
}

// Settle implements [pawl.Writer].
func (s *Store) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	lost, err := s.settle(ctx, outcomes)
	return lost, explain("settle", err)
}

// Claim implements [pawl.Storage].
func (s *Store) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	c, err := s.claim(ctx, spec)
	return c, explain("claim", err)
}

// Cycle implements [pawl.Cycler].
func (s *Store) Cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) ([]pawl.Ref, pawl.Claimed, error) {
	lost, c, err := s.cycle(ctx, outcomes, spec)
	return lost, c, explain("cycle", err)
}

// Extend implements [pawl.Storage].
func (s *Store) Extend(ctx context.Context, renewals []pawl.Renewal) ([]pawl.Ref, error) {
	lost, err := s.extend(ctx, renewals)
	return lost, explain("extend", err)
}

// Sweep implements [pawl.Storage].
func (s *Store) Sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	swept, err := s.sweep(ctx, spec)
	return swept, explain("sweep", err)
}

// Change implements [pawl.Admin].
func (s *Store) Change(ctx context.Context, c pawl.Change) ([]pawl.Changed, error) {
	changed, err := s.change(ctx, c)
	return changed, explain("change", err)
}

// Configure implements [pawl.Admin].
func (s *Store) Configure(ctx context.Context, queue string, set pawl.QueueSettings) error {
	return explain("configure", s.configure(ctx, queue, set))
}

// Get implements [pawl.Admin].
func (s *Store) Get(ctx context.Context, queue string, ids ...pawl.ID) ([]*pawl.Job, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	jobs, err := s.get(ctx, queue, ids)
	return jobs, s.explainRead("get", err)
}

// List implements [pawl.Admin].
func (s *Store) List(ctx context.Context, spec pawl.ListSpec) (pawl.Page, error) {
	if err := s.open(); err != nil {
		return pawl.Page{}, err
	}
	page, err := s.list(ctx, spec)
	if err != nil {
		return pawl.Page{}, s.explainRead("list", err)
	}
	return page, nil
}

// Count implements [pawl.Admin].
func (s *Store) Count(ctx context.Context, queues ...string) ([]pawl.QueueStats, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	stats, err := s.count(ctx, queues)
	return stats, s.explainRead("count", err)
}

// Watch implements [pawl.Watcher]. What happens through this Store is told at
// once; what others do to the file, within the poll interval and as an
// EventReady without a queue.
func (s *Store) Watch(ctx context.Context, f func(pawl.Event)) error {
	return s.watchEvents(ctx, f)
}
