package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
)

// Limits of listening.
const (
	// listenCheck is how often a silent connection is asked whether it lives and
	// is still to the server that takes writes.
	listenCheck   = 10 * time.Second
	listenTimeout = 5 * time.Second
	// listenPause, which doubles up to listenMaxPause, is between two attempts to
	// connect.
	listenPause    = 25 * time.Millisecond
	listenMaxPause = 500 * time.Millisecond
	// probeTimeout is how long a NOTIFY may take through what stands between the
	// Store and the server.
	probeTimeout = 2 * time.Second
)

// errDeaf says that a pooler hands connections on between transactions: what was
// asked for on one is told to another.
var errDeaf = errors.New("pawl/postgres: notifications do not come through, as behind a pooler in transaction mode")

// canNeverListen reports whether the server, or what stands before it, does not
// know LISTEN or forbids it.
func canNeverListen(err error) bool {
	switch code(err) {
	case "0A000", "42501", "42601": // not supported, no right, no such statement
		return true
	}
	return errors.Is(err, errDeaf)
}

// listener hears what other processes tell.
type listener struct {
	s    *Store
	conn *pgx.Conn
	last int64 // event that was read; -1 before the first
}

// listen keeps a connection that listens until ctx ends. It warns once of each
// outage, and gives up where listening can't be.
func (s *Store) listen(ctx context.Context, done chan struct{}) {
	defer close(done)
	l := &listener{s: s, last: -1}
	pause, down := listenPause, false // once an outage
	for {
		heard, err := l.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if canNeverListen(err) {
			s.o.Logger.WarnContext(ctx, "pawl/postgres: can't listen; workers poll, as with PollOnly", "err", err)
			<-ctx.Done()
			return
		}
		if heard {
			pause, down = listenPause, false
		}
		if !down {
			s.o.Logger.WarnContext(ctx, "pawl/postgres: no connection that listens; workers poll until there is one", "err", err)
		}
		down = true
		sleep(ctx, pause/2+rand.N(pause))
		pause = min(2*pause, listenMaxPause)
	}
}

// once listens on a new connection until that fails, and reports whether it ever
// listened.
func (l *listener) once(ctx context.Context) (heard bool, err error) {
	if l.conn, err = connect(ctx, l.s.pool); err != nil {
		return false, err
	}
	defer l.hangUp()
	if err := l.begin(ctx); err != nil {
		return false, err
	}
	l.s.watch.listening.Store(true)
	defer l.s.watch.listening.Store(false)
	l.s.watch.send(pawl.Event{Kind: pawl.EventReady}) // for what was missed
	for {
		n, err := l.wait(ctx, listenCheck)
		if err == nil && n == "" {
			err = l.check(ctx)
		}
		if err == nil && n == l.s.note.ch.facts {
			err = l.read(ctx)
		}
		if err != nil {
			return true, err
		}
		if n == l.s.note.ch.ready {
			l.s.watch.send(pawl.Event{Kind: pawl.EventReady})
		}
	}
}

// begin asks the server to tell, and makes sure that it does.
func (l *listener) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	if err := l.check(ctx); err != nil {
		return err
	}
	ch := l.s.note.ch
	for _, name := range []string{ch.ready, ch.facts} {
		if _, err := l.conn.Exec(ctx, "LISTEN "+name, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	if err := l.probe(ctx); err != nil {
		return err
	}
	if err := l.sync(ctx); err != nil {
		return err
	}
	return l.read(ctx)
}

// run sends statements in a way that a pooler can't get wrong.
func (l *listener) run() runner {
	mode := pgx.QueryExecModeExec
	return native{q: l.conn, mode: &mode}
}

// check fails unless the connection lives and is to a server that takes writes:
// after a failover, the others are told of nothing.
func (l *listener) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	var readOnly bool
	err := l.run().each(ctx, func(row scanner) error { return row.Scan(&readOnly) },
		`SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool`)
	if err == nil && readOnly {
		err = fmt.Errorf("%w: it is read-only", ErrServer)
	}
	return err
}

// probe tries out what stands between the Store and the server, if anything
// does: the process on the server is then another than it said at the start.
func (l *listener) probe(ctx context.Context) error {
	var pid uint32
	err := l.run().each(ctx, func(row scanner) error { return row.Scan(&pid) }, "SELECT pg_backend_pid()")
	if err != nil || pid == l.conn.PgConn().PID() {
		return err
	}
	other, err := connect(ctx, l.s.pool)
	if err != nil {
		return err
	}
	defer func() { _ = other.Close(ctx) }()
	if _, err := other.Exec(ctx, "NOTIFY "+l.s.note.ch.ready, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	switch n, err := l.wait(ctx, probeTimeout); {
	case err != nil:
		return err
	case n == "":
		return errDeaf
	}
	return nil
}

// wait returns the channel of the next notification of another process, or ""
// if there is none for some time.
func (l *listener) wait(ctx context.Context, d time.Duration) (channel string, err error) {
	for {
		short, cancel := context.WithTimeout(ctx, d)
		n, err := l.conn.WaitForNotification(short)
		silent := short.Err() != nil && ctx.Err() == nil && !l.conn.IsClosed()
		cancel()
		switch {
		case err == nil && l.s.note.isEcho(n.PID, n.Channel):
		case err == nil:
			return n.Channel, nil
		case silent:
			return "", nil
		default:
			return "", err
		}
	}
}

// sync finds out which event was the last, the first time and after the tables
// were restored.
func (l *listener) sync(ctx context.Context) error {
	var newest int64
	err := l.run().each(ctx, func(row scanner) error { return row.Scan(&newest) }, l.s.q.lastEvent)
	if err == nil && (l.last < 0 || newest < l.last) {
		l.last = newest
	}
	return err
}

// read tells of the events since the last one that was read.
func (l *listener) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	return l.run().each(ctx, func(row scanner) error {
		e, err := l.scan(row)
		if err == nil {
			l.s.watch.send(e)
		}
		return err
	}, l.s.q.eventsAfter, l.last)
}

func (l *listener) scan(row scanner) (e pawl.Event, err error) {
	var (
		kind  int
		id    string
		fence int64
	)
	if err := row.Scan(&l.last, &kind, &e.Queue, &id, &fence); err != nil {
		return e, err
	}
	e.Kind = pawl.EventKind(kind)
	if id != "" {
		e.Ref = pawl.Ref{Queue: e.Queue, Fence: fence}
		err = e.Ref.ID.UnmarshalText([]byte(id))
	}
	return e, err
}

func (l *listener) hangUp() {
	ctx, cancel := context.WithTimeout(context.Background(), listenTimeout)
	defer cancel()
	_ = l.conn.Close(ctx) // nothing more is expected of it
}

// connect opens a connection like those of the pool, outside of it.
func connect(ctx context.Context, from *pgxpool.Pool) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	pool := from.Config()
	config := pool.ConnConfig.Copy()
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, config); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err == nil && pool.AfterConnect != nil {
		if err = pool.AfterConnect(ctx, conn); err != nil {
			_ = conn.Close(ctx) // its error is of no use
		}
	}
	return conn, err
}
