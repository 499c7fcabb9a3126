package memory

import (
	"bytes"
	"context"
	"time"

	"github.com/pawlq/pawl"
)

// Settle implements [pawl.Writer].
func (s *Store) Settle(ctx context.Context, outcomes []pawl.Outcome) (lost []pawl.Ref, err error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	now := s.now()
	done := make([]bool, len(outcomes))
	for i := range outcomes {
		done[i] = s.settle(&outcomes[i], now) || repeats(outcomes, done, i)
		if !done[i] {
			lost = append(lost, outcomes[i].Ref)
		}
	}
	return lost, nil
}

// repeats reports whether outcome i is the same as an earlier one in its call
// that was settled. The record may be gone by then.
func repeats(outcomes []pawl.Outcome, done []bool, i int) bool {
	o := &outcomes[i]
	for j := range i {
		p := &outcomes[j]
		if done[j] && p.Ref.ID == o.Ref.ID && p.Ref.Fence == o.Ref.Fence && p.Verb == o.Verb {
			return true
		}
	}
	return false
}

// settle settles one claim and reports whether its ref was current, or its
// outcome is already recorded.
func (s *Store) settle(o *pawl.Outcome, now int64) bool {
	r := s.get(o.Ref.ID)
	if r == nil {
		return o.Repeat
	}
	if !r.current(&o.Ref) {
		return r.lastFence == o.Ref.Fence && r.lastVerb == o.Verb && r.lastVerb != 0
	}
	s.unlink(r)
	r.lastFence, r.lastVerb = r.fence, o.Verb
	delay := max(o.Delay, 0)
	switch o.Verb {
	case pawl.Ack:
		if o.Result != nil {
			r.edit(func(e *extra) { e.result = bytes.Clone(o.Result) })
		}
		s.finish(r, pawl.Completed, none, now)
	case pawl.Nack:
		r.fail(now, o.Error, o.Stack)
		s.retry(r, delay, now)
	case pawl.Bury:
		r.fail(now, o.Error, o.Stack)
		s.finish(r, pawl.Buried, bury, now)
	default:
		s.handBack(r, o, delay, now)
	}
	return true
}

// retry makes r, which has failed, wait for its next attempt if it has one.
func (s *Store) retry(r *record, delay time.Duration, now int64) {
	if limit := r.terms.maxAttempts; limit != pawl.Unlimited && int(r.attempt) >= limit {
		s.finish(r, pawl.Buried, attempts, now)
		return
	}
	r.count(func(c *pawl.Counts) { c.Retries++ })
	r.runAt = now
	s.wait(r, retry, delay, now)
}

// handBack makes r wait again as if this claim had not been.
func (s *Store) handBack(r *record, o *pawl.Outcome, delay time.Duration, now int64) {
	r.attempt--
	switch o.Verb {
	case pawl.SnoozeFor:
		r.count(func(c *pawl.Counts) { c.Snoozes++ })
		s.wait(r, snooze, delay, now)
	case pawl.Skip:
		r.count(func(c *pawl.Counts) { c.Skips++ })
		s.wait(r, skip, delay, now)
	default:
		if o.Priority != nil {
			r.priority = int16(*o.Priority)
		}
		r.count(func(c *pawl.Counts) { c.Releases++ })
		s.wait(r, release, delay, now)
	}
}

// Extend implements [pawl.Storage].
func (s *Store) Extend(ctx context.Context, renewals []pawl.Renewal) (lost []pawl.Ref, err error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	now := s.now()
	for i := range renewals {
		r := s.get(renewals[i].Ref.ID)
		if r == nil || !r.current(&renewals[i].Ref) {
			lost = append(lost, renewals[i].Ref)
			continue
		}
		s.extend(r, &renewals[i], now)
	}
	return lost, nil
}

func (s *Store) extend(r *record, n *pawl.Renewal, now int64) {
	rescue := &s.timers[rescueTimer]
	rescue.remove(key{0, r.leaseUntil, r.seq})
	r.leaseUntil = after(now, n.Lease)
	rescue.insert(key{0, r.leaseUntil, r.seq}, r.slot)
	r.edit(func(e *extra) {
		e.counts.Extends++
		if n.Progress != nil {
			e.progress = cloneProgress(n.Progress)
			e.progress.At = fromMicros(now)
		}
	})
}
