package memory

import (
	"context"
	"slices"

	"github.com/pawlq/pawl"
)

// Enqueue implements [pawl.Writer].
func (s *Store) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	copies := make([]contents, len(reqs))
	for i, q := range reqs {
		copies[i] = contentsOf(q)
	}
	receipts := make([]pawl.Receipt, len(reqs))
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	now := s.now()
	if slices.ContainsFunc(reqs, canFail) {
		s.undo = new(undo)
		defer s.endUndo()
	}
	for i, q := range reqs {
		var err error
		if receipts[i], err = s.enqueue(copies[i], q, now); err != nil {
			s.rollback(now)
			return nil, err
		}
	}
	return receipts, nil
}

// canFail reports whether q can make its whole Enqueue fail.
func canFail(q *pawl.Request) bool { return q.MaxDepth > 0 && q.WhenFull != pawl.DropOldest }

// enqueue stores a job as q says, of which c is a copy.
func (s *Store) enqueue(c contents, q *pawl.Request, now int64) (pawl.Receipt, error) {
	if old := s.get(q.ID); old != nil {
		return receipt(old, pawl.Exists), nil
	}
	if q.UniqueKey != "" && s.queues[q.Queue] != nil {
		if holder := s.queues[q.Queue].holder(q.UniqueKey, now); holder != nil {
			return s.duplicate(holder, c, q, now), nil
		}
	}
	if err := s.makeRoom(q, now); err != nil {
		return pawl.Receipt{}, err
	}
	s.seq++
	r := s.records.take()
	r.id, r.seq, r.createdAt = q.ID, s.seq, now
	r.payload, r.extra, r.priority = c.payload, c.extra, int16(q.Priority)
	r.queue = s.open(q.Queue)
	r.schedule(q, now)
	s.save(r)
	s.remember(r)
	s.link(r, now)
	return receipt(r, pawl.Stored), nil
}

func receipt(r *record, status pawl.ReceiptStatus) pawl.Receipt {
	return pawl.Receipt{ID: r.id, Queue: r.queue.name, Status: status}
}

// schedule sets what of r comes from q, its queue and the time.
func (r *record) schedule(q *pawl.Request, now int64) {
	r.terms = r.queue.share(terms{
		kind:        q.Kind,
		lease:       q.Lease,
		timeout:     q.Timeout,
		retention:   q.Retention,
		maxAttempts: q.MaxAttempts,
		maxRescues:  q.MaxRescues,
	})
	r.runAt = after(now, max(q.Delay, 0))
	if !q.RunAt.IsZero() {
		r.runAt = max(micros(q.RunAt), now)
	}
	r.state = waitingState(r.runAt, now)
}

// waitingState returns the state of a job that waits until runAt.
func waitingState(runAt, now int64) pawl.State {
	if runAt > now {
		return pawl.Scheduled
	}
	return pawl.Ready
}

// duplicate deals with q, of which c is a copy, whose key is held.
func (s *Store) duplicate(holder *record, c contents, q *pawl.Request, now int64) pawl.Receipt {
	if q.OnDuplicate != pawl.Replace || !holder.state.Waiting() {
		return receipt(holder, pawl.Duplicate)
	}
	s.save(holder)
	s.unlink(holder)
	old := holder.rare()
	holder.payload, holder.extra, holder.priority = c.payload, c.extra, int16(q.Priority)
	holder.edit(func(e *extra) { e.counts, e.failures = old.counts, old.failures })
	holder.reason, holder.attempt, holder.rescued, holder.keyGone = none, 0, 0, false
	holder.schedule(q, now)
	s.link(holder, now)
	return receipt(holder, pawl.Replaced)
}

// makeRoom sees to it that one more job fits in the queue of q.
func (s *Store) makeRoom(q *pawl.Request, now int64) error {
	queue := s.queues[q.Queue]
	if q.MaxDepth <= 0 || queue == nil || queue.waiting() < q.MaxDepth {
		return nil
	}
	if q.WhenFull != pawl.DropOldest {
		return &pawl.FullError{Queue: queue.name, Limit: q.MaxDepth}
	}
	r := queue.oldest()
	s.save(r)
	s.unlink(r)
	s.finish(r, pawl.Canceled, dropped, now)
	return nil
}

// An undo remembers what an Enqueue changed.
type undo struct{ changes []saved }

// A saved is what a record was before it was changed.
type saved struct {
	r     *record
	was   record
	known bool // it was in the store
}

// save notes r, which is about to be changed or stored, for rollback.
func (s *Store) save(r *record) {
	if s.undo != nil {
		s.undo.changes = append(s.undo.changes, saved{r, *r, s.get(r.id) == r})
	}
}

// rollback takes back what the Enqueue at work has changed so far.
func (s *Store) rollback(now int64) {
	for _, c := range slices.Backward(s.undo.changes) {
		r := c.r
		known := s.get(r.id) == r
		if known {
			s.unlink(r)
		}
		*r = c.was
		switch {
		case !c.known:
			s.forget(r)
		case !known:
			r.queue = s.open(r.queue.name) // it may have been forgotten
			s.remember(r)
			s.link(r, now)
		default:
			s.link(r, now)
		}
	}
}

// endUndo lets go of the records that the Enqueue at work has left unknown.
func (s *Store) endUndo() {
	for _, c := range s.undo.changes {
		if r := c.r; r.slot != 0 && s.get(r.id) != r {
			s.records.give(r)
		}
	}
	s.undo = nil
}
