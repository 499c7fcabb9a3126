// Package mysql keeps jobs in MariaDB 10.6 or newer, or MySQL 8.0, beside the
// program's own tables, so that they can be enqueued and settled in its
// transactions.
//
// [New] works on a database that the program has opened with the driver
// github.com/go-sql-driver/mysql. [Store.Tx] takes a transaction of database/sql,
// [Store.SQLTx] one of what is built on it, and [Store.InTx] makes one.
//
// # Durability
//
// What a method has returned without error is as durable as the server's commits
// are. With innodb_flush_log_at_trx_commit other than 1 a crash of the server or
// the machine can undo the last ones; New warns of that.
//
// # Connections
//
// No connection is held between calls, and no setting of one is changed: the
// Store's own transactions are READ COMMITTED, whatever the server's default is.
// The settings interpolateParams, clientFoundRows, multiStatements, parseTime, loc and
// charset of the driver play no role. New refuses connections at READ UNCOMMITTED, with
// autocommit=0, sql_safe_updates=1, unique_checks=0, a completion_type other than
// NO_CHAIN, a sql_select_limit below 10,000, or EMPTY_STRING_IS_NULL in sql_mode. It
// looks at one of the pool, so all should be alike; and those of the transactions given
// to SQLTx should be, too.
//
// # Wake-ups
//
// The server has no notifications. What happens through a Store is told to its
// watchers at once. That another process has enqueued jobs is noticed within
// Options.PollInterval, or ten times that if nothing has happened for a while;
// all else that others do, and jobs of transactions that stayed open while
// others committed, when workers poll.
//
// # Open transactions
//
// A job that an open transaction has settled stays locked until that ends.
// Heartbeats, rescues, sweeps, claims and the settling of other jobs pass it by. A job
// whose ID an open transaction has enqueued again is not deleted before that ends.
// An enqueue of the same ID or unique key waits for it, without a connection on
// MariaDB unless it replaces or has a limit of depth; so does a change by hand, as long
// as the server's innodb_lock_wait_timeout at a time.
//
// Other enqueues do not wait, with two exceptions at REPEATABLE READ and all of it
// at SERIALIZABLE, where each read locks: a transaction whose snapshot shows a job
// that is gone when it settles it may hold up all enqueues, and one that has met a
// key which its snapshot does not show those of the keys right before it.
//
// # Order
//
// A single claimer gets jobs in exact order. Claims that are under way together
// begin at different batches of a queue, and pass by jobs that others have locked.
// If more than 10,000 scheduled jobs
// of a queue have become due since the last claim or sweep, jobs may come out of
// order.
//
// # State
//
// The contract of [pawl.Storage] is complete. It is tested with each change on
// MariaDB 10.11, through crashes of the server too. MySQL has not been run: claims
// take another way there, which is tested on MariaDB. The server must accept
// packets of 8 MiB (max_allowed_packet), and larger ones for larger payloads.
package mysql

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/excess"
	"github.com/pawlq/pawl/internal/pace"
)

// Store is a [pawl.Storage] on tables of one database. It also implements
// [pawl.Watcher] and [pawl.Cycler]. Make one with [New] and end it with Close.
type Store struct {
	o     *Options
	db    *sql.DB
	watch watchers
	plain groups // calls that share inserts
	keyed groups // and those with unique keys
	round excess.Round[place]
	pace  pace.Pace

	mariaDB   bool // the server is no MySQL
	window    window
	slowUntil atomic.Int64 // in Unix nanoseconds: when claims may go the fast way again

	closing sync.Once
}

var (
	_ pawl.Storage = (*Store)(nil)
	_ pawl.Watcher = (*Store)(nil)
	_ pawl.Cycler  = (*Store)(nil)
)

// New returns a Store on db, and brings its tables up to date unless
// Options.NoMigrate is set. Close leaves db open. The errors are [ErrServer],
// [pawl.SchemaError], ErrInvalid for options, or what the driver says.
func New(ctx context.Context, db *sql.DB, o *Options) (*Store, error) {
	f, err := o.filled()
	if err != nil {
		return nil, err
	}
	s := &Store{o: f, db: db}
	s.watch.gone = make(chan struct{})
	if err := s.setUp(ctx); err != nil {
		return nil, explain("open", err)
	}
	s.plain.start(s)
	s.keyed.start(s)
	return s, nil
}

func (s *Store) setUp(ctx context.Context) error {
	if err := s.checkServer(ctx); err != nil {
		return err
	}
	if !s.o.NoMigrate {
		return migrate(ctx, s.db, s.o, Migrations())
	}
	return checkVersion(ctx, s.db, s.o.Prefix)
}

// DB returns the database that the Store works on.
func (s *Store) DB() *sql.DB { return s.db }

// Prefix returns what the names of the tables begin with.
func (s *Store) Prefix() string { return s.o.Prefix }

// Close ends the Store: watchers return, and later calls fail with
// [pawl.ErrClosed]. It waits up to 10 s for calls of Enqueue with one request
// that are under way. The database stays open.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.plain.stop()
		s.keyed.stop()
		close(s.watch.gone)
	})
	return nil
}

// call runs a call of the contract on the Store's own connections and explains
// its error.
func call[T any](ctx context.Context, s *Store, what string, f func() (T, error)) (T, error) {
	var none T
	if err := s.open(ctx); err != nil {
		return none, err
	}
	result, err := f()
	switch {
	case err == nil:
		return result, nil
	case isBusy(err):
		return result, err
	case ctx.Err() != nil:
		return none, explain(what, withCause(ctx.Err(), err))
	}
	return none, explain(what, err)
}

// Enqueue implements [pawl.Writer].
func (s *Store) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	return call(ctx, s, "enqueue", func() ([]pawl.Receipt, error) { return s.enqueue(ctx, reqs) })
}

// Settle implements [pawl.Writer].
func (s *Store) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	return call(ctx, s, "settle", func() ([]pawl.Ref, error) { return s.settle(ctx, outcomes) })
}

// Claim implements [pawl.Storage].
func (s *Store) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	return call(ctx, s, "claim", func() (pawl.Claimed, error) { return s.claim(ctx, spec) })
}

// Cycle implements [pawl.Cycler].
func (s *Store) Cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) ([]pawl.Ref, pawl.Claimed, error) {
	type results struct {
		lost []pawl.Ref
		got  pawl.Claimed
	}
	r, err := call(ctx, s, "cycle", func() (r results, err error) {
		r.lost, r.got, err = s.cycle(ctx, outcomes, spec)
		return r, err
	})
	return r.lost, r.got, err
}

// Extend implements [pawl.Storage].
func (s *Store) Extend(ctx context.Context, renewals []pawl.Renewal) ([]pawl.Ref, error) {
	return call(ctx, s, "extend", func() ([]pawl.Ref, error) { return s.extend(ctx, renewals) })
}

// Sweep implements [pawl.Storage].
func (s *Store) Sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	var swept pawl.Swept // also with an error
	_, err := call(ctx, s, "sweep", func() (_ struct{}, err error) {
		swept, err = s.sweep(ctx, spec)
		return struct{}{}, err
	})
	return swept, err
}

// Change implements [pawl.Admin].
func (s *Store) Change(ctx context.Context, c pawl.Change) ([]pawl.Changed, error) {
	return call(ctx, s, "change", func() ([]pawl.Changed, error) { return s.change(ctx, c) })
}

// Configure implements [pawl.Admin].
func (s *Store) Configure(ctx context.Context, queue string, set pawl.QueueSettings) error {
	_, err := call(ctx, s, "configure", func() (struct{}, error) { return struct{}{}, s.configure(ctx, queue, set) })
	return err
}

// Get implements [pawl.Admin].
func (s *Store) Get(ctx context.Context, queue string, ids ...pawl.ID) ([]*pawl.Job, error) {
	return call(ctx, s, "get", func() ([]*pawl.Job, error) { return s.get(ctx, queue, ids) })
}

// List implements [pawl.Admin].
func (s *Store) List(ctx context.Context, spec pawl.ListSpec) (pawl.Page, error) {
	return call(ctx, s, "list", func() (pawl.Page, error) { return s.list(ctx, spec) })
}

// Count implements [pawl.Admin].
func (s *Store) Count(ctx context.Context, queues ...string) ([]pawl.QueueStats, error) {
	return call(ctx, s, "count", func() ([]pawl.QueueStats, error) { return s.count(ctx, queues) })
}

// Watch implements [pawl.Watcher]. What happens through this Store is told at
// once, what other processes enqueue within the poll interval.
func (s *Store) Watch(ctx context.Context, f func(pawl.Event)) error {
	return s.watchEvents(ctx, f)
}
