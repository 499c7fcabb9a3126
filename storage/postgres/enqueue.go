package postgres

import (
	"context"
	"hash/fnv"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

// enqueue is one call of Enqueue.
type enqueue struct {
	s        *Store
	ctx      context.Context
	run      runner
	foreign  bool // in a caller's transaction
	single   bool // each statement is a transaction
	reqs     []*pawl.Request
	receipts []pawl.Receipt
	plain    bool // no keys, no limits, no ID twice
	twice    bool // an ID comes twice
	waiting  map[string]int
	events   events
}

func (s *Store) newEnqueue(ctx context.Context, reqs []*pawl.Request) *enqueue {
	e := &enqueue{s: s, ctx: ctx, reqs: reqs, receipts: make([]pawl.Receipt, len(reqs)), plain: true}
	seen := make(map[pawl.ID]struct{}, len(reqs))
	for _, r := range reqs {
		seen[r.ID] = struct{}{}
		if r.UniqueKey != "" || r.MaxDepth > 0 {
			e.plain = false
		}
	}
	e.twice = len(seen) < len(reqs)
	e.plain = e.plain && !e.twice
	return e
}

// all stores the requests in a transaction.
func (e *enqueue) all() error {
	roomy, err := e.countWaiting()
	if err != nil {
		return err
	}
	if !e.foreign {
		// From here on nothing waits long with the lock of a limit in its hand.
		if err := e.run.exec(e.ctx, setLockTimeout, lockPatience.String()); err != nil {
			return err
		}
	}
	if roomy && !e.twice {
		return e.bulk()
	}
	return e.inTurn(0)
}

// inTurn stores the requests from a place on, one after the other.
func (e *enqueue) inTurn(from int) error {
	seen := make(map[pawl.ID]struct{})
	for i, r := range e.reqs[from:] {
		if _, twice := seen[r.ID]; twice { // whatever others have done to it since
			e.got(from+i, pawl.Exists, r.ID)
			continue
		}
		if err := e.one(from + i); err != nil {
			return err
		}
		if s := e.receipts[from+i].Status; s == pawl.Stored || s == pawl.Exists {
			seen[r.ID] = struct{}{}
		}
	}
	return nil
}

// insert returns the places of the requests that could not be stored.
func (e *enqueue) insert(reqs []*pawl.Request) (rest []int, err error) {
	shape := shapeOf(reqs)
	sql, args := e.s.q.insert[shape], requestArgs(e.s.clock(), reqs, shape)
	if e.single {
		sql, args = e.s.q.insertShortly[shape], append(args, lockPatience.String())
	}
	if e.single && e.plain && isNew(reqs, time.Now()) {
		err := e.run.exec(e.ctx, e.s.q.insertHopeful[shape], args...)
		if code(err) != codeUnique {
			return nil, err
		}
	}
	var places []int
	err = e.run.each(e.ctx, func(row scanner) error {
		var ord int
		err := row.Scan(&ord)
		places = append(places, ord-1)
		return err
	}, sql, args...)
	if shape == oneRow && len(places) == 0 {
		return []int{0}, err
	}
	if shape == oneRow {
		return nil, err
	}
	return places, err
}

func (e *enqueue) got(i int, status pawl.ReceiptStatus, id pawl.ID) {
	e.receipts[i] = pawl.Receipt{ID: id, Queue: e.reqs[i].Queue, Status: status}
}

func (e *enqueue) stored(i int, r *pawl.Request) {
	e.got(i, pawl.Stored, r.ID)
	e.events.due(r.Queue, e.s.until(r))
}

// until is about how long it is until a request is due.
func (s *Store) until(r *pawl.Request) time.Duration {
	switch {
	case r.Delay > 0 || r.RunAt.IsZero():
		return r.Delay
	case s.o.Clock != nil:
		return max(0, r.RunAt.Sub(s.o.Clock()))
	}
	return max(0, time.Until(r.RunAt))
}

// oneTries bounds how often a request can be overtaken by another with the
// same ID or key, which then ends before it is looked at.
const oneTries = 5

// one stores one request.
func (e *enqueue) one(i int) error {
	r := e.reqs[i]
	for range oneTries {
		there, err := e.exists(r.ID)
		if err != nil {
			return err
		}
		if there {
			e.got(i, pawl.Exists, r.ID)
			return nil
		}
		if r.UniqueKey != "" {
			if held, err := e.duplicate(i); held || err != nil {
				return err
			}
		}
		if r.MaxDepth > 0 {
			if err := e.makeRoom(r); err != nil {
				return err
			}
		}
		rest, err := e.insert([]*pawl.Request{r})
		if err != nil {
			return err
		}
		if len(rest) == 0 {
			if _, counted := e.waiting[r.Queue]; counted {
				e.waiting[r.Queue]++
			}
			e.stored(i, r)
			return nil
		}
	}
	return errAgain
}

func (e *enqueue) exists(id pawl.ID) (there bool, err error) {
	err = e.run.each(e.ctx, func(scanner) error {
		there = true
		return nil
	}, e.s.q.exists, id.String())
	return there, err
}

// duplicate answers a request whose unique key is held, and reports whether it
// is. A key whose window is over is taken from its holder.
func (e *enqueue) duplicate(i int) (held bool, err error) {
	r := e.reqs[i]
	var (
		id          string
		state, over int
	)
	err = e.run.each(e.ctx, func(row scanner) error {
		held = true
		return row.Scan(&id, &state, &over)
	}, e.s.q.holder, e.s.clock(), r.Queue, r.UniqueKey)
	if err != nil || !held {
		return held, err
	}
	if over == 1 {
		return false, e.run.exec(e.ctx, e.s.q.releaseKey, id)
	}
	holder, err := uuid.Parse(id)
	if err != nil {
		return true, err
	}
	if holder == r.ID { // another call has stored it since its ID was looked for
		e.got(i, pawl.Exists, r.ID)
		return true, nil
	}
	e.got(i, pawl.Duplicate, holder)
	if r.OnDuplicate == pawl.Replace && pawl.State(state).Waiting() {
		e.got(i, pawl.Replaced, holder)
		err = e.replace(r, id)
	}
	return true, err
}

// replace rewrites the holder of a key, which is locked.
func (e *enqueue) replace(r *pawl.Request, id string) error {
	args := append(requestArgs(e.s.clock(), []*pawl.Request{r}, oneRow), id)
	if err := e.run.exec(e.ctx, e.s.q.replace, args...); err != nil {
		return err
	}
	e.events.due(r.Queue, e.s.until(r))
	return e.run.exec(e.ctx, e.s.q.forgetProgressOf, id)
}

// countWaiting counts the waiting jobs of queues with a limit, and reports
// whether there is room for all requests. On the Store's own connections the
// queues are locked until the end of the transaction, so that limits are exact
// among them; a caller's transaction locks nothing, since it may stay open for
// long, and can overshoot a limit by what is not committed yet.
func (e *enqueue) countWaiting() (roomy bool, err error) {
	limits, asked := map[string]int{}, map[string]int{}
	lowest := map[string]int{}
	for _, r := range e.reqs {
		asked[r.Queue]++
		if r.MaxDepth > 0 {
			limits[r.Queue] = max(limits[r.Queue], r.MaxDepth)
			if low, ok := lowest[r.Queue]; !ok || r.MaxDepth < low {
				lowest[r.Queue] = r.MaxDepth
			}
		}
	}
	e.waiting = make(map[string]int, len(limits))
	if !e.foreign && len(limits) > 0 {
		if err := e.lockDepths(maps.Keys(limits)); err != nil {
			return false, err
		}
	}
	roomy = true
	for _, queue := range slices.Sorted(maps.Keys(limits)) {
		n, err := e.number(e.s.q.waiting, queue, limits[queue])
		if err != nil {
			return false, err
		}
		e.waiting[queue] = n
		roomy = roomy && n+asked[queue] <= lowest[queue]
	}
	return roomy, nil
}

// depthLocks is how many locks the limits of all queues share. The server has room for
// some thousands, of all its sessions.
const depthLocks = 256

// lockDepths locks the depths of queues, in the same order as all others do.
func (e *enqueue) lockDepths(queues iter.Seq[string]) error {
	locks := make(map[int64]struct{})
	for queue := range queues {
		locks[nameHash(e.s.o)+depthLock+int64(uint64(e.s.queueHash(queue))%depthLocks)] = struct{}{}
	}
	return e.run.exec(e.ctx, e.s.q.locks, slices.Sorted(maps.Keys(locks)))
}

func (e *enqueue) number(sql string, args ...any) (n int, err error) {
	err = e.run.each(e.ctx, func(row scanner) error { return row.Scan(&n) }, sql, args...)
	return n, err
}

// queueHash tells a queue from the others, and from those of other tables.
func (s *Store) queueHash(queue string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(queue)) // never fails
	return int64(h.Sum64()) ^ nameHash(s.o)
}

// claimHash names the lock of a queue's claims.
func (s *Store) claimHash(queue string) int64 { return s.queueHash(queue) ^ claimLock }

// What tells locks of one sort from those of others.
const (
	claimLock = 0x636c61696d // "claim"
	depthLock = 0x6465707468 // "depth"
)

// rescueHash names the lock that all rescues share until they are committed.
func (s *Store) rescueHash() int64 { return nameHash(s.o) ^ rescueLock }

const rescueLock = 0x726573637565 // "rescue"

// makeRoom makes sure that a queue holds less than its limit of waiting jobs.
func (e *enqueue) makeRoom(r *pawl.Request) error {
	if e.waiting[r.Queue] < r.MaxDepth {
		return nil
	}
	if r.WhenFull != pawl.DropOldest {
		return &pawl.FullError{Queue: r.Queue, Limit: r.MaxDepth}
	}
	id, err := e.oldest(r.Queue)
	if err != nil || id == "" {
		return err
	}
	n, err := e.number(e.s.q.drop, e.s.clock(), id)
	if err == nil && n == 0 {
		err = errAgain // others have locked it
	}
	e.waiting[r.Queue] -= n
	return err
}

// oldest finds the job to drop. A fresh one may be claimed at any time without
// the lock of the queue, which only that needs. A caller's transaction, which may
// hold the lock for long, does with a placed one of the same priority.
func (e *enqueue) oldest(queue string) (id string, err error) {
	least, err := e.candidate(e.s.q.leastUrgent, queue)
	if err != nil || least.id != "" && (least.priority > 0 || least.priority == 0 && e.foreign) {
		return least.id, err
	}
	fresh, err := e.candidate(e.s.q.oldestFresh, queue)
	if err == nil && fresh.id != "" {
		if err = e.run.exec(e.ctx, e.s.q.lock, e.s.claimHash(queue)); err == nil {
			fresh, err = e.candidate(e.s.q.oldestFresh, queue)
		}
	}
	if err != nil {
		return "", err
	}
	if fresh.id != "" && (least.id == "" || inClaimOrder(fresh.record(), least.record()) < 0 || least.priority < 0) {
		return fresh.id, nil
	}
	if least.id != "" {
		return least.id, nil
	}
	next, err := e.candidate(e.s.q.nextScheduled, queue)
	return next.id, err
}

// candidate is a job that may be dropped.
type candidate struct {
	id         string
	priority   int
	runAt, seq int64
}

func (c *candidate) record() *record {
	return &record{priority: c.priority, runAt: c.runAt, seq: c.seq}
}

func (e *enqueue) candidate(sql, queue string) (c candidate, err error) {
	err = e.run.each(e.ctx, func(row scanner) error { return row.Scan(&c.id, &c.priority, &c.runAt, &c.seq) }, sql, queue)
	return c, err
}
