package storagetest

import (
	"context"
	"time"

	"github.com/pawlq/pawl"
)

func callRules() []testCase {
	return []testCase{
		{
			name: "a call whose context is over",
			says: "All methods return before long after their context ends; one whose context was over before fails and changes nothing.",
			run:  callCanceled,
		},
		{
			name: "cycle is settle and claim",
			says: "Cycle has the meaning of Settle followed by Claim.",
			run:  callCycle, needs: traits.cyclesIt, ordered: true,
		},
		{
			name: "two handles see the same",
			says: "Each change is durable when the method returns nil: another handle sees it.",
			run:  callReopened, needs: traits.reopens,
		},
	}
}

func callCanceled(w *world) {
	p := newPair(w)
	p.add(pawl.Request{Queue: "b", Delay: time.Second})
	p.add(pawl.Request{})
	p.claim(asking(queueA, 1))
	ref := p.m.where(func(r *record) bool { return r.State == pawl.Running })[0].Ref
	p.pass(2 * lease)
	over, cancel := context.WithCancel(w.ctx)
	cancel()
	paused := true
	for name, call := range map[string]func() error{
		"Enqueue": func() error { _, err := w.s.Enqueue(over, complete(pawl.Request{})); return err },
		"Settle":  func() error { _, err := w.s.Settle(over, []pawl.Outcome{{Ref: ref, Verb: pawl.Ack}}); return err },
		"Claim":   func() error { _, err := w.s.Claim(over, asking("b", 1)); return err },
		"Extend":  func() error { _, err := w.s.Extend(over, []pawl.Renewal{{Ref: ref, Lease: lease}}); return err },
		"Sweep":   func() error { _, err := w.s.Sweep(over, pawl.SweepSpec{Limit: 10}); return err },
		"Get":     func() error { _, err := w.s.Get(over, queueA, ref.ID); return err },
		"List":    func() error { _, err := w.s.List(over, pawl.ListSpec{Limit: 10}); return err },
		"Count":   func() error { _, err := w.s.Count(over); return err },
		"Change": func() error {
			_, err := w.s.Change(over, pawl.Change{Verb: pawl.Delete, Queue: queueA, IDs: []pawl.ID{ref.ID}})
			return err
		},
		"Configure": func() error { return w.s.Configure(over, queueA, pawl.QueueSettings{Paused: &paused}) },
	} {
		if call() == nil {
			w.Fatalf("%s with a context that is over returned no error", name)
		}
	}
	p.verify("after calls whose context was over")
}

func callCycle(w *world) {
	c, _ := pawl.Find[pawl.Cycler](w.s)
	ids := w.addN(5, pawl.Request{MaxAttempts: 1})
	jobs := w.claim(3)
	foreign := jobs[2].Ref
	foreign.Fence += 10
	outcomes := []pawl.Outcome{
		{Ref: jobs[0].Ref, Verb: pawl.Ack, Result: []byte("r")},
		{Ref: foreign, Verb: pawl.Ack},
		{Ref: jobs[1].Ref, Verb: pawl.Release},
	}
	lost, claimed, err := c.Cycle(w.ctx, outcomes, asking(queueA, 2))
	w.ok(err)
	w.same("lost refs", lost, []pawl.Ref{foreign})
	w.same("claimed", idsOf(claimed.Jobs), []pawl.ID{ids[1], ids[3]}) // the released one is in its place again
	w.inState(ids[0], pawl.Completed)
	w.inState(ids[1], pawl.Running)
	w.inState(ids[2], pawl.Running)

	lost, claimed, err = c.Cycle(w.ctx, nil, asking(queueA, 2))
	w.ok(err)
	w.same("lost refs of nothing", lost, []pawl.Ref{})
	w.same("claimed", idsOf(claimed.Jobs), []pawl.ID{ids[4]})

	w.add(pawl.Request{Delay: time.Minute})
	spec := asking(queueA, 2)
	for range 2 { // the same call again is settled already, and returns the same jobs
		lost, claimed, err = c.Cycle(w.ctx, []pawl.Outcome{{Ref: jobs[2].Ref, Verb: pawl.Nack, Error: "e"}}, spec)
		w.ok(err)
		w.same("lost refs", lost, []pawl.Ref{})
		w.same("claimed", claimed.Jobs, []*pawl.Job{})
		if d := claimed.NextDue - time.Minute; d < -time.Millisecond || d > time.Millisecond {
			w.Fatalf("NextDue is %v, want a minute", claimed.NextDue)
		}
		spec.Repeat = true
	}
	w.inState(ids[2], pawl.Buried)
}

func callReopened(w *world) {
	p := newPair(w)
	p.crowd()
	w.pause("b", true)
	p.m.paused["b"] = true
	mine := w.s
	w.s = w.h.Reopen(w, mine, w.clock.Now)
	p.verify("through another handle")
	p.pass(48 * time.Hour)
	p.sweep()
	p.add(pawl.Request{Payload: []byte("p")})
	w.s = mine
	p.verify("through the first handle, after changes by another")
}
