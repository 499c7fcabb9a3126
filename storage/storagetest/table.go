package storagetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// tableCases are the transition table of internal/docs/design.md: each way
// into each state, times each verb, and within a case all unique modes, with
// and without DeleteNow. A verb that does not apply must leave the job as it
// was.
func tableCases() []testCase {
	var cases []testCase
	for _, r := range routes() {
		for _, v := range verbs() {
			c := testCase{
				name: fmt.Sprintf("%v (%s) × %s", r.state, r.name, v.name),
				says: fmt.Sprintf("%s of a job that is %v (%s): %s", v.name, r.state, r.name, v.says(r.state)),
				run:  func(w *world) { runTransition(w, r, v) },
			}
			if v.name == dropVerb {
				c.needs = traits.exactDepth
			}
			cases = append(cases, c)
		}
	}
	return cases
}

// runTransition tries the verb on a job of each kind that the table tells
// apart.
func runTransition(w *world, r route, v tableVerb) {
	for _, variant := range variants() {
		p := newPair(w)
		p.variant = variant.name
		q := variant.request
		q.ID, q.Payload, q.Meta = newID(), []byte("payload"), map[string]string{"trace": "1"}
		if v.prep != nil {
			v.prep(&q)
		}
		w.clock.Set(Epoch)
		id := r.steps(p, q)
		p.verify("on the way to " + r.state.String())
		if before := p.m.jobs[id]; before != nil { // with DeleteNow some states leave no record
			p.transition(before, v, q)
		}
		p.clear()
	}
}

type variant struct {
	name    string
	request pawl.Request
}

func variants() []variant {
	var all []variant
	for _, retention := range []time.Duration{2 * DefaultRetention, pawl.DeleteNow} {
		keep := "kept"
		if retention == pawl.DeleteNow {
			keep = "DeleteNow"
		}
		all = append(all,
			variant{"no key, " + keep, pawl.Request{Retention: retention}},
			variant{"UniqueUntilFinal, " + keep, pawl.Request{Retention: retention, UniqueKey: "k"}},
			variant{"UniqueUntilClaimed, " + keep, pawl.Request{Retention: retention, UniqueKey: "k", UniqueMode: pawl.UniqueUntilClaimed}},
			variant{"UniqueUntilWindow, " + keep, pawl.Request{
				Retention: retention, UniqueKey: "k", UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: 10 * time.Minute,
			}},
		)
	}
	return all
}

// transition tries the verb and looks at everything that the table names.
func (p *pair) transition(before *record, v tableVerb, q pawl.Request) {
	p.Helper()
	from, ref := before.State, before.Ref
	if ref.Fence == 0 {
		ref.Fence = p.lastFence[before.ID]
	}
	p.pass(time.Second)
	v.do(p, subject{before.ID, ref, q})
	p.verify("after " + v.name)
	if after := p.m.jobs[before.ID]; after != nil && v.to != nil { // else it went, or the verb has no fixed end
		end, ok := v.to[from]
		if !ok {
			end = from
		}
		if after.State != end {
			p.Fatalf("%s: %v became %v, want %v", p.variant, from, after.State, end)
		}
	}
	p.fenceEnded(ref)
	if q.UniqueKey != "" {
		p.keyHeld(queueA, q.UniqueKey)
	}
}

// fenceEnded tries the old ref with every verb, unless it is still current. It
// uses few calls, since it runs thousands of times.
func (p *pair) fenceEnded(ref pawl.Ref) {
	p.Helper()
	r := p.m.jobs[ref.ID]
	if ref.Fence == 0 || r != nil && r.current(ref) {
		return
	}
	for _, repeat := range []bool{false, true} {
		var late []pawl.Outcome
		for v := pawl.Ack; v <= pawl.Skip; v++ {
			late = append(late, pawl.Outcome{Ref: ref, Verb: v, Error: "late", Repeat: repeat})
		}
		p.settle(late...)
	}
	p.extend(pawl.Renewal{Ref: ref, Lease: time.Hour, Progress: &pawl.Progress{Percent: 1}})
	p.verify("after late settles with an old fence")
}

// keyHeld finds out whether a key is held, now and when windows end.
func (p *pair) keyHeld(queue, key string) {
	p.Helper()
	probe := func() {
		q := Complete(pawl.Request{Queue: queue, UniqueKey: key})
		p.enqueue(q)
		p.change(pawl.Change{Verb: pawl.Delete, Queue: queue, IDs: []pawl.ID{q.ID}})
	}
	probe()
	h := p.m.holder(queue, key, p.now())
	if h == nil || !h.State.Final() {
		return
	}
	p.clock.Set(h.FinishedAt.Add(h.window() - time.Microsecond))
	probe()
	p.pass(time.Microsecond)
	probe()
	p.verify("after the unique window")
}

// clear removes all jobs, so that the next variant begins anew.
func (p *pair) clear() {
	p.Helper()
	ids := make([]pawl.ID, 0, len(p.m.jobs))
	for id := range p.m.jobs {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b pawl.ID) int { return slices.Compare(a[:], b[:]) })
	p.change(pawl.Change{Verb: pawl.Delete, IDs: ids})
	p.verify("after all was deleted")
}
