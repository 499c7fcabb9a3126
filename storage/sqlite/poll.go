package sqlite

import (
	"os"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
)

// Limits of looking for the changes of others.
const (
	// quietPolls looks in vain make the interval quietFactor times as long
	// if no wire is set, so that an idle process costs little and still
	// starts the jobs of another within 10 ms in the mean.
	quietPolls  = 200
	quietFactor = 7
	// wirePolls looks in vain are enough to lay a wire: one that trips at each
	// write of a process that goes on writing costs more than the looks.
	wirePolls = 4
	// firstLook after a change, and twice as long each time, is when it is
	// looked again: the first write is told, what it belongs to becomes visible
	// with the commit.
	firstLook = 2 * time.Millisecond
	// sharedPoll multiplies the interval if the pool has no connection for the
	// writer alone.
	sharedPoll = 10
	// logSettles is how long after a change of the write-ahead log SQLite is
	// asked at each look: what was written may become visible later, after it
	// was synced, and the file's time is coarse.
	logSettles = time.Second
	// askAnyway is how often SQLite is asked even if the log seems unchanged,
	// for file systems that are lazy about its time.
	askAnyway = time.Second
	// maxMissed changes in a row that the wire did not tell make it useless: one
	// could be a coincidence.
	maxMissed = 3
)

// sleep waits until something may be to do, and reports whether it is time to
// look for the changes of others.
func (w *writer) sleep() bool {
	if w.guard.tripped.Swap(false) {
		w.guard.set, w.guard.missed, w.quiet = false, 0, 0
		w.log.changed, w.log.asked = time.Now(), time.Time{}
		return true
	}
	if w.stale.Swap(false) {
		w.log.asked = time.Time{} // whatever the log looks like
		return true
	}
	if !w.s.watch.any() {
		<-w.wake
		return false
	}
	if w.setWire() {
		w.log.asked = time.Time{} // there may have been a commit just before
		return true
	}
	timer := time.NewTimer(w.nextLook())
	defer timer.Stop()
	select {
	case <-w.wake:
		return false
	case <-timer.C:
		w.quiet++
		return true
	}
}

// nextLook is the time until the next look; it is longer when nothing has
// happened for some time, so that an idle process costs little.
func (w *writer) nextLook() time.Duration {
	interval := w.s.o.PollInterval
	again := firstLook << min(w.quiet, 10)
	switch {
	case w.s.shared():
		interval *= sharedPoll
	case w.guard.set:
		return max(interval, min(again, askAnyway))
	default:
		interval = min(interval, again)
	}
	if w.quiet >= quietPolls {
		interval *= quietFactor
	}
	return interval
}

// guard is a wire across the write-ahead log, which replaces looking at it
// while nothing happens. SQLite is still asked now and then: if that finds
// changes that the wire has not told, as it may be on odd file systems, the wire
// is given up.
type guard struct {
	wire    *wire
	set     bool
	useless bool
	missed  int // changes since it last tripped
	tripped atomic.Bool
}

// setWire lays the wire if it is time to, and reports whether it has. If the
// pool is shared, the log may go and come again while no connection is open.
func (w *writer) setWire() bool {
	g := &w.guard
	if g.set || g.useless || w.quiet < wirePolls || w.s.shared() {
		return false
	}
	if g.wire == nil {
		var err error
		if g.wire, err = newWire(func() { g.tripped.Store(true); w.nudge() }); err != nil {
			g.useless = true
			return false
		}
	}
	g.set = g.wire.set(w.log.path) == nil // or there is no log yet
	return g.set
}

// check counts changes that the wire should have told.
func (g *guard) check() {
	if !g.set || g.tripped.Load() {
		return
	}
	if g.missed++; g.missed >= maxMissed {
		g.useless, g.set = true, false
	}
}

func (g *guard) close() {
	if g.wire != nil {
		g.wire.close()
	}
}

// walFile is the write-ahead log as it was last seen: to look at its size and
// time costs far less than to ask SQLite.
type walFile struct {
	path    string
	size    int64
	time    time.Time
	changed time.Time // when it was first seen so
	asked   time.Time
}

// mayHaveChanged reports whether SQLite is to be asked for changes.
func (f *walFile) mayHaveChanged(now time.Time) bool {
	if info, err := os.Stat(f.path); err != nil || info.Size() != f.size || !info.ModTime().Equal(f.time) {
		f.changed = now
		if err == nil {
			f.size, f.time = info.Size(), info.ModTime()
		}
	}
	if now.Sub(f.changed) > logSettles && now.Sub(f.asked) < askAnyway {
		return false
	}
	f.asked = now
	return true
}

// poll looks for changes by others while there is nothing to write.
func (w *writer) poll() {
	if !w.log.mayHaveChanged(time.Now()) {
		return
	}
	if !w.s.turn.try() {
		return // someone of this process is writing and will say so
	}
	if w.connect() == nil && w.look() {
		w.guard.check()
	}
	w.endTurn()
}

// look tells watchers if another connection has changed the file, and reports
// whether it has. SQLite's
// data_version changes with every commit but the connection's own; if it is
// shared with the caller, those are told by the number of changes.
func (w *writer) look() (changed bool) {
	if !w.s.watch.any() {
		return false
	}
	version, err := number(w.ctx, w.run, dataVersion)
	if err != nil {
		return false // the next statement will tell
	}
	changes := w.changes
	if w.s.shared() {
		changes, _ = number(w.ctx, w.run, totalChanges)
	}
	if version == w.version && changes == w.changes {
		return false
	}
	w.quiet = 0
	w.version, w.changes = version, changes
	w.s.watch.send(pawl.Event{Kind: pawl.EventReady})
	return true
}
