package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver of Open

	"github.com/pawlq/pawl"
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
	s.turn.tell, s.turn.long = s.tellLongTx, longTx
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
