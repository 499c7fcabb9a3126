package storagetest

import (
	"errors"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// A pair does everything twice, in a storage and in the model of it, and
// compares what they say. What the contract leaves free is checked against its
// bounds and taken over by the model: fences, and the delay after a rescue.
type pair struct {
	*world
	m         *model
	variant   string
	lastFence map[pawl.ID]int64
}

func newPair(w *world) *pair {
	p := &pair{world: w, m: newModel()}
	p.m.part, p.m.ended = w.h.part, p.ended
	return p
}

// ended reports whether the storage has a job no longer waiting.
func (p *pair) ended(r *record) bool {
	p.Helper()
	jobs, err := p.s.Get(p.ctx, r.Queue, r.ID)
	p.ok(err)
	return jobs[0] == nil || !jobs[0].State.Waiting()
}

func (p *pair) pass(d time.Duration) { p.clock.Advance(d) }

func (p *pair) same(what string, got, want any) {
	p.Helper()
	if p.variant != "" {
		what = p.variant + ": " + what
	}
	p.world.same(what, got, want)
}

func (p *pair) add(q pawl.Request) pawl.ID {
	p.Helper()
	reqs := p.requests(q)
	p.enqueue(reqs...)
	return reqs[0].ID
}

func (p *pair) enqueue(reqs ...*pawl.Request) {
	p.Helper()
	got, err := p.s.Enqueue(p.ctx, reqs)
	want, full := p.m.enqueue(reqs, p.now())
	if full != nil {
		if !errors.Is(err, pawl.ErrFull) {
			p.Fatalf("%s: Enqueue: error %v, want %v", p.variant, err, full)
		}
		return
	}
	p.ok(err)
	p.same("receipts of Enqueue", got, want)
}

func (p *pair) claim(spec pawl.ClaimSpec) {
	p.Helper()
	got, err := p.s.Claim(p.ctx, spec)
	p.ok(err)
	p.claimed(spec, got.Jobs)
}

// claimed compares what a claim returned and takes over its fences, and what
// else the storage did meanwhile.
func (p *pair) claimed(spec pawl.ClaimSpec, got []*pawl.Job) {
	p.Helper()
	later := p.adoptRescues(spec, got)
	repeated := spec.Repeat && len(p.m.claimed(spec, nil)) > 0
	var want []*pawl.Job
	records := p.m.claim(spec, p.now(), got)
	for i, r := range records {
		if !repeated && i < len(got) && got[i] != nil && got[i].ID == r.ID {
			p.adopt(r, got[i].Fence)
		}
		want = append(want, &r.Job)
	}
	p.same("jobs of Claim", got, want)
	later()
}

// adopt takes over the fence of a new claim.
func (p *pair) adopt(r *record, fence int64) {
	p.Helper()
	if p.lastFence == nil {
		p.lastFence = map[pawl.ID]int64{}
	}
	if last, ok := p.lastFence[r.ID]; fence == 0 || ok && fence <= last {
		p.Fatalf("%s: claim has fence %d after %d: a fence grows with every claim of an ID", p.variant, fence, last)
	}
	r.Fence, p.lastFence[r.ID] = fence, fence
}

func (p *pair) settle(outcomes ...pawl.Outcome) {
	p.Helper()
	got, err := p.s.Settle(p.ctx, outcomes)
	p.ok(err)
	p.same("lost refs of Settle "+outcomes[0].Verb.String(), got, p.m.settle(outcomes, p.now()))
}

func (p *pair) extend(renewals ...pawl.Renewal) {
	p.Helper()
	got, err := p.s.Extend(p.ctx, renewals)
	p.ok(err)
	p.same("lost refs of Extend", got, p.m.extend(renewals, p.now()))
}

func (p *pair) change(c pawl.Change) {
	p.Helper()
	got, err := p.s.Change(p.ctx, c)
	p.ok(err)
	p.same("results of "+c.Verb.String(), got, p.m.change(c, p.now()))
}

// sweep sweeps both until nothing is left to do.
func (p *pair) sweep() {
	p.Helper()
	p.sweepBy(pawl.SweepSpec{Limit: pawl.MaxStep})
}

func (p *pair) sweepBy(spec pawl.SweepSpec) {
	p.Helper()
	var got, want pawl.Swept
	collect(&got, func() pawl.Swept { return p.world.sweepBy(spec) })
	collect(&want, func() pawl.Swept { return p.m.sweep(spec.BuriedRetention, p.now()) })
	p.same("refs that Sweep rescued", sorted(got.Rescued), sorted(want.Rescued))
	p.same("refs that Sweep buried", sorted(got.Buried), sorted(want.Buried))
	rescued := p.m.where(func(r *record) bool {
		return slices.ContainsFunc(got.Rescued, func(ref pawl.Ref) bool { return ref.ID == r.ID })
	})
	found := p.find(rescued)
	for _, r := range rescued {
		p.adoptDelay(r, found[r.ID])
	}
}

func sorted(refs []pawl.Ref) []pawl.Ref {
	return slices.SortedFunc(slices.Values(refs), func(a, b pawl.Ref) int { return slices.Compare(a.ID[:], b.ID[:]) })
}

// collect adds up sweeps until one finds nothing to do.
func collect(sum *pawl.Swept, sweep func() pawl.Swept) {
	for range maxSweeps {
		s := sweep()
		if !s.More && s.Promoted+s.Expired+s.Purged+len(s.Rescued)+len(s.Buried) == 0 {
			return
		}
		sum.Rescued = append(sum.Rescued, s.Rescued...)
		sum.Buried = append(sum.Buried, s.Buried...)
	}
}

// maxSweeps is more than any case can need.
const maxSweeps = 10_000
