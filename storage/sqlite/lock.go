package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pawlq/pawl"
)

// Limits of waiting for the write lock.
const (
	// busyPause to busyPauseMax is how long it sleeps before it asks for the
	// write lock again. SQLite's own busy handler sleeps up to 100 ms and
	// starves one of two processes that write all the time.
	busyPause    = 100 * time.Microsecond
	busyPauseMax = 2 * time.Millisecond
	// graceWait is the shortest wait for the write lock after which leases get
	// a grace: heartbeats may have been held up too. A commit of another
	// process is shorter.
	graceWait = 50 * time.Millisecond
	// connWait is how long it waits for a connection of the pool at a time.
	connWait = 100 * time.Millisecond
	// writerCache is the page cache of its connection to a file of ours in KiB,
	// instead of SQLite's 2,000: the ends of all indexes and of the table stay
	// in memory from commit to commit.
	writerCache = 16 << 10
)

// errUnwanted says that nobody waits for the lock any more.
var errUnwanted = errors.New("pawl/sqlite: nobody waits")

// start takes the turn and the write lock, or neither.
func (w *writer) start(wanted func() bool) error {
	err := w.takeTurn(wanted)
	if err != nil {
		return err
	}
	if err = w.begin(wanted); err != nil {
		w.endTurn()
	}
	return err
}

// begin takes the write lock as long as it is wanted. It fails when Close has
// waited too long.
func (w *writer) begin(wanted func() bool) error {
	var since time.Time
	told := false
	for wanted() {
		err := w.connect()
		if err == nil {
			_, err = w.run.exec(w.ctx, begin)
		}
		if err == nil {
			w.began()
			return nil
		}
		if !isBusy(err) && !errors.Is(err, context.DeadlineExceeded) {
			w.failed = w.run != nil
			return err
		}
		if since.IsZero() {
			since = time.Now()
		}
		w.delays.note(since, time.Now())
		if waited := time.Since(since); !told && w.s.turn.long > 0 && waited >= w.s.turn.long {
			told = true
			w.s.warn(w.ctx, "calls wait for the file, which another process or a transaction of the program keeps locked",
				"waited", waited.Round(time.Millisecond), "err", err)
		}
		select {
		case <-w.late:
			return pawl.ErrClosed
		default:
			pause(time.Since(since))
		}
	}
	return errUnwanted
}

// pause sleeps between two attempts to take the write lock.
func pause(waited time.Duration) {
	d := min(busyPause+waited/128, busyPauseMax)
	time.Sleep(d + rand.N(2*d))
}

// takeTurn waits until no transaction of this process writes, as long as it is
// wanted. It fails when Close has waited too long.
func (w *writer) takeTurn(wanted func() bool) error {
	if w.s.turn.try() {
		return nil
	}
	since := time.Now()
	defer func() { w.delays.note(since, time.Now()) }()
	defer w.nudge() // what it was nudged for may be more
	k := w.s.turn.join()
	for wanted() {
		select {
		case <-k.come:
			return nil
		case <-w.late:
			w.s.turn.leave(k)
			return pawl.ErrClosed
		case <-w.wake:
		}
	}
	w.s.turn.leave(k)
	return errUnwanted
}

func (w *writer) endTurn() {
	if w.s.shared() || w.failed {
		w.letGo()
	}
	w.s.turn.give()
}

// began notes what follows from having the write lock.
func (w *writer) began() {
	w.watchClock()
	if from, to := w.delays.clear(); to.Sub(from) >= graceWait {
		now := w.s.now()
		w.grace.add(now-time.Since(from).Microseconds(), now-time.Since(to).Microseconds())
	}
	w.look()
}

// watchClock compares the storage's clock with one that no one sets and that
// stands still while the machine sleeps.
func (w *writer) watchClock() {
	if w.s.steady == nil {
		return
	}
	wall, steady := w.s.now(), w.s.steady()
	if by := wall - w.wall - (steady - w.steady).Microseconds(); w.wall != 0 && max(by, -by) >= minStep.Microseconds() {
		w.grace.step(by, wall)
	}
	w.wall, w.steady = wall, steady
}

// connect makes sure that there is a connection. It waits for one only so long
// that contexts that end meanwhile are noticed.
func (w *writer) connect() error {
	if w.run != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(w.ctx, connWait)
	defer cancel()
	conn, err := w.s.writes.Conn(ctx)
	if err != nil {
		return err
	}
	w.failed = false
	w.run = newPrepared(conn)
	if w.s.own {
		_, err = w.run.exec(w.ctx, &statement{fmt.Sprintf("PRAGMA cache_size = -%d", writerCache)})
		return err // it came with no busy_timeout
	}
	if w.timeout, err = number(w.ctx, w.run, busyTimeout); err == nil {
		err = setBusyTimeout(w.ctx, plain{conn}, 0)
	}
	return err
}

func setBusyTimeout(ctx context.Context, run plain, ms int64) error {
	_, err := number(ctx, run, &statement{fmt.Sprintf("PRAGMA busy_timeout = %d", ms)})
	return err
}

// letGo gives the connection back as it was, or throws it away if it failed.
func (w *writer) letGo() {
	if w.run == nil {
		return
	}
	w.changes, _ = number(w.ctx, w.run, totalChanges)
	w.run.close()
	conn := w.run.conn
	if w.failed {
		discard(conn)
	} else {
		_ = setBusyTimeout(w.ctx, plain{conn}, w.timeout)
	}
	_ = conn.Close()
	w.run = nil
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
