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
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // the driver of Open

	"github.com/pawlq/pawl"
)

// DefaultPrefix begins the names of all tables and indexes.
const DefaultPrefix = "pawl_"

// Synchronous says when a commit waits for the disk.
type Synchronous int

const (
	// Full syncs every commit.
	Full Synchronous = iota
	// Normal syncs now and then: a loss of power, but not a crash of the
	// program, can undo the last commits. The file stays consistent, but a
	// fence may be given twice across the loss.
	Normal
	// Off leaves it to the operating system: a loss of power can damage the
	// file. It is for tests.
	Off
)

// level is the number that SQLite has for s.
func (s Synchronous) level() int { return int(2 - s) }

// Defaults and limits of Options.
const (
	defaultBatchJobs    = 2000    // some 10 ms of writing
	defaultBatchBytes   = 8 << 20 // what one commit adds to the write-ahead log
	defaultPollInterval = 2 * time.Millisecond
	maxPrefixLen        = 40
	maxReaders          = 8 // reads at a time; each connection has a page cache
	idleConns           = 8 // connections that the program's pool keeps
)

// Options are the settings of a Store. The zero value of each is its default.
type Options struct {
	// Prefix begins the names of the tables: a letter, then letters, digits
	// and '_', at most 40. Empty means DefaultPrefix.
	Prefix string

	// Synchronous is set on the connections of Open; with New it is what the
	// program's connections are expected to have, and a weaker setting is
	// logged as a warning.
	Synchronous Synchronous

	// BatchJobs and BatchBytes end the group of calls that share a commit: when
	// it has that many jobs (0 means 2,000) or bytes of payload (0 means 8 MiB).
	// A single call is never split.
	BatchJobs  int
	BatchBytes int

	// PollInterval is how often the file is asked whether another process, or
	// a transaction of the program, has changed it, while somebody watches.
	// One such look takes some microseconds. When nothing has happened for a
	// few looks, Linux tells of the next change instead, and looks become rare,
	// down to one a second; elsewhere the interval becomes seven times as long.
	// 0 means 2 ms.
	PollInterval time.Duration

	// NoMigrate leaves the schema as it is; Open and New then fail with a
	// [pawl.SchemaError] if it is missing or old.
	NoMigrate bool

	// Clock is the storage's clock; nil means time.Now. It is for tests.
	Clock func() time.Time

	// Logger gets warnings; nil means slog.Default().
	Logger *slog.Logger
}

func (o *Options) filled() (*Options, error) {
	f := Options{}
	if o != nil {
		f = *o
	}
	if f.Prefix == "" {
		f.Prefix = DefaultPrefix
	}
	if !regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`).MatchString(f.Prefix) || len(f.Prefix) > maxPrefixLen {
		return nil, &pawl.InvalidError{Field: "Prefix", Limit: "a letter, then letters, digits and '_', at most 40"}
	}
	if f.Synchronous < Full || f.Synchronous > Off {
		return nil, &pawl.InvalidError{Field: "Synchronous", Limit: "Full, Normal or Off"}
	}
	if f.BatchJobs <= 0 {
		f.BatchJobs = defaultBatchJobs
	}
	if f.BatchBytes <= 0 {
		f.BatchBytes = defaultBatchBytes
	}
	if f.PollInterval <= 0 {
		f.PollInterval = defaultPollInterval
	}
	if f.Logger == nil {
		f.Logger = slog.Default()
	}
	return &f, nil
}

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

// Open opens, or creates, the file at path. Its folder must exist. A relative
// path is that at the time of the call, wherever the program goes later. The
// errors are [ErrNotDatabase], also for a folder, [ErrReadOnly], [ErrNoWAL],
// [pawl.ErrSchema], [pawl.ErrInvalid] for the options or a path with a NUL, or
// fs.ErrNotExist for the folder of the file.
func Open(ctx context.Context, path string, o *Options) (*Store, error) {
	f, err := o.filled()
	if err != nil {
		return nil, err
	}
	if path == "" || strings.HasPrefix(path, ":memory:") {
		return nil, fmt.Errorf("pawl/sqlite: open %q: %w: a file is needed", path, ErrNoWAL)
	}
	if path, err = place(path); err != nil {
		return nil, err
	}
	s := newStore(f)
	if err := s.openPools(dsn(path, f.Synchronous)); err != nil {
		return nil, explain("open", err)
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.closePools())
	}
	return s, nil
}

// place is the absolute path of a file, whose folder must exist: connections
// are opened at any time, and the working folder may be another by then.
func place(path string) (string, error) {
	if strings.ContainsRune(path, 0) { // SQLite would stop reading there
		return "", &pawl.InvalidError{Field: "Path", Limit: "without NUL"}
	}
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(filepath.Dir(path))
	}
	if err != nil {
		return "", fmt.Errorf("pawl/sqlite: open: %w", err)
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return "", fmt.Errorf("pawl/sqlite: open %q: %w: it is a folder", path, ErrNotDatabase)
	}
	return path, nil
}

// openPools makes the pools of a file of ours. None has a connection yet.
func (s *Store) openPools(dsn string) (err error) {
	s.own = true
	if s.writes, err = sql.Open("sqlite", dsn); err != nil {
		return err
	}
	if s.reads, err = sql.Open("sqlite", dsn); err != nil {
		return err
	}
	s.reads.SetMaxOpenConns(maxReaders)
	s.reads.SetMaxIdleConns(maxReaders)
	s.db = sql.OpenDB(&connector{dsn: dsn, driver: s.reads.Driver(), s: s})
	s.db.SetMaxIdleConns(idleConns)
	return nil
}

func (s *Store) closePools() error {
	return errors.Join(s.writes.Close(), s.reads.Close(), s.db.Close())
}

// dsn names the file to the driver, with the settings of each connection.
func dsn(path string, sync Synchronous) string {
	v := url.Values{"_txlock": {"immediate"}, "_pragma": {
		"busy_timeout(0)", // see connector
		fmt.Sprintf("synchronous(%d)", sync.level()),
	}}
	escaped := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(filepath.ToSlash(path))
	return "file:" + escaped + "?" + v.Encode()
}

// New uses a database that the program has opened, and puts it in WAL mode if
// it is not. Close leaves db open.
//
// [Store.InTx] is the way to write to the program's tables and enqueue or settle
// in one transaction: it takes its turn among all writers of the Store.
// Transactions and statements that the program runs on db by itself do not:
// they wait as the driver's settings say, and fail with "database is locked" if
// that is not long enough, or at once with the drivers' defaults in some cases.
// So open the file like this with modernc.org/sqlite:
//
//	sql.Open("sqlite", "file:app.db?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)")
//
// and like this with github.com/mattn/go-sqlite3, which syncs no commit unless
// told to:
//
//	sql.Open("sqlite3", "file:app.db?_txlock=immediate&_busy_timeout=10000&_sync=2")
//
// _txlock makes transactions take the write lock when they begin; those that
// begin by reading and write later can fail whatever the timeout. New logs a
// warning of each of the three settings that it finds missing.
//
// The Store keeps one connection of the pool for itself while it is open; if
// the pool has only one, it takes and gives back that one for each commit. Reads
// take one more for as long as they last. So a program must not call the Store's
// reads while it holds all other connections.
func New(ctx context.Context, db *sql.DB, o *Options) (*Store, error) {
	f, err := o.filled()
	if err != nil {
		return nil, err
	}
	s := newStore(f)
	s.db, s.writes, s.reads = db, db, db
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func newStore(o *Options) *Store {
	s := &Store{o: o, q: newStatements(o.Prefix)}
	if o.Clock == nil {
		o.Clock = time.Now
		started := time.Now()
		s.steady = func() time.Duration { return time.Since(started) }
	}
	s.watch.gone = make(chan struct{})
	s.writer = &writer{s: s, wake: make(chan struct{}, 1), late: make(chan struct{}), closed: make(chan struct{})}
	return s
}

func (s *Store) start(ctx context.Context) error {
	if err := untilFree(ctx, func() error { return s.setUp(ctx) }); err != nil {
		return explain("open", err)
	}
	s.writer.ctx = context.WithoutCancel(ctx)
	s.writer.log.path = s.file + "-wal"
	go s.writer.loop() // Close waits for it
	return nil
}

// setUp makes sure of the file's mode and schema.
func (s *Store) setUp(ctx context.Context) error {
	conn, err := s.writes.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	run := plain{conn}
	if err := prepareFile(ctx, run); err != nil {
		return err
	}
	if s.o.NoMigrate {
		err = checkVersion(ctx, run, s.o.Prefix)
	} else {
		err = migrate(ctx, run, s.o.Prefix, Migrations())
	}
	if err != nil {
		return err
	}
	if err := s.checkWritable(ctx, conn); err != nil {
		return err
	}
	if s.file, err = fileOf(ctx, run); err != nil {
		return err
	}
	return s.checkSettings(ctx, run)
}

// checkWritable asks for the write lock once. A file that is busy is no reason
// to wait here: someone can write it.
func (s *Store) checkWritable(ctx context.Context, conn *sql.Conn) error {
	if _, err := (plain{conn}).exec(ctx, s.q.lock); err != nil && !isBusy(err) {
		return err
	}
	return nil
}

// prepareFile puts the file in WAL mode, and a new one in the mode that lets it
// shrink.
func prepareFile(ctx context.Context, run plain) error {
	pages, err := number(ctx, run, pageCount)
	if err == nil && pages == 0 {
		_, err = run.exec(ctx, setAutoVacuum)
	}
	if err != nil {
		return err
	}
	mode, err := text(ctx, run, journalMode)
	if err == nil && mode != "wal" {
		mode, err = text(ctx, run, setJournalMode)
	}
	if err == nil && mode != "wal" {
		err = fmt.Errorf("%w: it stays %q", ErrNoWAL, mode)
	}
	return err
}

// untilFree repeats f while the file is busy.
func untilFree(ctx context.Context, f func() error) error {
	for started := time.Now(); ; pause(time.Since(started)) {
		err := f()
		if !isBusy(err) || isOldSnapshot(err) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

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
