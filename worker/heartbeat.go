package worker

import (
	"cmp"
	"context"
	"maps"
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
		if len(due) > 0 {
			p.renew(ctx, due)
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
	ends, lease := never, 6*callTimeout
	suspects := make(map[string]bool)
	for r := range p.live.all {
		switch {
		case r.abandoned, r.renewAt == never, r.phase == running && r.cause != nil && !mayExtend(r.cause):
			continue
		case r.renewAt <= now.add(r.lease/16): // those nearly due go along
			due = append(due, r)
		default:
			next = min(next, r.renewAt)
		}
		ends, lease = min(ends, r.leaseUntil), min(lease, r.lease)
		if p.suspects[r.ref.Queue] {
			suspects[r.ref.Queue] = true
		}
	}
	slices.SortFunc(due, func(a, b *run) int { return cmp.Compare(a.leaseUntil, b.leaseUntil) })
	p.beatAt, p.suspects = next, suspects // of those that have something to extend still
	// A call that hangs must leave time for another.
	p.patience = min(max(ends.sub(now)/2, lease/6), callTimeout)
	if len(due) == 0 && next == never {
		p.endLocked(&p.extendOutage, "extend")
	}
	return due, next.sub(now)
}

// mayExtend reports whether a claim is still this pool's whose handler's
// context was cancelled for that cause.
func mayExtend(cause error) bool { return cause == ErrTimeout || cause == ErrStopping }

// maxSuspects is how many calls for suspects are under way at the same time.
const maxSuspects = 16

// renew extends the claims of runs. A queue whose claims could not be extended is a suspect, and
// has calls of its own until they can be: a storage may have lost what holds one queue alone,
// and the others must not wait for that. Each second time the suspects share one call that has
// all the time, since many short ones would be too much for a storage that is slow.
func (p *Pool) renew(ctx context.Context, runs []*run) {
	var all renewal
	var sound []*run
	suspects := make(map[string][]*run)
	for _, r := range runs {
		if queue := r.ref.Queue; p.suspects[queue] {
			suspects[queue] = append(suspects[queue], r)
		} else {
			sound = append(sound, r)
		}
	}
	calls := slices.Collect(maps.Values(suspects))
	if p.extendOutage.tries%2 == 0 && len(calls) > 0 { // all may be sound, and the storage just slow
		calls = [][]*run{slices.Concat(calls...)}
	}
	turns := (len(calls) + maxSuspects - 1) / maxSuspects
	share := p.patience / time.Duration(max(turns, 1)) // so that each has its turn
	room := make(chan struct{}, maxSuspects)
	var wg sync.WaitGroup
	for _, runs := range calls {
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			ctx, cancel := context.WithTimeout(ctx, share)
			defer cancel()
			p.extend(ctx, runs, &all)
		})
	}
	p.extend(ctx, sound, &all)
	wg.Wait()
	p.renewalEnded(&all, suspects)
}

// A renewal is what has become of the calls of one renew.
type renewal struct {
	mu     sync.Mutex
	err    error  // the first one
	failed []*run // whose claims could not be extended
}

func (n *renewal) fail(runs []*run, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err, n.failed = cmp.Or(n.err, err), append(n.failed, runs...)
}

// renewalEnded notes whose claims could be extended.
func (p *Pool) renewalEnded(n *renewal, asked map[string][]*run) {
	for queue := range asked {
		delete(p.suspects, queue)
	}
	for _, r := range n.failed {
		p.suspects[r.ref.Queue] = true
	}
	switch {
	case n.err != nil:
		p.failed(&p.extendOutage, "extend", n.err)
		p.postpone(n.failed, p.extendOutage.tries)
	case len(p.suspects) == 0:
		p.recovered(&p.extendOutage, "extend")
	}
}

// extend extends the claims of runs, in as few calls as the storage takes.
func (p *Pool) extend(ctx context.Context, runs []*run, n *renewal) {
	for some := range slices.Chunk(runs, pawl.MaxStep) {
		if err := p.extendSome(ctx, some); err != nil {
			n.fail(some, err)
		}
	}
}

func (p *Pool) extendSome(ctx context.Context, runs []*run) error {
	renewals := make([]pawl.Renewal, len(runs))
	p.mu.Lock()
	sent := p.now()
	for i, r := range runs {
		renewals[i] = pawl.Renewal{Ref: r.ref, Lease: r.lease}
	}
	p.mu.Unlock()
	ctx, returned := p.calling(ctx, "extend", p.patience)
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
// once and storages with events tell of a pause. Leases that end soon have to wait for this.
func (p *Pool) handBackPaused(ctx context.Context) {
	queues := p.waitingQueues()
	if len(queues) == 0 {
		return
	}
	ctx, returned := p.calling(ctx, "look for pauses", min(p.beat(p.opts.Lease), p.patience)/2)
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
