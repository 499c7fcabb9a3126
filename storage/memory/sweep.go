package memory

import (
	"context"

	"github.com/pawlq/pawl"
)

// leaseExpired is the error text of a rescue.
const leaseExpired = "lease expired"

// Sweep implements [pawl.Storage].
func (s *Store) Sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	if err := s.lock(ctx); err != nil {
		return pawl.Swept{}, err
	}
	defer s.mu.Unlock()
	now := s.now()
	var swept pawl.Swept
	s.rescueDue(&swept, spec.Limit, now)
	swept.Expired = s.expire(now, spec.Limit)
	swept.Promoted = s.promoteDue(now, spec.Limit)
	swept.Purged = s.purge(now, spec.Limit)

	var next earliest
	if bounds := boundsOf(&spec); len(bounds) > 0 {
		s.purgeExcess(&swept, spec.Limit, bounds, &next, now)
	}
	for i := range s.timers {
		next.first(&s.timers[i])
	}
	if it := s.scheduled.first(); it.v != nil {
		next.note(it.at)
	}
	swept.More = swept.More || next.come(now)
	swept.NextDue = next.in(now)
	return swept, nil
}

func (s *Store) rescueDue(swept *pawl.Swept, limit int, now int64) {
	for range limit {
		r := s.due(rescueTimer, now)
		if r == nil {
			return
		}
		ref := r.ref()
		if s.rescue(r, now) {
			swept.Rescued = append(swept.Rescued, ref)
		} else {
			swept.Buried = append(swept.Buried, ref)
		}
		s.noteEnded(ref)
	}
}

// rescue takes r back from a worker that let its lease expire, and reports
// whether it waits again.
func (s *Store) rescue(r *record, now int64) bool {
	s.unlink(r)
	r.fail(now, leaseExpired, "")
	r.attempt--
	if int(r.rescued) >= r.terms.maxRescues {
		s.finish(r, pawl.Buried, rescues, now)
		return false
	}
	r.rescued++
	r.count(func(c *pawl.Counts) { c.Rescues++ })
	r.runAt = now
	s.wait(r, rescue, pawl.RescueDelay(int(r.rescued)), now)
	return true
}

// expire ends waiting jobs whose StartBefore has come.
func (s *Store) expire(now int64, limit int) (n int) {
	for ; n < limit; n++ {
		r := s.due(expireTimer, now)
		if r == nil {
			break
		}
		s.unlink(r)
		s.finish(r, pawl.Canceled, expired, now)
	}
	return n
}

func (s *Store) promoteDue(now int64, limit int) (n int) {
	for ; n < limit; n++ {
		it := s.scheduled.first()
		if it.v == nil || it.at > now {
			break
		}
		s.promote(it.v.first(pawl.Scheduled), now)
	}
	return n
}

func (s *Store) promote(r *record, now int64) {
	s.unlink(r)
	r.state = pawl.Ready
	s.link(r, now)
}

// purge removes records whose retention is over.
func (s *Store) purge(now int64, limit int) (n int) {
	for ; n < limit; n++ {
		r := s.due(purgeTimer, now)
		if r == nil {
			break
		}
		s.unlink(r)
		s.forget(r)
	}
	return n
}
