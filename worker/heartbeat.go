package worker

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

// beat returns how often a claim with that lease is extended.
func (p *Pool) beat(lease time.Duration) time.Duration {
	every := lease / 3 // so that two may fail
	if p.opts.Heartbeat > 0 {
		every = min(every, p.opts.Heartbeat)
	}
	return every
}

// beatBy makes the heartbeat look at t at the latest.
func (p *Pool) beatBy(t instant) {
	if t < p.beatAt {
		p.beatAt = t
		wake(p.beatWake)
	}
}

// heartbeat extends the claims in hand until ctx ends.
func (p *Pool) heartbeat(ctx context.Context) {
	for {
		due, wait := p.renewals()
		if len(due) > 0 {
			p.handBackPaused(ctx)
		}
		for chunk := range slices.Chunk(due, pawl.MaxStep) {
			p.renew(ctx, chunk)
		}
		if len(due) > 0 {
			continue
		}
		if !sleep(ctx, wait, p.beatWake) {
			return
		}
	}
}

// renewals returns the runs whose claims are to be extended, those that end
// first first, or how long there are none.
func (p *Pool) renewals() (due []*run, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	next := never
	if now < p.beatAt {
		return nil, p.beatAt.sub(now)
	}
	for r := range p.live.all {
		switch {
		case r.abandoned, r.phase == running && r.cause != nil && !mayExtend(r.cause):
		case r.renewAt <= now.add(r.lease/16): // those nearly due go along
			due = append(due, r)
		default:
			next = min(next, r.renewAt)
		}
	}
	slices.SortFunc(due, func(a, b *run) int { return cmp.Compare(a.leaseUntil, b.leaseUntil) })
	p.beatAt = next
	if len(due) == 0 && next == never {
		p.endLocked(&p.extendOutage, "extend")
	}
	return due, next.sub(now)
}

// mayExtend reports whether a claim is still this pool's whose handler's
// context was cancelled for that cause.
func mayExtend(cause error) bool { return cause == ErrTimeout || cause == ErrStopping }

// maxExtends is how many calls extend the claims of queues at the same time.
const maxExtends = 16

// renew extends the claims of runs: in one call, or after one that failed in one for each
// queue, since a storage may have lost what holds one queue alone.
func (p *Pool) renew(ctx context.Context, runs []*run) {
	parts := [][]*run{runs}
	if p.extendOutage.tries > 0 {
		parts = byQueue(runs)
	}
	errs := make([]error, len(parts))
	for first := 0; first < len(parts); first += maxExtends {
		var wg sync.WaitGroup
		for i := first; i < min(first+maxExtends, len(parts)); i++ {
			wg.Go(func() { errs[i] = p.extend(ctx, parts[i]) })
		}
		wg.Wait()
	}
	err := cmp.Or(errs...)
	if err == nil {
		p.recovered(&p.extendOutage, "extend")
		return
	}
	p.failed(&p.extendOutage, "extend", err)
	for i, part := range parts {
		if errs[i] != nil {
			p.postpone(part, p.extendOutage.tries)
		}
	}
}

// byQueue divides runs by their queues and keeps their order.
func byQueue(runs []*run) (parts [][]*run) {
	at := make(map[string]int)
	for _, r := range runs {
		i, known := at[r.ref.Queue]
		if !known {
			i = len(parts)
			at[r.ref.Queue], parts = i, append(parts, nil)
		}
		parts[i] = append(parts[i], r)
	}
	return parts
}

// extend extends the claims of runs in one call.
func (p *Pool) extend(ctx context.Context, runs []*run) error {
	renewals := make([]pawl.Renewal, len(runs))
	p.mu.Lock()
	sent := p.now()
	for i, r := range runs {
		renewals[i] = pawl.Renewal{Ref: r.ref, Lease: r.lease}
	}
	// A call that hangs must leave time for another.
	patience := min(max(runs[0].leaseUntil.sub(sent)/2, runs[0].lease/6), callTimeout)
	p.mu.Unlock()
	ctx, returned := p.calling(ctx, "extend", patience)
	defer returned()
	lost, err := p.q.ExtendBatch(ctx, renewals)
	if err != nil {
		return err
	}
	p.renewed(runs, lost, sent)
	return nil
}

// postpone tries again soon, but not more often than makes sense for the lease.
func (p *Pool) postpone(runs []*run, tries int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	for _, r := range runs {
		r.renewAt = now.add(min(backoff(tries), p.beat(r.lease)/2))
		p.beatAt = min(p.beatAt, r.renewAt)
	}
}

func (p *Pool) renewed(runs []*run, lost []pawl.Ref, sent instant) {
	isLost := refSet(lost)
	var stops stops
	p.mu.Lock()
	now := p.now()
	for _, r := range runs {
		switch {
		case r.phase == gone:
		case !isLost[r.ref]:
			r.hold(sent, p.beat(r.lease))
			p.beatAt = min(p.beatAt, r.renewAt)
		default:
			r.renewAt = never // there is nothing to extend
			cause := pawl.ErrLost
			if r.endedByHand(now) {
				cause = ErrCanceled
			}
			p.claimEnded(r, cause, &stops)
		}
	}
	p.mu.Unlock()
	stops.call()
}

// claimEnded takes in that someone has ended the claim of r. A handler that has
// settled it in its own transaction did so itself, and an outcome that is
// being settled will be told.
func (p *Pool) claimEnded(r *run, cause error, s *stops) {
	switch r.phase {
	case queued:
		r.cause = cause // start refuses it
	case running:
		if _, inTx := r.job.SettledInTx(); !inTx {
			p.cancel(r, cause, s)
		}
	}
}

// handBackPaused releases prefetched jobs whose queue is paused. It asks only
// for queues with jobs that wait for a heartbeat's time, since most start at
// once and storages with events tell of a pause.
func (p *Pool) handBackPaused(ctx context.Context) {
	queues := p.waitingQueues()
	if len(queues) == 0 {
		return
	}
	ctx, returned := p.calling(ctx, "look for pauses", min(p.beat(p.opts.Lease)/2, callTimeout))
	defer returned()
	stats, err := p.q.Stats(ctx, queues...)
	if err != nil {
		return // the next heartbeat asks again
	}
	for _, s := range stats {
		p.notePaused(s.Queue, s.Paused)
		if s.Paused {
			p.handBackQueue(s.Queue)
		}
	}
}

func (p *Pool) waitingQueues() (queues []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	for _, g := range p.groups {
		if g.ready.len() > 0 && now >= g.ready.first().claimed.add(p.beat(p.opts.Lease)/2) {
			queues = append(queues, g.queues...)
		}
	}
	return queues
}

// handBackQueue releases the jobs of a queue that wait for a slot.
func (p *Pool) handBackQueue(queue string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.groups {
		p.handBackReady(g, func(r *run) bool { return queue == "" || r.ref.Queue == queue })
	}
}

func (p *Pool) handBackReady(g *group, match func(*run) bool) {
	taken := g.ready.take(match)
	p.stats.Prefetched -= len(taken)
	for _, r := range taken {
		p.hand(r, pawl.Release)
	}
	if len(taken) > 0 {
		p.announce(g)
	}
}
