// Package postgres keeps jobs in PostgreSQL 13 or newer, beside the program's own
// tables, so that they can be enqueued and settled in its transactions.
//
// [New] works on a pool of connections that the program has made. [Store.Tx]
// takes a transaction of pgx, [Store.SQLTx] one of database/sql or of what is
// built on it, and [Store.InTx] makes one:
//
//	pool, err := pgxpool.New(ctx, dsn)
//	...
//	store, err := postgres.New(ctx, pool, nil) // makes or updates its tables
//	...
//	q := pawl.New(store, nil)
//	err = store.InTx(ctx, func(tx pgx.Tx, w pawl.Writer) error {
//		if _, err := tx.Exec(ctx, "INSERT INTO users (id) VALUES (7)"); err != nil {
//			return err
//		}
//		_, err := q.WithTx(w).Enqueue(ctx, task.New(Welcome{UserID: 7}))
//		return err
//	})
//
// # Durability
//
// What a method has returned without error is as durable as the server's commits
// are. With synchronous_commit off, a crash of the server can undo the last
// ones; New warns of that.
//
// # Connections
//
// No connection is held between calls. Two are opened outside the pool: by Watch, to
// listen, and by New while it builds an index without stopping writers. Behind a pooler that hands connections on after each
// transaction, such as PgBouncer, set PollOnly, and in the pool's configuration
// pgx.QueryExecModeExec: nothing then depends on the session.
//
// When the server has ended a connection, or refuses to write as one that is no longer
// the primary does, the Store calls the pool's Reset, once for all calls that were under
// way: connections that the program uses then are closed when it returns them.
//
// # Wake-ups
//
// What happens is told to the watchers of the same Store at once, and to other
// processes by NOTIFY, without a payload and at most every 5 ms for all queues
// together. Cancels and pauses go through a small table. A caller's transaction
// notifies only if none of this process did in the last 50 ms, since such commits
// take turns on the whole server; for others the Store asks every few
// milliseconds whether they have been committed, in one statement for all and
// less often the longer they take. After 5 minutes it leaves them to polling.
//
// A listener that loses its connection gets a new one by itself, and tells that
// anything may have happened. Where LISTEN is refused, or a pooler keeps
// notifications back, it warns once and workers poll.
//
// # Single jobs
//
// Calls of Enqueue with one request each share inserts when more than two are
// under way, see Options.BatchJobs. One whose ID or unique key an open
// transaction holds delays no other, and holds no connection while it waits.
//
// # Open transactions
//
// A job that an open transaction has settled stays locked until that ends. It
// delays nothing: heartbeats, rescues and the settling of other jobs pass it by.
//
// # State
//
// The contract of [pawl.Storage] is complete. It is tested with each change on
// PostgreSQL 15, through crashes of the server, cut commits and PgBouncer too. An
// earlier state was run by hand on 13, 14, 16, 17 and 18. While a transaction or a backup holds a
// snapshot, the rows that jobs leave behind can't be vacuumed: new jobs of priority
// 0 are still claimed fast, all others have the more to pass over the longer it
// lasts.
//
// A claim first promotes all scheduled jobs of its queue that are due, 1,000 in
// a transaction. If very many become due at once, the first claims take as long
// as that does.
package postgres

import (
	"context"
	"log/slog"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/excess"
	"github.com/pawlq/pawl/internal/pace"
)

// Where the tables are by default.
const (
	DefaultSchema = "public"
	DefaultPrefix = "pawl_"
)

// maxPrefixLen leaves room for the longest name in the 63 bytes of an
// identifier.
const maxPrefixLen = 40

// Options are the settings of a Store. The zero value of each is its default.
type Options struct {
	// Schema is where the tables are. It must exist. Empty means DefaultSchema.
	// The search_path plays no role.
	Schema string

	// Prefix begins the names of the tables: a lower-case letter, then lower-case
	// letters, digits and '_', at most 40. Empty means DefaultPrefix. In one schema
	// no prefix may be another one followed by the name of a table and '_', such
	// as pawl_job_ beside pawl_: indexes have such names.
	Prefix string

	// NoMigrate leaves the schema as it is; New then fails with a
	// [pawl.SchemaError] if it is missing or old.
	NoMigrate bool

	// PollOnly does without LISTEN and NOTIFY, which need a session. Workers
	// then learn of what other processes did when they next poll; of what this
	// Store did they learn at once, in callers' transactions too.
	PollOnly bool

	// BatchJobs and BatchBytes bound the calls of Enqueue with one request each
	// that share an insert. They do when more than two are under way at once; the
	// others wait for one of those to end. Calls that share an insert share no
	// fate. 0 means 1,000 jobs and 8 MiB, BatchJobs 1 that none do.
	BatchJobs  int
	BatchBytes int

	// Clock replaces the server's clock if it is not nil. It is for tests.
	Clock func() time.Time

	// Logger gets warnings; nil means slog.Default().
	Logger *slog.Logger
}

// What the names of schemas and prefixes look like.
var (
	namePattern   = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)
	prefixPattern = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
)

func (o *Options) filled() (*Options, error) {
	f := Options{}
	if o != nil {
		f = *o
	}
	if f.Schema == "" {
		f.Schema = DefaultSchema
	}
	if f.Prefix == "" {
		f.Prefix = DefaultPrefix
	}
	if !prefixPattern.MatchString(f.Prefix) || len(f.Prefix) > maxPrefixLen {
		return nil, &pawl.InvalidError{Field: "Prefix", Limit: "a lower-case letter, then those, digits and '_', at most 40"}
	}
	if !namePattern.MatchString(f.Schema) || len(f.Schema) > maxNameLen {
		return nil, &pawl.InvalidError{Field: "Schema", Limit: "lower-case letters, digits and '_', at most 63"}
	}
	if f.BatchJobs <= 0 {
		f.BatchJobs = defaultBatchJobs
	}
	if f.BatchBytes <= 0 {
		f.BatchBytes = defaultBatchBytes
	}
	if f.Logger == nil {
		f.Logger = slog.Default()
	}
	return &f, nil
}

// maxNameLen is the length of identifiers in PostgreSQL as it is built by
// default.
const maxNameLen = 63

// Store is a [pawl.Storage] on one PostgreSQL schema. It also implements
// [pawl.Watcher] and [pawl.Cycler]. Make one with [New] and end it with Close.
type Store struct {
	o     *Options
	q     *statements
	pool  *pgxpool.Pool
	watch watchers
	note  notifier
	track tracker
	group groups
	round excess.Round[finalPlace]
	pace  pace.Pace

	batches   batches
	lanes     lanes
	refreshes refreshes
	// explicit is whether transactions must say that they are READ COMMITTED.
	explicit atomic.Bool

	closing sync.Once
}

var (
	_ pawl.Storage = (*Store)(nil)
	_ pawl.Watcher = (*Store)(nil)
	_ pawl.Cycler  = (*Store)(nil)
)

// New returns a Store on the database of pool, and brings its tables up to date
// unless Options.NoMigrate is set. Close leaves pool open. The errors are
// [ErrServer], [pawl.SchemaError], ErrInvalid for options, or what the driver
// says.
func New(ctx context.Context, pool *pgxpool.Pool, o *Options) (*Store, error) {
	f, err := o.filled()
	if err != nil {
		return nil, err
	}
	s := &Store{o: f, q: newStatements(f), pool: pool}
	if err := retry(ctx, func() error { return s.setUp(ctx) }); err != nil {
		return nil, explain("open", err)
	}
	s.watch.gone = make(chan struct{})
	s.note.start(s)
	s.track.start(s)
	s.group.start(s)
	if err := retry(ctx, func() error { return s.checkSystem(ctx) }); err != nil {
		_ = s.Close() // never fails
		return nil, explain("open", err)
	}
	return s, nil
}

func (s *Store) setUp(ctx context.Context) error {
	if err := s.checkServer(ctx); err != nil {
		return err
	}
	if !s.o.NoMigrate {
		return migrate(ctx, s.pool, s.o, Migrations())
	}
	return checkVersion(ctx, s.pool, s.o)
}

// clock is the test clock in microseconds, or nil, which makes statements take
// the server's time.
func (s *Store) clock() *int64 {
	if s.o.Clock == nil {
		return nil
	}
	us := s.o.Clock().UnixMicro()
	return &us
}

// Pool returns the pool that the Store works on.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// Schema returns the name of the schema that the tables are in.
func (s *Store) Schema() string { return s.o.Schema }

// Prefix returns what the names of the tables begin with.
func (s *Store) Prefix() string { return s.o.Prefix }

// Close ends the Store: watchers return, and later calls fail with
// [pawl.ErrClosed]. It waits up to 10 s for calls of Enqueue with one request
// that are under way. The pool stays open.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.group.stop()
		close(s.watch.gone)
		s.track.stop() // which may have something to tell
		s.note.stop()
	})
	return nil
}

// open fails if the Store is closed or ctx is over.
func (s *Store) open(ctx context.Context) error {
	select {
	case <-s.watch.gone:
		return pawl.ErrClosed
	default:
		return ctx.Err()
	}
}

// call runs a call of the contract on the Store's own connections and explains
// its error.
func call[T any](ctx context.Context, s *Store, what string, f func() (T, error)) (T, error) {
	var none T
	if err := s.open(ctx); err != nil {
		return none, err
	}
	begun := time.Now()
	result, err := f()
	if err != nil {
		if isBusy(err) {
			return result, err
		}
		if code(err) == codeReadOnly || isCut(err) {
			s.refresh(begun, refreshPause) // new connections find the server that is there now
		}
		return none, explain(what, err)
	}
	return result, nil
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
// once, what others do within some milliseconds, or not at all with PollOnly.
func (s *Store) Watch(ctx context.Context, f func(pawl.Event)) error {
	return s.watchEvents(ctx, f)
}
