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
			cases = append(cases, testCase{
				name: fmt.Sprintf("%v (%s) × %s", r.state, r.name, v.name),
				says: fmt.Sprintf("%s of a job that is %v (%s): %s", v.name, r.state, r.name, v.says(r.state)),
				run:  func(w *world) { runTransition(w, r, v) },
			})
		}
	}
	return cases
}

// A route brings one job from nowhere into a state.
type route struct {
	name  string
	state pawl.State
	steps func(p *pair, q pawl.Request) pawl.ID
}

func routes() []route {
	claimed := func(p *pair, q pawl.Request) pawl.ID {
		id := p.add(q)
		p.claim(asking(queueA, 1))
		return id
	}
	settled := func(o pawl.Outcome) func(*pair, pawl.Request) pawl.ID {
		return func(p *pair, q pawl.Request) pawl.ID {
			id := claimed(p, q)
			p.pass(time.Second)
			mine := o
			mine.Ref = p.m.jobs[id].Ref
			p.settle(mine)
			return id
		}
	}
	rescued := func(p *pair, q pawl.Request) pawl.ID {
		id := claimed(p, q)
		p.pass(lease)
		p.sweep()
		return id
	}
	return []route{
		{"enqueued", pawl.Scheduled, func(p *pair, q pawl.Request) pawl.ID {
			q.Delay = 10 * time.Second
			return p.add(q)
		}},
		{"nacked", pawl.Scheduled, settled(pawl.Outcome{Verb: pawl.Nack, Delay: 10 * time.Second, Error: "first"})},
		{"enqueued", pawl.Ready, (*pair).add},
		{"released", pawl.Ready, settled(pawl.Outcome{Verb: pawl.Release})},
		{"rescued", pawl.Ready, rescued},
		{"claimed", pawl.Running, claimed},
		{"claimed again", pawl.Running, func(p *pair, q pawl.Request) pawl.ID {
			id := settled(pawl.Outcome{Verb: pawl.Release, Delay: time.Second})(p, q)
			p.pass(time.Second)
			p.claim(asking(queueA, 1))
			return id
		}},
		{"lease expired", pawl.Running, func(p *pair, q pawl.Request) pawl.ID {
			id := claimed(p, q)
			p.pass(lease)
			return id
		}},
		{"acked", pawl.Completed, settled(pawl.Outcome{Verb: pawl.Ack, Result: []byte("result")})},
		{"buried", pawl.Buried, settled(pawl.Outcome{Verb: pawl.Bury, Error: "bad"})},
		{"canceled waiting", pawl.Canceled, func(p *pair, q pawl.Request) pawl.ID {
			id := p.add(q)
			p.change(pawl.Change{Verb: pawl.Cancel, Queue: queueA, IDs: []pawl.ID{id}})
			return id
		}},
		{"canceled running", pawl.Canceled, func(p *pair, q pawl.Request) pawl.ID {
			id := claimed(p, q)
			p.change(pawl.Change{Verb: pawl.Cancel, Queue: queueA, IDs: []pawl.ID{id}})
			return id
		}},
	}
}

// A tableVerb is a column of the table: what it does, and the state to which
// it takes a job from each state that it applies to.
type tableVerb struct {
	name string
	to   map[pawl.State]pawl.State
	prep func(q *pawl.Request) // what the job must be like, if anything
	do   func(p *pair, r subject)
}

// A subject is the job that a verb is tried on, and the ref of its newest
// claim, if it ever had one.
type subject struct {
	id  pawl.ID
	ref pawl.Ref
	q   pawl.Request
}

func (v tableVerb) says(from pawl.State) string {
	if to, ok := v.to[from]; ok {
		return "it ends up " + to.String()
	}
	return "the verb does not apply and nothing changes"
}

func verbs() []tableVerb {
	running := func(to pawl.State) map[pawl.State]pawl.State {
		return map[pawl.State]pawl.State{pawl.Running: to}
	}
	waiting := func(to pawl.State) map[pawl.State]pawl.State {
		return map[pawl.State]pawl.State{pawl.Scheduled: to, pawl.Ready: to}
	}
	each := func(to func(pawl.State) pawl.State, from ...pawl.State) map[pawl.State]pawl.State {
		m := map[pawl.State]pawl.State{}
		for _, s := range from {
			m[s] = to(s)
		}
		return m
	}
	always := func(to pawl.State) func(pawl.State) pawl.State { return func(pawl.State) pawl.State { return to } }
	itself := func(s pawl.State) pawl.State { return s }
	urgent := -7
	settling := func(o pawl.Outcome) func(*pair, subject) {
		return func(p *pair, s subject) {
			mine := o
			mine.Ref = s.ref
			p.settle(mine)
		}
	}
	changing := func(c pawl.Change) func(*pair, subject) {
		return func(p *pair, s subject) {
			mine := c
			mine.Queue, mine.IDs = queueA, []pawl.ID{s.id}
			p.change(mine)
		}
	}
	enqueueing := func(edit func(q *pawl.Request, s subject)) func(*pair, subject) {
		return func(p *pair, s subject) {
			q := s.q
			q.ID, q.Kind, q.Payload = newID(), "other", []byte("other")
			edit(&q, s)
			p.enqueue(complete(q)...)
		}
	}
	once := func(q *pawl.Request) { q.MaxAttempts = 1 }
	later := 3 * time.Second
	return []tableVerb{
		{"ack", running(pawl.Completed), nil, settling(pawl.Outcome{Verb: pawl.Ack, Result: []byte{0, 1}})},
		{"ack without a result", running(pawl.Completed), nil, settling(pawl.Outcome{Verb: pawl.Ack})},
		{"nack", running(pawl.Ready), nil, settling(pawl.Outcome{Verb: pawl.Nack, Error: "e"})},
		{"nack with a delay", running(pawl.Scheduled), nil, settling(pawl.Outcome{Verb: pawl.Nack, Delay: later, Error: "e", Stack: "s"})},
		{"nack of the last attempt", running(pawl.Buried), once, settling(pawl.Outcome{Verb: pawl.Nack, Delay: later, Error: "e"})},
		{"nack without a limit", running(pawl.Ready), func(q *pawl.Request) { q.MaxAttempts = pawl.Unlimited },
			settling(pawl.Outcome{Verb: pawl.Nack, Error: "e"})},
		{"bury", running(pawl.Buried), nil, settling(pawl.Outcome{Verb: pawl.Bury, Error: "b", Stack: "s"})},
		{"release", running(pawl.Ready), nil, settling(pawl.Outcome{Verb: pawl.Release})},
		{"release with a delay and a priority", running(pawl.Scheduled), nil,
			settling(pawl.Outcome{Verb: pawl.Release, Delay: later, Priority: &urgent})},
		{"snooze", running(pawl.Ready), nil, settling(pawl.Outcome{Verb: pawl.SnoozeFor})},
		{"snooze with a delay", running(pawl.Scheduled), nil, settling(pawl.Outcome{Verb: pawl.SnoozeFor, Delay: later})},
		{"skip", running(pawl.Ready), nil, settling(pawl.Outcome{Verb: pawl.Skip})},
		{"skip with a delay", running(pawl.Scheduled), nil, settling(pawl.Outcome{Verb: pawl.Skip, Delay: later})},
		{"a foreign fence", nil, nil, func(p *pair, s subject) {
			s.ref.Fence += 1000
			for v := pawl.Ack; v <= pawl.Skip; v++ {
				p.settle(pawl.Outcome{Ref: s.ref, Verb: v, Error: "e"})
			}
			p.extend(pawl.Renewal{Ref: s.ref, Lease: time.Hour})
		}},
		{"extend", running(pawl.Running), nil, func(p *pair, s subject) {
			p.extend(pawl.Renewal{Ref: s.ref, Lease: time.Hour})
		}},
		{"extend with progress", running(pawl.Running), nil, func(p *pair, s subject) {
			p.extend(pawl.Renewal{Ref: s.ref, Lease: time.Second, Progress: &pawl.Progress{
				Percent: 12.5, Stage: "stage", Message: "message", Counters: map[string]int64{"rows": 1 << 40},
			}})
		}},
		{"claim", map[pawl.State]pawl.State{pawl.Ready: pawl.Running}, nil, func(p *pair, s subject) {
			if p.m.jobs[s.id].State != pawl.Running { // a claim may rescue first
				p.claim(asking(queueA, 10))
			}
		}},
		{"claim when due", waiting(pawl.Running), nil, func(p *pair, s subject) {
			if p.m.jobs[s.id].State != pawl.Running {
				p.pass(10 * time.Second)
				p.claim(asking(queueA, 10))
			}
		}},
		{"sweep before anything is due", each(itself, pawl.Scheduled, pawl.Ready), nil, func(p *pair, s subject) {
			if p.m.jobs[s.id].State != pawl.Running {
				p.sweep()
			}
		}},
		{"sweep when due", map[pawl.State]pawl.State{pawl.Scheduled: pawl.Ready, pawl.Running: pawl.Ready}, nil, func(p *pair, s subject) {
			p.pass(lease)
			p.sweep()
		}},
		{"sweep when rescues are spent", running(pawl.Buried), func(q *pawl.Request) { q.MaxRescues = 1 }, func(p *pair, s subject) {
			for range 3 {
				p.pass(lease)
				p.sweep()
				if p.m.jobs[s.id].State == pawl.Ready && s.ref.Fence != 0 && p.m.jobs[s.id].Reason == pawl.ReasonRescue {
					p.claim(asking(queueA, 1))
				}
			}
		}},
		{"sweep after StartBefore", waiting(pawl.Canceled), nil, func(p *pair, s subject) {
			soon := p.now().Add(20 * time.Second)
			p.change(pawl.Change{Verb: pawl.Edit, Queue: queueA, IDs: []pawl.ID{s.id}, Edit: pawl.EditFields{StartBefore: &soon}})
			if p.m.jobs[s.id].State.Waiting() {
				p.pass(20 * time.Second)
				p.sweep()
			}
		}},
		{"sweep after retention", nil, nil, func(p *pair, s subject) {
			if r := p.m.jobs[s.id]; r.State.Final() {
				p.clock.Set(r.FinishedAt.Add(max(r.Retention, r.window()) - time.Microsecond))
				p.sweep()
				p.verify("just before the retention is over")
				p.pass(time.Microsecond)
				p.sweep()
			}
		}},
		{"cancel", each(always(pawl.Canceled), pawl.Cancel.From()...), nil, changing(pawl.Change{Verb: pawl.Cancel})},
		{"kick", each(always(pawl.Ready), pawl.Kick.From()...), nil, changing(pawl.Change{Verb: pawl.Kick})},
		{"reschedule for now", waiting(pawl.Ready), nil, changing(pawl.Change{Verb: pawl.Reschedule})},
		{"reschedule by a delay", waiting(pawl.Scheduled), nil, changing(pawl.Change{Verb: pawl.Reschedule, Delay: later})},
		{"reschedule to a time", waiting(pawl.Scheduled), nil, changing(pawl.Change{Verb: pawl.Reschedule, RunAt: Epoch.Add(time.Hour)})},
		{"reschedule to the past", waiting(pawl.Ready), nil, changing(pawl.Change{Verb: pawl.Reschedule, RunAt: Epoch.Add(-time.Hour)})},
		{"edit", each(itself, pawl.Edit.From()...), nil, changing(pawl.Change{Verb: pawl.Edit, Edit: editAll()})},
		{"delete", nil, nil, changing(pawl.Change{Verb: pawl.Delete})},
		{"enqueue of the same ID", each(itself, pawl.States()...), nil,
			enqueueing(func(q *pawl.Request, s subject) { q.ID, q.UniqueKey = s.id, "other" })},
		{"enqueue of the same key", each(itself, pawl.States()...), nil, enqueueing(func(q *pawl.Request, s subject) {})},
		{"enqueue of the same key with Replace", nil, nil, enqueueing(func(q *pawl.Request, s subject) {
			q.OnDuplicate, q.UniqueMode, q.UniqueWindow = pawl.Replace, pawl.UniqueUntilWindow, time.Hour
			q.Priority, q.Delay, q.MaxAttempts, q.Meta = 5, time.Minute, 2, map[string]string{"k": "v"}
		})},
		{"enqueue into a full queue that drops the oldest", waiting(pawl.Canceled), nil, enqueueing(func(q *pawl.Request, s subject) {
			q.UniqueKey, q.UniqueMode, q.UniqueWindow = "", 0, 0
			q.MaxDepth, q.WhenFull = 1, pawl.DropOldest
		})},
	}
}

func editAll() pawl.EditFields {
	priority, attempts := -1000, 3
	timeout, lease, retention := time.Minute, 2*time.Minute, time.Hour
	before := Epoch.Add(48 * time.Hour)
	return pawl.EditFields{
		Payload: []byte{}, Meta: map[string]string{"a": "b"}, Priority: &priority, Timeout: &timeout,
		Lease: &lease, MaxAttempts: &attempts, StartBefore: &before, Retention: &retention,
	}
}

// runTransition tries the verb on a job of each kind that the table tells
// apart.
func runTransition(w *world, r route, v tableVerb) {
	for _, variant := range variants() {
		p := &pair{world: w, m: newModel(), variant: variant.name}
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
	if after := p.m.jobs[before.ID]; after != nil && after.State != from {
		if to, ok := v.to[from]; ok && to != after.State {
			p.Fatalf("%s: %v became %v, want %v", p.variant, from, after.State, to)
		}
	}
	p.fenceEnded(ref)
	p.keyHeld(queueA, "k")
}

// fenceEnded tries the old ref with every verb, unless it is still current.
func (p *pair) fenceEnded(ref pawl.Ref) {
	p.Helper()
	r := p.m.jobs[ref.ID]
	if ref.Fence == 0 || r != nil && r.current(ref) {
		return
	}
	for v := pawl.Ack; v <= pawl.Skip; v++ {
		p.settle(pawl.Outcome{Ref: ref, Verb: v, Error: "late", Result: []byte("late")})
		p.settle(pawl.Outcome{Ref: ref, Verb: v, Error: "late", Repeat: true})
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
