package memory

import (
	"bytes"
	"context"
	"maps"
	"slices"

	"github.com/pawlq/pawl"
)

// Change implements [pawl.Admin]. The whole is atomic, as far as nothing is
// seen in between; each ID succeeds or fails by itself.
func (s *Store) Change(ctx context.Context, c pawl.Change) ([]pawl.Changed, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	now := s.now()
	changed := make([]pawl.Changed, len(c.IDs))
	for i, id := range c.IDs {
		changed[i] = s.change(&c, id, now)
	}
	return changed, nil
}

// change applies c to one job.
func (s *Store) change(c *pawl.Change, id pawl.ID, now int64) pawl.Changed {
	r := s.find(c.Queue, id)
	if r == nil {
		return pawl.Changed{ID: id, Status: pawl.NotFound}
	}
	result := pawl.Changed{ID: id, Status: pawl.Done, Before: r.state}
	asked := len(c.From) == 0 || slices.Contains(c.From, r.state)
	if !asked || !slices.Contains(c.Verb.From(), r.state) {
		result.Status = pawl.WrongState
		return result
	}
	if c.Verb == pawl.Kick {
		if holder := s.inTheWay(r, now); holder != nil {
			result.Status, result.Holder = pawl.Conflict, holder.id
			return result
		}
	}
	if r.state == pawl.Running {
		s.noteEnded(r.ref())
	}
	s.unlink(r)
	s.apply(c, r, now)
	return result
}

// apply applies c to r, which is unlinked and in a state for it.
func (s *Store) apply(c *pawl.Change, r *record, now int64) {
	switch c.Verb {
	case pawl.Kick:
		s.kick(r, now)
	case pawl.Cancel:
		s.finish(r, pawl.Canceled, cancel, now)
	case pawl.Delete:
		s.forget(r)
	case pawl.Reschedule:
		r.runAt = after(now, max(c.Delay, 0))
		if !c.RunAt.IsZero() {
			r.runAt = max(micros(c.RunAt), now)
		}
		r.state = waitingState(r.runAt, now)
		s.link(r, now)
	case pawl.Edit:
		r.rewrite(&c.Edit)
		s.link(r, now)
	}
}

// inTheWay returns the other job that holds the unique key which a kick of r
// takes again; nil if there is none.
func (s *Store) inTheWay(r *record, now int64) *record {
	if r.extra == nil || r.extra.uniqueKey == "" || r.extra.uniqueMode == pawl.UniqueUntilClaimed {
		return nil
	}
	if holder := r.queue.holder(r.extra.uniqueKey, now); holder != r {
		return holder
	}
	return nil
}

func (s *Store) kick(r *record, now int64) {
	r.state, r.reason, r.runAt = pawl.Ready, none, now
	r.attempt, r.rescued = 0, 0
	r.edit(func(e *extra) {
		e.counts.Kicks++
		e.result, e.progress, e.startBefore = nil, nil, 0
	})
	s.link(r, now)
}

// rewrite sets the fields that e names.
func (r *record) rewrite(e *pawl.EditFields) {
	if e.Payload != nil {
		r.payload = bytes.Clone(e.Payload)
	}
	if e.Priority != nil {
		r.priority = int16(*e.Priority)
	}
	t := *r.terms
	set(&t.timeout, e.Timeout)
	set(&t.lease, e.Lease)
	set(&t.maxAttempts, e.MaxAttempts)
	set(&t.retention, e.Retention)
	if t != *r.terms {
		r.terms = &t
	}
	if e.Meta != nil || e.StartBefore != nil {
		r.edit(func(x *extra) {
			if e.Meta != nil {
				x.meta = maps.Clone(e.Meta)
			}
			if e.StartBefore != nil {
				x.startBefore = optionalMicros(*e.StartBefore)
			}
		})
	}
}

// set sets *field to *value if that is given.
func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}
