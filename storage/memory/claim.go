package memory

import (
	"context"
	"strings"
	"time"

	"github.com/pawlq/pawl"
)

// maxHold is how many records one hold of the lock moves at most when there is
// no smaller limit: a few milliseconds. More are moved in several holds.
const maxHold = 10_000

// Claim implements [pawl.Storage]. It first moves on what has become due, so
// that the jobs it then takes are in exact order.
func (s *Store) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	for {
		if err := s.lock(ctx); err != nil {
			return pawl.Claimed{}, err
		}
		now := s.now()
		if s.catchUp(spec.Queues, now) {
			c, jobs := s.claim(&spec, now)
			s.mu.Unlock()
			detach(jobs)
			return c, nil
		}
		s.mu.Unlock()
	}
}

// Cycle implements [pawl.Cycler].
func (s *Store) Cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) ([]pawl.Ref, pawl.Claimed, error) {
	lost, err := s.Settle(ctx, outcomes)
	if err != nil {
		return nil, pawl.Claimed{}, err
	}
	c, err := s.Claim(ctx, spec)
	return lost, c, err
}

// catchUp ends jobs whose StartBefore has come and promotes due jobs of the
// asked queues. It reports whether it got through within maxHold.
func (s *Store) catchUp(asks []pawl.QueueAsk, now int64) bool {
	budget := maxHold
	budget -= s.expire(now, budget)
	for _, ask := range asks {
		q := s.queues[ask.Queue]
		if q == nil || q.paused {
			continue
		}
		for ; budget > 0; budget-- {
			it := q.in[pawl.Scheduled].first()
			if it.v == 0 || it.at > now {
				break
			}
			s.promote(s.records.at(it.v), now)
		}
	}
	return budget > 0
}

// claim claims jobs as spec says. The jobs share memory with the store.
func (s *Store) claim(spec *pawl.ClaimSpec, now int64) (pawl.Claimed, []pawl.Job) {
	var jobs []pawl.Job
	if spec.Repeat {
		jobs = s.claimed(spec)
	}
	if len(jobs) == 0 {
		jobs = s.claimNew(spec, now)
	}
	c := pawl.Claimed{Jobs: pointers(jobs)}
	if len(jobs) < spec.Max {
		c.NextDue = s.nextDue(spec.Queues, now)
	}
	return c, jobs
}

// claimed returns the jobs that still run under the token of spec, in the order
// in which they were claimed.
func (s *Store) claimed(spec *pawl.ClaimSpec) []pawl.Job {
	c := s.claims[spec.Token]
	if c == nil {
		return nil
	}
	var jobs []pawl.Job
	for _, ask := range spec.Queues {
		q := s.queues[ask.Queue]
		if q == nil {
			continue
		}
		for it := range q.in[pawl.Running].from(key{0, c.first, 0}) {
			if len(jobs) == c.open {
				break
			}
			if r := s.records.at(it.v); r.claim == c {
				jobs = append(jobs, pawl.Job{})
				r.fill(&jobs[len(jobs)-1])
			}
		}
	}
	return jobs
}

// claimNew makes ready jobs Running.
func (s *Store) claimNew(spec *pawl.ClaimSpec, now int64) []pawl.Job {
	n := s.claimable(spec)
	if n == 0 {
		return nil
	}
	jobs := make([]pawl.Job, 0, n)
	c := s.newClaim(spec)
	for _, ask := range spec.Queues {
		jobs = s.claimFrom(ask, spec, c, jobs, now)
	}
	return jobs
}

// claimable returns how many jobs spec will get.
func (s *Store) claimable(spec *pawl.ClaimSpec) int {
	n := 0
	for _, ask := range spec.Queues {
		if q := s.queues[ask.Queue]; q != nil && !q.paused {
			n += min(max(ask.Max, 0), q.in[pawl.Ready].size)
		}
	}
	return min(n, spec.Max)
}

// newClaim returns the claim for spec. The same token and worker again, while
// jobs of the first time still run, is the same claim.
func (s *Store) newClaim(spec *pawl.ClaimSpec) *claim {
	if c := s.claims[spec.Token]; c != nil && c.worker == spec.Worker {
		return c
	}
	c := &claim{token: spec.Token, worker: strings.Clone(spec.Worker), first: s.fence + 1}
	s.claims[spec.Token] = c
	return c
}

// claimFrom claims jobs of one queue and appends them to jobs, as far as there
// is room.
func (s *Store) claimFrom(ask pawl.QueueAsk, spec *pawl.ClaimSpec, c *claim, jobs []pawl.Job, now int64) []pawl.Job {
	q := s.queues[ask.Queue]
	if q == nil || q.paused {
		return jobs
	}
	ready := &q.in[pawl.Ready]
	for n := 0; n < ask.Max && ready.size > 0 && len(jobs) < cap(jobs); n++ {
		r := q.first(pawl.Ready)
		s.unlink(r)
		s.fence++
		r.run(c, s.fence, spec.Lease, now)
		s.link(r, now)
		jobs = jobs[:len(jobs)+1]
		r.fill(&jobs[len(jobs)-1])
	}
	return jobs
}

// run makes r Running.
func (r *record) run(c *claim, fence int64, lease time.Duration, now int64) {
	if r.claim == nil {
		r.startedAt = now
	}
	if r.terms.lease > 0 {
		lease = r.terms.lease
	}
	r.state, r.reason, r.claim, r.fence = pawl.Running, none, c, fence
	r.claimedAt, r.leaseUntil = now, after(now, lease)
	r.attempt++
	r.keyGone = true
	if r.extra != nil && r.extra.progress != nil {
		r.edit(func(e *extra) { e.progress = nil })
	}
}

// nextDue returns how long until the first scheduled job of the queues that can
// be claimed is due; 0 if there is none.
func (s *Store) nextDue(asks []pawl.QueueAsk, now int64) time.Duration {
	var next earliest
	for _, ask := range asks {
		if q := s.queues[ask.Queue]; q != nil && !q.paused {
			next.first(&q.in[pawl.Scheduled])
		}
	}
	return next.in(now)
}

func pointers(jobs []pawl.Job) []*pawl.Job {
	p := make([]*pawl.Job, len(jobs))
	for i := range jobs {
		p[i] = &jobs[i]
	}
	return p
}
