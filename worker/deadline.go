package worker

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/pawlq/pawl"
)

// stuckGrace is how long a handler may take to return after its context was
// cancelled before it is given up.
const stuckGrace = time.Second

// stops are contexts to be cancelled once mu is free: what hangs on them may
// take its time.
type stops []func()

func (s stops) call() {
	for _, stop := range s {
		stop()
	}
}

// cancel cancels the context of a running handler, the first time.
func (p *Pool) cancel(r *run, cause error, s *stops) {
	if r.cause != nil {
		return
	}
	r.cause = cause
	r.grace = p.now().add(stuckGrace)
	p.expireBy(r.grace)
	stop := r.stop
	*s = append(*s, func() { stop(cause) })
}

// expireBy makes deadlines be looked at by t at the latest.
func (p *Pool) expireBy(t instant) {
	if t < p.expireAt {
		p.expireAt = t
		wake(p.deadlineWake)
	}
}

// deadlines watches over timeouts, local ends of leases and handlers that
// ignore both, until ctx ends. One timer serves all of them: it is set to the
// first of those that were known when it was looked at, and a job that ends
// before leaves it alone, so that a job costs a comparison.
func (p *Pool) deadlines(ctx context.Context) {
	for {
		wait := p.expire()
		if !sleep(ctx, wait, p.deadlineWake) {
			return
		}
	}
}

// expire acts on the deadlines that have passed and returns how long there is
// nothing to do.
func (p *Pool) expire() time.Duration {
	var stops stops
	p.mu.Lock()
	now := p.now()
	if now < p.expireAt {
		wait := p.expireAt.sub(now)
		p.mu.Unlock()
		return wait
	}
	p.expireAt = never
	for r := range p.live.all {
		if r.phase == running && !r.abandoned && !r.returned && p.expireRun(r, now, &stops) {
			p.giveUpOn(r)
		}
	}
	p.handBackStale(now)
	wait := p.expireAt.sub(now)
	p.mu.Unlock()
	stops.call()
	return wait
}

// expireRun acts on the deadlines of one run and reports whether its handler
// is to be given up.
func (p *Pool) expireRun(r *run, now instant, s *stops) (stuck bool) {
	_, inTx := r.job.SettledInTx()
	switch {
	case r.cause != nil && now >= r.grace:
		return r.cause != ErrStopping // those are left to Run
	case r.cause != nil:
		if r.cause != ErrStopping {
			p.expireAt = min(p.expireAt, r.grace)
		}
	case now >= r.leaseUntil && !inTx:
		p.cancel(r, errLease, s)
	case now >= r.deadline:
		p.cancel(r, ErrTimeout, s)
	default:
		next := r.deadline
		if !inTx {
			next = min(next, r.leaseUntil)
		}
		p.expireAt = min(p.expireAt, next)
	}
	return false
}

// giveUpOn gives up a handler that ignores the end of its context. What is left
// to settle becomes a run of its own.
func (p *Pool) giveUpOn(r *run) {
	p.abandon(r)
	rest := &run{
		ref: r.ref, job: r.job, kind: r.kind, group: r.group, kindName: r.kindName,
		ran: true, claimed: r.claimed, took: p.now().sub(r.started), cause: r.cause, lease: r.lease, leaseUntil: r.leaseUntil, renewAt: r.renewAt,
	}
	verb, inTx := r.job.SettledInTx()
	if r.cause != ErrTimeout && !inTx {
		p.countLost(rest, "while it ran")
		if p.stopping {
			p.quiet.Broadcast()
		}
		return
	}
	p.live.add(rest)
	p.beatBy(rest.renewAt)
	p.owe(rest)
	switch {
	case !inTx:
		go p.nackStuck(rest)
	case r.cause == ErrTimeout:
		p.verifyApart(rest, verb, func() { go p.nackStuck(rest) })
	default:
		p.verifyApart(rest, verb, func() { p.lost(rest, "while it ran") })
	}
}

// nackStuck settles the claim of a handler that was given up. A Backoff may take
// its time, or wait for what the handler holds: nobody waits for this but by the
// run, which is reported if it is not settled in the end.
func (p *Pool) nackStuck(r *run) {
	p.fail(r, fmt.Errorf("%w after %v and ignored it", ErrTimeout, r.timeout()))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done.push(r)
	p.callSettler()
}

// abandon gives up a running handler: it keeps its goroutine, but nobody waits
// for it, and another slot may take its place, unless it was in one too many.
func (p *Pool) abandon(r *run) {
	r.abandoned = true
	p.stats.Running--
	p.stats.Stuck++
	r.group.running--
	if r.spare = r.group.retire(); !r.spare {
		r.group.slots--
		r.group.lost++
		p.replaceLost()
	}
	p.slots.Done()
	if !r.returned {
		p.logLater(slog.LevelError, "worker: handler ignores the end of its context and is given up",
			append(r.attrs(), "cause", r.cause)...)
	}
}

// replaceLost lets other slots take the place of those whose handlers were given
// up, as far as there are replacements left.
func (p *Pool) replaceLost() {
	for r := range p.live.all {
		if p.closing || p.replaced >= p.maxStuck() {
			return
		}
		if r.abandoned && !r.replaced && !r.spare {
			r.replaced = true
			p.replaced++
			r.group.lost--
			p.fill(r.group)
			p.announce(r.group)
		}
	}
}

// maxStuck bounds the slots that stand in for stuck ones.
func (p *Pool) maxStuck() int {
	if p.opts.MaxStuck != 0 {
		return p.opts.MaxStuck
	}
	n := 0
	for _, g := range p.groups {
		n += g.limit
	}
	return n
}

// holdLimit is how long a job prefetched by the pool's own judgement may wait
// for a slot before it is handed back to those who may have one.
const holdLimit = time.Second

// handBackStale releases jobs that have waited too long for a slot.
func (p *Pool) handBackStale(now instant) {
	for _, g := range p.groups {
		for g.fixed == 0 && g.ready.len() > 0 {
			oldest := g.ready.first()
			if until := oldest.claimed.add(holdLimit); now < until {
				p.expireAt = min(p.expireAt, until)
				break
			}
			g.ready.pop()
			p.stats.Prefetched--
			p.hand(oldest, pawl.Release)
			g.duration = max(g.duration, holdLimit) // so much for the average
			p.announce(g)
		}
	}
}
