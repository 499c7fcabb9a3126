package storagetest

import (
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// A tableVerb is a column of the table: what it does, and the state to which
// it takes a job from each state that it applies to.
type tableVerb struct {
	name string
	to   map[pawl.State]pawl.State
	prep func(q *pawl.Request) // what the job must be like, if anything
	do   func(p *pair, r subject)
}

// dropVerb is the verb that only exact depth limits make what the table says.
const dropVerb = "enqueue into a full queue that drops the oldest"

// A subject is the job that a verb is tried on, and the ref of its newest
// claim, if it ever had one.
type subject struct {
	id  pawl.ID
	ref pawl.Ref
	q   pawl.Request
}

func (v tableVerb) says(from pawl.State) string {
	end, ok := v.to[from]
	switch {
	case ok:
		return "it ends up " + end.String()
	case v.to == nil:
		return "what the transition table says"
	}
	return "the verb does not apply and nothing changes"
}

func verbs() []tableVerb {
	return slices.Concat(settleVerbs(), claimVerbs(), sweepVerbs(), changeVerbs(), enqueueVerbs())
}

// to is where a verb takes a job from each of some states.
func to(s pawl.State, from ...pawl.State) map[pawl.State]pawl.State {
	m := map[pawl.State]pawl.State{}
	for _, f := range from {
		m[f] = s
	}
	return m
}

// stays is to for a verb that leaves the state as it is.
func stays(from ...pawl.State) map[pawl.State]pawl.State {
	m := map[pawl.State]pawl.State{}
	for _, f := range from {
		m[f] = f
	}
	return m
}

func running(s pawl.State) map[pawl.State]pawl.State { return to(s, pawl.Running) }

func waiting(s pawl.State) map[pawl.State]pawl.State { return to(s, pawl.Scheduled, pawl.Ready) }

// later is the delay of verbs that have one.
const later = 3 * time.Second

func settleVerbs() []tableVerb {
	urgent := -7
	settling := func(o pawl.Outcome) func(*pair, subject) {
		return func(p *pair, s subject) {
			mine := o
			mine.Ref = s.ref
			p.settle(mine)
		}
	}
	once := func(q *pawl.Request) { q.MaxAttempts = 1 }
	ever := func(q *pawl.Request) { q.MaxAttempts = pawl.Unlimited }
	nack := pawl.Outcome{Verb: pawl.Nack, Error: "e"}
	nackLater := pawl.Outcome{Verb: pawl.Nack, Delay: later, Error: "e", Stack: "s"}
	releaseLater := pawl.Outcome{Verb: pawl.Release, Delay: later, Priority: &urgent}
	return []tableVerb{
		{"ack", running(pawl.Completed), nil, settling(pawl.Outcome{Verb: pawl.Ack, Result: []byte{0, 1}})},
		{"ack without a result", running(pawl.Completed), nil, settling(pawl.Outcome{Verb: pawl.Ack})},
		{"nack", running(pawl.Ready), nil, settling(nack)},
		{"nack with a delay", running(pawl.Scheduled), nil, settling(nackLater)},
		{"nack of the last attempt", running(pawl.Buried), once, settling(nackLater)},
		{"nack without a limit", running(pawl.Ready), ever, settling(nack)},
		{"bury", running(pawl.Buried), nil, settling(pawl.Outcome{Verb: pawl.Bury, Error: "b", Stack: "s"})},
		{"release", running(pawl.Ready), nil, settling(pawl.Outcome{Verb: pawl.Release})},
		{"release with a delay and a priority", running(pawl.Scheduled), nil, settling(releaseLater)},
		{"snooze", running(pawl.Ready), nil, settling(pawl.Outcome{Verb: pawl.SnoozeFor})},
		{"snooze with a delay", running(pawl.Scheduled), nil, settling(pawl.Outcome{Verb: pawl.SnoozeFor, Delay: later})},
		{"skip", running(pawl.Ready), nil, settling(pawl.Outcome{Verb: pawl.Skip})},
		{"skip with a delay", running(pawl.Scheduled), nil, settling(pawl.Outcome{Verb: pawl.Skip, Delay: later})},
		{"a foreign fence", nil, nil, tryForeignFence},
	}
}

func tryForeignFence(p *pair, s subject) {
	s.ref.Fence += 1000
	for v := pawl.Ack; v <= pawl.Skip; v++ {
		p.settle(pawl.Outcome{Ref: s.ref, Verb: v, Error: "e"})
	}
	p.extend(pawl.Renewal{Ref: s.ref, Lease: time.Hour})
}

func claimVerbs() []tableVerb {
	return []tableVerb{
		{"extend", running(pawl.Running), nil, func(p *pair, s subject) {
			p.extend(pawl.Renewal{Ref: s.ref, Lease: time.Hour})
		}},
		{"extend with progress", running(pawl.Running), nil, func(p *pair, s subject) {
			p.extend(pawl.Renewal{Ref: s.ref, Lease: time.Second, Progress: &pawl.Progress{
				Percent: 12.5, Stage: "stage", Message: "message", Counters: map[string]int64{"rows": 1 << 40},
			}})
		}},
		{"claim", to(pawl.Running, pawl.Ready), nil, func(p *pair, s subject) {
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
	}
}

func sweepVerbs() []tableVerb {
	due := map[pawl.State]pawl.State{pawl.Scheduled: pawl.Ready, pawl.Running: pawl.Ready}
	once := func(q *pawl.Request) { q.MaxRescues = 1 }
	return []tableVerb{
		{"sweep before anything is due", stays(pawl.Scheduled, pawl.Ready), nil, func(p *pair, s subject) {
			if p.m.jobs[s.id].State != pawl.Running {
				p.sweep()
			}
		}},
		{"sweep when due", due, nil, func(p *pair, s subject) {
			p.pass(lease)
			p.sweep()
		}},
		{"sweep when rescues are spent", running(pawl.Buried), once, sweepUntilBuried},
		{"sweep after StartBefore", waiting(pawl.Canceled), nil, sweepAfterStartBefore},
		{"sweep after retention", nil, nil, sweepAfterRetention},
	}
}

// sweepUntilBuried lets the lease of a running job expire again and again.
func sweepUntilBuried(p *pair, s subject) {
	for p.m.jobs[s.id].State == pawl.Running { // MaxRescues is 1: once back, then buried
		p.pass(lease)
		p.sweep()
		p.claim(asking(queueA, 1))
	}
}

func sweepAfterStartBefore(p *pair, s subject) {
	soon := p.now().Add(20 * time.Second)
	p.change(pawl.Change{
		Verb: pawl.Edit, Queue: queueA, IDs: []pawl.ID{s.id}, Edit: pawl.EditFields{StartBefore: &soon},
	})
	if p.m.jobs[s.id].State.Waiting() {
		p.pass(20 * time.Second)
		p.sweep()
	}
}

func sweepAfterRetention(p *pair, s subject) {
	r := p.m.jobs[s.id]
	if !r.State.Final() {
		return
	}
	p.clock.Set(r.FinishedAt.Add(max(r.Retention, r.window()) - time.Microsecond))
	p.sweep()
	p.verify("just before the retention is over")
	p.pass(time.Microsecond)
	p.sweep()
}

func changeVerbs() []tableVerb {
	changing := func(c pawl.Change) func(*pair, subject) {
		return func(p *pair, s subject) {
			mine := c
			mine.Queue, mine.IDs = queueA, []pawl.ID{s.id}
			p.change(mine)
		}
	}
	at := func(d time.Duration) pawl.Change { return pawl.Change{Verb: pawl.Reschedule, RunAt: Epoch.Add(d)} }
	return []tableVerb{
		{"cancel", to(pawl.Canceled, pawl.Cancel.From()...), nil, changing(pawl.Change{Verb: pawl.Cancel})},
		{"kick", to(pawl.Ready, pawl.Kick.From()...), nil, changing(pawl.Change{Verb: pawl.Kick})},
		{"reschedule for now", waiting(pawl.Ready), nil, changing(pawl.Change{Verb: pawl.Reschedule})},
		{"reschedule by a delay", waiting(pawl.Scheduled), nil, changing(pawl.Change{Verb: pawl.Reschedule, Delay: later})},
		{"reschedule to a time", waiting(pawl.Scheduled), nil, changing(at(time.Hour))},
		{"reschedule to the past", waiting(pawl.Ready), nil, changing(at(-time.Hour))},
		{"edit", stays(pawl.Edit.From()...), nil, changing(pawl.Change{Verb: pawl.Edit, Edit: editAll()})},
		{"delete", nil, nil, changing(pawl.Change{Verb: pawl.Delete})},
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

func enqueueVerbs() []tableVerb {
	enqueueing := func(edit func(p *pair, q *pawl.Request, s subject)) func(*pair, subject) {
		return func(p *pair, s subject) {
			q := s.q
			q.ID, q.Kind, q.Payload = newID(), "other", []byte("other")
			edit(p, &q, s)
			p.enqueue(complete(q)...)
		}
	}
	sameID := func(p *pair, q *pawl.Request, s subject) {
		q.ID = s.id
		q.UniqueKey = p.keyBeside(*q, "other")
	}
	sameKey := func(*pair, *pawl.Request, subject) {}
	replace := func(_ *pair, q *pawl.Request, _ subject) {
		q.OnDuplicate, q.UniqueMode, q.UniqueWindow = pawl.Replace, pawl.UniqueUntilWindow, time.Hour
		q.Priority, q.Delay, q.MaxAttempts, q.Meta = 5, time.Minute, 2, map[string]string{"k": "v"}
	}
	drop := func(_ *pair, q *pawl.Request, _ subject) {
		q.UniqueKey, q.UniqueMode, q.UniqueWindow = "", 0, 0
		q.MaxDepth, q.WhenFull = 1, pawl.DropOldest
	}
	return []tableVerb{
		{"enqueue of the same ID", stays(pawl.States()...), nil, enqueueing(sameID)},
		{"enqueue of the same key", stays(pawl.States()...), nil, enqueueing(sameKey)},
		{"enqueue of the same key with Replace", nil, nil, enqueueing(replace)},
		{dropVerb, waiting(pawl.Canceled), nil, enqueueing(drop)},
	}
}
