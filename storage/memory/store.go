package memory

import (
	"context"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

// Options are the settings of a [Store].
type Options struct {
	// Clock tells the time; nil means the wall clock, but leases do not end by
	// its being set, nor by a sleep of the machine: while a job is running, the
	// store goes by the time that has really passed. It is called with the store
	// locked, so it must not call the store. Times that differ by less than a
	// microsecond are the same to the store.
	Clock func() time.Time
}

// A Store is a storage in memory. All methods may be called concurrently.
type Store struct {
	clock func() time.Time // of the caller, or nil
	own   *steady          // used instead
	done  chan struct{}    // closed by Close

	mu      sync.Mutex // guards what follows, and all records
	closed  bool
	seq     int64 // last order of insertion given
	fence   int64 // last fence given
	jobs    index[pawl.ID]
	records arena
	claims  map[int64]*claim // by token; those with running jobs

	queues    map[string]*queue
	sorted    []*queue     // by name
	scheduled tree[*queue] // by the place of their first scheduled job
	spare     *queue       // the last one forgotten

	timers   [numTimers]tree[slot] // records by when time alone changes them
	round    round                 // how far Sweep has walked over what is too much
	undo     *undo                 // of the Enqueue at work, if it may fail
	watchers []*watcher
}

var (
	_ pawl.Storage = (*Store)(nil)
	_ pawl.Watcher = (*Store)(nil)
	_ pawl.Cycler  = (*Store)(nil)
)

// New returns an empty store. A nil o means the defaults.
func New(o *Options) *Store {
	s := &Store{
		own:    newSteady(system()),
		done:   make(chan struct{}),
		queues: make(map[string]*queue),
		claims: make(map[int64]*claim),
	}
	if o != nil && o.Clock != nil {
		s.clock = o.Clock
	}
	return s
}

// Close lets go of all jobs. Every later call, and every Watch at work, returns
// [pawl.ErrClosed]. Close may be called more than once and returns nil.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	close(s.done)
	s.jobs, s.records = index[pawl.ID]{}, arena{}
	s.queues, s.sorted, s.claims = nil, nil, nil
	s.timers, s.scheduled, s.spare = [numTimers]tree[slot]{}, tree[*queue]{}, nil
	return nil
}

// lock locks s for a call, unless the call is in vain.
func (s *Store) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return pawl.ErrClosed
	}
	return nil
}

// now returns the time of the store.
func (s *Store) now() int64 {
	if s.clock != nil {
		return s.clock().UnixMicro()
	}
	return s.own.now(s.timers[rescueTimer].first().v != 0)
}

// remember makes r known by its ID.
func (s *Store) remember(r *record) {
	s.jobs.put(r.id, r.slot)
	r.queue.jobs++
}

// get returns the record with the ID, nil if there is none.
func (s *Store) get(id pawl.ID) *record { return s.records.at(s.jobs.get(id)) }

// forget makes r, which is not linked, unknown. It is not to be used any more,
// except by an undo.
func (s *Store) forget(r *record) {
	s.jobs.remove(r.id)
	r.queue.jobs--
	s.forgetIfEmpty(r.queue)
	if s.undo == nil {
		s.records.give(r)
	}
}

// link enters r wherever its state and times say. Every change of a record is
// an unlink, the change, and a link or forget; so the orders, counts, timers,
// keys and wake-ups are right whatever the change was.
func (s *Store) link(r *record, now int64) {
	q := r.queue
	q.in[r.state].insert(r.place(), r.slot)
	switch r.state {
	case pawl.Scheduled:
		s.reschedule(q)
		if r.retrying() {
			q.retrying++
		}
		s.noteReady(q, r.runAt)
	case pawl.Ready:
		s.noteReady(q, now)
	case pawl.Running:
		s.timers[rescueTimer].insert(key{0, r.leaseUntil, r.seq}, r.slot)
		r.claim.open++
	case pawl.Completed, pawl.Canceled:
		s.timers[purgeTimer].insert(key{0, r.purgeAt(), r.seq}, r.slot)
	}
	if r.extra == nil {
		return
	}
	if r.state.Waiting() && r.extra.startBefore != 0 {
		s.timers[expireTimer].insert(key{0, r.extra.startBefore, r.seq}, r.slot)
	}
	if r.holdsKey(now) {
		q.keys.put(r.extra.uniqueKey, r.slot)
	}
}

// unlink undoes link. No field of r may have changed in between.
func (s *Store) unlink(r *record) {
	q := r.queue
	q.in[r.state].remove(r.place())
	switch r.state {
	case pawl.Scheduled:
		s.reschedule(q)
		if r.retrying() {
			q.retrying--
		}
	case pawl.Running:
		s.timers[rescueTimer].remove(key{0, r.leaseUntil, r.seq})
		s.leaveClaim(r.claim)
	case pawl.Completed, pawl.Canceled:
		s.timers[purgeTimer].remove(key{0, r.purgeAt(), r.seq})
	}
	if r.extra == nil {
		return
	}
	if r.state.Waiting() && r.extra.startBefore != 0 {
		s.timers[expireTimer].remove(key{0, r.extra.startBefore, r.seq})
	}
	if r.extra.uniqueKey != "" && q.keys.get(r.extra.uniqueKey) == r.slot {
		q.keys.remove(r.extra.uniqueKey)
	}
}

// leaveClaim notes that a job of c does not run any more.
func (s *Store) leaveClaim(c *claim) {
	c.open--
	if c.open == 0 && s.claims[c.token] == c {
		delete(s.claims, c.token)
	}
}

// retrying reports whether r, which is Scheduled, waits after a failure.
func (r *record) retrying() bool {
	return r.reason == retry || r.reason == rescue
}

// wait makes r, which is unlinked, wait until delay after now. Without a delay
// the caller has set runAt.
func (s *Store) wait(r *record, reason reason, delay time.Duration, now int64) {
	r.state, r.reason = pawl.Ready, reason
	if delay > 0 {
		r.state, r.runAt = pawl.Scheduled, after(now, delay)
	}
	s.link(r, now)
}

// finish ends r, which is unlinked: it becomes final, or goes with DeleteNow
// unless a unique window keeps it.
func (s *Store) finish(r *record, state pawl.State, reason reason, now int64) {
	r.state, r.reason, r.finishedAt = state, reason, now
	r.keyGone = true
	if state != pawl.Buried && r.terms.retention < 0 && r.windowEnd() <= now {
		s.forget(r)
		return
	}
	s.link(r, now)
}
