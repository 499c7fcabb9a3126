package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pawlq/pawl"
)

const (
	// linger is how long the settler gathers outcomes of fast jobs, and
	// lingerFull how many are enough. A group costs the storage about as much
	// as one outcome.
	linger     = time.Millisecond
	lingerFull = 64

	// settleBytes bounds the results and error texts of one call.
	settleBytes = 8 << 20

	// maxOwed and maxOwedBytes are how many outcomes may wait to be settled, and
	// how many bytes they and their jobs' payloads may have, before the pool claims
	// no more. As many as two calls settle leave room for one to be under way while
	// others gather.
	maxOwed      = 2 * pawl.MaxStep
	maxOwedBytes = 64 << 20

	// groupTries is how many times an outcome may fail together with others.
	groupTries = 3

	// maxAlone is how many times an outcome may fail in a call of its own while
	// others succeed before it counts as impossible to store. A call that was
	// merely too slow does not count.
	maxAlone = 10
)

// settleLoop settles outcomes until the pool is over. ctx ends its calls.
func (p *Pool) settleLoop(ctx context.Context) {
	for {
		batch, wait, over := p.nextBatch()
		switch {
		case over:
			return
		case len(batch) > 0:
			p.settle(ctx, batch)
		default:
			sleep(ctx, wait, p.settleWake)
		}
	}
}

// nextBatch returns what to settle now, or how long to wait for more.
func (p *Pool) nextBatch() (batch []*run, wait time.Duration, over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settleWant = 0
	now := p.now()
	if p.over {
		return nil, 0, true
	}
	p.retry(now)
	n := p.done.len()
	if wait := p.settleOutage.until.sub(now); p.settleOutage.tries > 0 && wait > 0 {
		return nil, wait, false
	}
	if n > 0 && !(n < lingerFull && now < p.lingerUntil && p.stats.Running > 0) {
		p.lingerUntil = 0
		if p.lingers() {
			p.lingerUntil = now.add(linger)
		}
		return p.take(), 0, false
	}
	if n > 0 {
		p.settleWant = lingerFull
		return nil, p.lingerUntil.sub(now), false
	}
	p.settleWant = 1
	return nil, p.nextRetry().sub(now), false
}

// lingers reports whether jobs end so fast that gathering them pays.
func (p *Pool) lingers() bool {
	if p.opts.SettleNow {
		return false
	}
	for _, g := range p.groups {
		if g.measured && g.running > 0 && g.duration < linger {
			return true
		}
	}
	return false
}

// owe takes in that r has ended and is to be settled. It is called with mu held.
func (p *Pool) owe(r *run) {
	r.phase = ended
	r.owed = r.size + r.outcomeSize()
	p.owed++
	p.owedBytes += r.owed
}

func (r *run) outcomeSize() int {
	return len(r.outcome.Result) + len(r.outcome.Error) + len(r.outcome.Stack)
}

// owesTooMuch reports whether the settles don't keep up. It is called with mu
// held.
func (p *Pool) owesTooMuch() bool { return p.owed >= maxOwed || p.owedBytes >= maxOwedBytes }

// callSettler wakes the settler if there is as much as it wants.
func (p *Pool) callSettler() {
	if p.settleWant > 0 && p.done.len() >= p.settleWant {
		p.settleWant = 0
		wake(p.settleWake)
	}
}

// announce tells who waits for it that a run of g has ended.
func (p *Pool) announce(g *group) {
	if p.stopping {
		p.quiet.Broadcast()
	}
	if p.fetchIdle && !g.dry && !p.stopping && g.want(p.now()) > 0 {
		p.fetchIdle = false
		wake(p.fetchWake)
		if p.cycles && !p.opts.SettleNow {
			return // the fetcher takes the outcomes with it
		}
	}
	p.callSettler()
}

// idle is called before a slot parks.
func (p *Pool) idle() {
	if p.stats.Running == 0 && p.settleWant > 1 && p.done.len() > 0 {
		p.settleWant = 0
		wake(p.settleWake)
	}
}

// takeForClaim takes what the fetcher can settle as it claims. What has failed
// before, or fails at present, is left to the settler, so that it hinders no
// claim.
func (p *Pool) takeForClaim() []*run {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settleOutage.tries > 0 || p.done.len() > 0 && p.done.first().solo {
		p.callSettler()
		return nil
	}
	return p.take()
}

// take takes the outcomes of one call.
func (p *Pool) take() (batch []*run) {
	limit := pawl.MaxStep
	if p.opts.SettleNow {
		limit = 1
	}
	n := min(limit, p.done.len())
	batch = make([]*run, 0, n)
	for size := 0; len(batch) < n && size < settleBytes; {
		r := p.done.first()
		if r.solo && len(batch) > 0 {
			break
		}
		batch = append(batch, p.done.pop())
		if r.solo {
			break
		}
		size += r.outcomeSize()
	}
	return batch
}

func outcomesOf(batch []*run) []pawl.Outcome {
	outcomes := make([]pawl.Outcome, len(batch))
	for i, r := range batch {
		outcomes[i] = r.outcome
	}
	return outcomes
}

// settle settles batch in one call.
func (p *Pool) settle(ctx context.Context, batch []*run) {
	// After the process was paused, handlers learn first what they have lost.
	p.expire()
	ctx, returned := p.calling(ctx, "settle", callTimeout)
	defer returned()
	lost, err := p.q.Settle(ctx, outcomesOf(batch))
	p.conclude(batch, lost, err)
}

// conclude takes in the answer to a settle of batch.
func (p *Pool) conclude(batch []*run, lost []pawl.Ref, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var busy *pawl.BusyError
	switch {
	case err == nil:
		p.settled(batch, lost, nil)
	case errors.As(err, &busy):
		p.settled(batch, lost, busy.Refs)
	case errors.Is(err, pawl.ErrInvalid):
		p.invalid(batch, err)
	default:
		p.unsettled(batch, err)
	}
	if p.stopping {
		p.quiet.Broadcast()
	}
}

// settled takes in that all of batch was settled but those lost and busy.
func (p *Pool) settled(batch []*run, lost, busy []pawl.Ref) {
	p.recoveredLocked(&p.settleOutage, "settle")
	p.succeeded++
	p.progress = p.now()
	p.stats.Settles++
	p.stats.Settled += int64(len(batch) - len(busy))
	isLost, isBusy := refSet(lost), refSet(busy)
	for _, r := range batch {
		switch {
		case isBusy[r.ref]:
			p.later(r, busyDelay)
		case isLost[r.ref]:
			p.settledByOthers(r)
		default:
			if r.untold {
				p.tellFailure(r, r.failure)
			}
			p.count(r, r.outcome.Verb)
			p.forget(r)
		}
	}
}

// settledByOthers takes in that someone has ended the claim of r. The handler's own
// transaction may have, which was open still when it was looked at.
func (p *Pool) settledByOthers(r *run) {
	lost := func() { p.lost(r, "before it was settled") }
	if verb, ok := r.job.SettledInTx(); ok {
		p.verifyApart(r, verb, lost)
		return
	}
	lost()
}

// busyDelay is how long a claim is left alone that an open transaction holds.
const busyDelay = 50 * time.Millisecond

func refSet(refs []pawl.Ref) map[pawl.Ref]bool {
	if len(refs) == 0 {
		return nil
	}
	set := make(map[pawl.Ref]bool, len(refs))
	for _, ref := range refs {
		set[ref] = true
	}
	return set
}

// invalid takes in that an outcome of batch can't be stored. Each is tried
// alone; the guilty one becomes a failure of its job.
func (p *Pool) invalid(batch []*run, err error) {
	if len(batch) > 1 {
		for _, r := range batch {
			r.solo = true
			p.done.push(r)
		}
		wake(p.settleWake)
		return
	}
	p.impossible(batch[0], err)
}

// impossible replaces an outcome that can't be stored by one that says so, and
// gives the job up if that can't be stored either. A job that was to be handed
// back is given up at once: it must not fail for that, and it may not have a
// kind here.
func (p *Pool) impossible(r *run, err error) {
	p.logLater(slog.LevelError, "worker: outcome can't be stored", append(r.attrs(), "verb", r.outcome.Verb, "err", err)...)
	if verb := r.outcome.Verb; r.refused || verb == pawl.Release || verb == pawl.Skip {
		p.stats.Lost++
		p.tellEvent(EventLost, r)
		p.forget(r) // its lease ends by itself
		return
	}
	r.refused, r.alone = true, 0
	p.chore(func() {
		p.fail(r, fmt.Errorf("worker: outcome can't be stored: %w", err))
		p.mu.Lock()
		defer p.mu.Unlock()
		p.done.push(r)
		p.callSettler()
	})
}

// unsettled takes in that nothing is known about batch. Its runs are tried
// again, after some failures each alone, so that one that no call can settle
// hinders no other.
func (p *Pool) unsettled(batch []*run, err error) {
	p.failedLocked(&p.settleOutage, "settle", err)
	for _, r := range batch {
		r.outcome.Repeat = true
		r.tries++
		r.solo = r.tries >= groupTries
		if len(batch) == 1 && p.succeeded > r.seen && !errors.Is(err, context.DeadlineExceeded) {
			r.alone++
		}
		r.seen = p.succeeded
		if r.alone >= maxAlone {
			p.impossible(r, err)
			continue
		}
		p.later(r, backoff(r.tries))
	}
}

// later tries r again after about d.
func (p *Pool) later(r *run, d time.Duration) {
	r.retryAt = p.now().add(jitter(d))
	p.again = append(p.again, r)
	if p.settleWant > 0 { // the settler waits, perhaps for longer
		wake(p.settleWake)
	}
}

// retry moves those whose time has come to the others.
func (p *Pool) retry(now instant) {
	if len(p.again) == 0 {
		return
	}
	rest := p.again[:0]
	for _, r := range p.again {
		if now >= r.retryAt {
			p.done.push(r)
		} else {
			rest = append(rest, r)
		}
	}
	clear(p.again[len(rest):])
	p.again = rest
}

func (p *Pool) nextRetry() instant {
	next := never
	for _, r := range p.again {
		next = min(next, r.retryAt)
	}
	return next
}

// count counts what became of r and tells the kind of a burial.
func (p *Pool) count(r *run, verb pawl.Verb) {
	switch verb {
	case pawl.Ack:
		p.stats.Completed++
		p.tellEvent(EventCompleted, r)
	case pawl.Release:
		p.stats.Released++
		p.tellReleased(r)
	case pawl.SnoozeFor:
		p.stats.Snoozed++
		p.tellReleased(r)
	case pawl.Skip:
		p.stats.Skipped++
	case pawl.Nack:
		p.stats.Failed++
		p.tellEvent(EventFailed, r)
		if lastAttempt(r.job) {
			p.buried(r)
		}
	case pawl.Bury:
		p.stats.Failed++
		p.tellEvent(EventFailed, r)
		p.buried(r)
	}
}

func (p *Pool) buried(r *run) {
	p.stats.Buried++
	p.tellEvent(EventBuried, r)
	p.logLater(slog.LevelWarn, "worker: job buried", append(r.attrs(), "attempt", r.job.Attempt)...)
	if hook := r.kind.OnBury; hook != nil {
		p.tell(hook, r.job, r.failure)
	}
}

// endedByHand reports whether someone ended the claim of r that is lost by now,
// as the storage's events have told, or because its lease has not ended.
func (r *run) endedByHand(now instant) bool {
	return r.cause == ErrCanceled || now < r.leaseUntil && !errors.Is(r.cause, pawl.ErrLost)
}

// lost gives up a run whose claim is no longer current.
func (p *Pool) lost(r *run, when string) {
	p.countLost(r, when)
	p.forget(r)
}

func (p *Pool) countLost(r *run, when string) {
	p.stats.Lost++
	if r.endedByHand(p.now()) {
		p.stats.Canceled++
		p.tellEvent(EventCanceled, r)
		p.logLater(slog.LevelInfo, "worker: job was canceled "+when, r.attrs()...)
		return
	}
	p.tellEvent(EventLost, r)
	p.logLater(slog.LevelWarn, "worker: claim was lost "+when, r.attrs()...)
}

// forget lets go of r.
func (p *Pool) forget(r *run) {
	p.live.remove(r)
	if r.phase == ended {
		p.owed--
		p.owedBytes -= r.owed
		if p.fetchHeld && !p.owesTooMuch() {
			p.fetchHeld = false
			wake(p.fetchWake)
		}
	}
	r.phase = gone
	// Runs share memory with others of their claim, which may stay longer.
	r.job, r.kind, r.ctx, r.stop, r.outcome = nil, nil, nil, nil, pawl.Outcome{}
	if p.stopping {
		p.quiet.Broadcast()
	}
}
