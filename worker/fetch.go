package worker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/pawlq/pawl"
)

// claimGrace is how long a claim that is under way when the pool stops may
// still take; to break it off at once would leave its outcome unknown.
const claimGrace = time.Second

// A fetcher claims for all groups of a pool.
type fetcher struct {
	p      *Pool
	turn   int // which group is asked for first
	most   int // how many jobs in a claim
	outage outage
	// pending is a claim whose reply was lost; sent is when it was made first.
	pending    *pawl.ClaimSpec
	sent       instant
	handedBack bool // ClaimBatch has already seen to it
}

// fetch claims until the pool stops.
func (p *Pool) fetch(ctx context.Context) {
	f := &fetcher{p: p, most: pawl.MaxStep}
	for {
		spec, wait, stopping := f.plan()
		switch {
		case stopping:
			f.handBack(p.settleCtx)
			p.fetchEnds()
			return
		case spec.Max == 0:
			sleep(ctx, wait, p.fetchWake)
		default:
			f.claim(ctx, spec)
		}
	}
}

func (p *Pool) fetchEnds() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetchDone = true
	p.quiet.Broadcast()
}

// plan returns what to claim now, or how long there is nothing to do unless
// fetchWake wakes.
func (f *fetcher) plan() (spec pawl.ClaimSpec, wait time.Duration, stopping bool) {
	p := f.p
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetchIdle = false
	if p.stopping {
		p.callSettler()
		return spec, 0, true
	}
	if wait := f.holdOff(p.now()); wait > 0 {
		p.callSettler()
		return spec, wait, false
	}
	if f.pending != nil {
		return *f.pending, 0, false
	}
	spec, next := f.ask(p.now())
	if spec.Max == 0 {
		p.fetchIdle = true
		p.callSettler()
		return spec, next, false
	}
	spec.Lease, spec.Worker, spec.Token = p.opts.Lease, p.opts.WorkerID, rand.Int64()
	return spec, 0, false
}

// choresWait is how long the fetcher waits when there are too many chores.
const choresWait = 10 * time.Millisecond

// holdOff returns how long not to claim, because the storage fails, or because
// settles or hooks can't keep up.
func (f *fetcher) holdOff(now instant) time.Duration {
	if f.p.answers {
		f.p.answers = false
		f.outage.tries = min(f.outage.tries, 1) // begin with short pauses again
		f.outage.until = now
	}
	switch {
	case f.outage.tries > 0 && now < f.outage.until:
		return f.outage.until.sub(now)
	case f.p.owesTooMuch():
		f.p.fetchHeld = true
		return never.sub(now) // forget wakes it
	case f.p.choresBehind():
		return choresWait
	default:
		return 0
	}
}

// ask collects what the groups want, and how long none will want anything if
// none does now. Groups take turns in being first, so that those at the end are
// not left out when all want more than one claim gives.
func (f *fetcher) ask(now instant) (spec pawl.ClaimSpec, wait time.Duration) {
	p := f.p
	next := p.wetten(now)
	f.turn++
	for i := range p.groups {
		g := p.groups[(f.turn+i)%len(p.groups)]
		g.asked, g.got, g.seen, g.shrunk = 0, 0, g.events, false
		if g.dry {
			continue
		}
		g.asked = min(g.want(now), f.most-spec.Max)
		if g.asked == 0 {
			continue
		}
		spec.Max += g.asked
		spec.Queues = append(spec.Queues, g.asks(g.asked)...)
	}
	return spec, next.sub(now)
}

// wetten ends the dryness of groups whose time has come, and then also of those
// whose time is near, so that idle queues are looked at together. It returns
// when the next group's time comes.
func (p *Pool) wetten(now instant) (next instant) {
	next = never
	until := now
	for _, g := range p.groups {
		if !g.dry && g.want(now) > 0 || g.dry && now >= g.wetAt {
			until = now.add(p.opts.Poll / 2)
		}
	}
	for _, g := range p.groups {
		switch {
		case !g.dry:
		case g.wetAt <= until:
			g.dry = false
		default:
			next = min(next, g.wetAt)
		}
	}
	return next
}

// claim makes the call, with what is to be settled where that saves one.
func (f *fetcher) claim(ctx context.Context, spec pawl.ClaimSpec) {
	p := f.p
	var batch []*run
	if p.cycles && !p.opts.SettleNow {
		batch = p.takeForClaim()
	}
	sent := p.now()
	if f.pending != nil {
		sent = f.sent
	}
	c, err := f.call(ctx, spec, batch)
	switch {
	case err == nil, len(c.Jobs) > 0:
	case len(batch) > 0 && errors.Is(err, pawl.ErrInvalid):
		return // an outcome was at fault, and nothing was claimed
	default:
		f.broken(spec, sent, err)
		return
	}
	p.recovered(&f.outage, "claim")
	if f.pending != nil {
		f.pending = nil
		p.renewRecovered(ctx, c.Jobs, spec, &sent)
	}
	f.pace(c.Jobs, p.now().sub(sent))
	p.takeIn(c, spec, sent)
}

// pace makes claims smaller that take a good part of the leases that they
// bring, since on a storage that slow all of them could end before they start.
func (f *fetcher) pace(jobs []*pawl.Job, took time.Duration) {
	lease := f.p.opts.Lease
	for _, j := range jobs {
		if j.Lease > 0 {
			lease = min(lease, j.Lease)
		}
	}
	switch {
	case took <= lease/8:
		f.most = min(2*f.most, pawl.MaxStep)
	case len(jobs) > 0: // an empty claim tells nothing of large ones
		f.most = max(min(f.most, len(jobs))/2, 1)
	}
}

func (f *fetcher) call(ctx context.Context, spec pawl.ClaimSpec, batch []*run) (pawl.Claimed, error) {
	p := f.p
	ctx, returned := p.calling(ctx, "claim", callTimeout)
	defer returned()
	if len(batch) == 0 {
		c, err := p.q.ClaimBatch(ctx, spec)
		f.handedBack = err != nil && ctx.Err() != nil // by ClaimBatch itself
		return c, err
	}
	f.handedBack = false
	p.expire()
	lost, c, err := p.q.Cycle(ctx, outcomesOf(batch), spec)
	p.conclude(batch, lost, err)
	return c, err
}

// broken notes that the claim failed and may have had its effect.
func (f *fetcher) broken(spec pawl.ClaimSpec, sent instant, err error) {
	spec.Repeat = true
	f.pending, f.sent = &spec, sent
	var busy *pawl.BusyError
	if f.p.isStopping() || errors.As(err, &busy) {
		return
	}
	f.p.failed(&f.outage, "claim", err)
}

// handBack looks, when the pool stops, for what a claim whose reply was lost
// has claimed, and releases it.
func (f *fetcher) handBack(ctx context.Context) {
	if f.pending == nil || f.handedBack {
		return
	}
	ctx, returned := f.p.calling(ctx, "claim", claimGrace)
	defer returned()
	c, err := f.p.q.ClaimBatch(ctx, *f.pending)
	if err != nil {
		f.p.mu.Lock()
		f.p.logLater(slog.LevelWarn, "worker: claim of unknown outcome is left to its lease", "err", err)
		f.p.mu.Unlock()
		return
	}
	f.p.takeIn(c, *f.pending, f.p.now())
}

// renewRecovered lets the leases of jobs begin anew that were claimed at an
// unknown time.
func (p *Pool) renewRecovered(ctx context.Context, jobs []*pawl.Job, spec pawl.ClaimSpec, sent *instant) {
	if len(jobs) == 0 {
		return
	}
	renewals := make([]pawl.Renewal, len(jobs))
	for i, j := range jobs {
		renewals[i] = pawl.Renewal{Ref: j.Ref, Lease: cmp.Or(j.Lease, spec.Lease)}
	}
	ctx, returned := p.calling(ctx, "extend", callTimeout)
	defer returned()
	now := p.now()
	// Those lost are found so by their next heartbeat or settle.
	if _, err := p.q.ExtendBatch(ctx, renewals); err == nil {
		*sent = now
	}
}

// takeIn hands the claimed jobs to the groups.
func (p *Pool) takeIn(c pawl.Claimed, spec pawl.ClaimSpec, sent instant) {
	runs := make([]run, len(c.Jobs))
	for i, j := range c.Jobs {
		p.makeRun(&runs[i], j, spec.Lease, sent)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.progress = now
	p.stats.Claims++
	p.stats.Claimed += int64(len(runs))
	if len(runs) == 0 {
		p.stats.EmptyClaims++
	}
	for _, r := range p.arrange(runs) {
		p.place(r, now)
	}
	for _, g := range p.groups {
		p.trim(g)
	}
	if len(runs) > 0 {
		p.expireBy(sent.add(holdLimit))
		p.callSettler()
	}
	p.dryness(c.NextDue, now)
	for _, g := range p.groups {
		for range min(g.ready.len(), p.procs) {
			g.call(p.procs)
		}
	}
}

func (p *Pool) makeRun(r *run, j *pawl.Job, lease time.Duration, sent instant) {
	r.ref, r.job, r.kindName, r.size = j.Ref, j, j.Kind, len(j.Payload)
	r.lease = cmp.Or(j.Lease, lease)
	r.claimed = sent
	r.hold(sent, p.beat(r.lease))
	r.group = p.byQueue[j.Queue]
	r.kind = p.kinds[j.Kind]
	if r.kind == nil {
		r.kind = p.fallback
	}
	if r.kind != nil {
		ctx, stop := context.WithCancelCause(p.base)
		r.ctx, r.stop = &handlerContext{Context: ctx, claim: claim{p.q, p, r}}, stop
	}
}

// place puts a claimed run where it belongs.
func (p *Pool) place(r *run, now instant) {
	late := now >= r.leaseUntil // by the time of the call; the storage's goes on for a while
	if late {
		r.renewAt = now.add(p.beat(r.lease)) // not before it is handed back
	}
	p.live.add(r)
	p.beatBy(r.renewAt)
	if r.group != nil {
		r.group.got++
	}
	switch {
	case p.stopping || r.group == nil:
		p.hand(r, pawl.Release)
	case r.kind == nil:
		p.stranger(r)
	case late:
		p.hand(r, pawl.Release)
	case r.lastRescue() && r.group.busy():
		p.hand(r, pawl.Release)
		r.group.careful = now.add(carefulTime)
	default:
		r.group.ready.push(r)
		p.stats.Prefetched++
	}
}

// lastRescue reports whether the job was rescued so often that the next time buries
// it. It must not wait here beside others, one of which may be what kills the
// processes: its last chance is to be one in which it starts.
func (r *run) lastRescue() bool { return r.job.Rescued > 0 && r.job.Rescued >= r.job.MaxRescues }

// hand settles a run that has not started.
func (p *Pool) hand(r *run, verb pawl.Verb) {
	r.refund()
	r.outcome = pawl.Outcome{Ref: r.ref, Verb: verb}
	p.owe(r)
	p.done.push(r)
}

// maxStrangers bounds the memory for kinds that can't be run here.
const maxStrangers = 1000

// firstOf reports whether a complaint has not been logged yet, and notes that it
// is. It is called with mu held.
func (p *Pool) firstOf(complaint string) bool {
	if p.strangers[complaint] || len(p.strangers) >= maxStrangers {
		return false
	}
	p.strangers[complaint] = true
	return true
}

// stranger hands back a job of a kind that this pool does not run.
func (p *Pool) stranger(r *run) {
	if p.firstOf(r.kindName) {
		p.logLater(slog.LevelWarn, "worker: no handler for this kind, its jobs are handed back",
			"kind", r.kindName, "queue", r.ref.Queue)
	}
	p.hand(r, pawl.Skip)
	r.outcome.Delay = pawl.SkipDelay(r.job.Counts.Skips)
}

// dryness notes which groups' queues had less than was asked for, and when they
// are to be looked at again.
func (p *Pool) dryness(nextDue time.Duration, now instant) {
	for _, g := range p.groups {
		if g.asked == 0 {
			continue
		}
		if !g.drained() || g.events != g.seen {
			g.empty = 0
			continue
		}
		wait := p.poll(g)
		if nextDue > 0 {
			wait = min(wait, nextDue)
		}
		g.dry, g.wetAt = true, now.add(wait)
	}
}

// poll returns how long to wait before a queue without events is looked at
// again. While nothing tells of new jobs and there were some lately, that is
// shorter.
func (p *Pool) poll(g *group) time.Duration {
	if g.got > 0 {
		g.empty = 0
	}
	d := p.opts.Poll
	if !p.watching && g.empty < 4 {
		d = max(d>>(4-g.empty), min(d, time.Millisecond))
	}
	g.empty++
	return d - rand.N(d/4+1) // never later, so that no job waits for longer
}

// jitter returns d, a quarter more or less.
func jitter(d time.Duration) time.Duration { return d - d/4 + rand.N(d/2+1) }
