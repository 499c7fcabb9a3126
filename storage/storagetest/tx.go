package storagetest

import (
	"context"
	"errors"
	"time"

	"github.com/pawlq/pawl"
)

func txCases() []testCase {
	cases := []testCase{
		{
			name: "enqueue is seen after commit",
			says: "Atomic with your transaction: a job is not visible before commit, and is afterwards.",
			run:  txEnqueue,
		},
		{
			name: "rollback leaves nothing",
			says: "Atomic with your transaction: rolled back means never there; its unique key is not taken.",
			run:  txRollback,
		},
		{
			name: "settle is seen after commit",
			says: "Exactly-once effect by acking in the handler's transaction: the job moves when it commits, and stays if it does not.",
			run:  txSettle,
		},
		{
			name: "settle of a lost claim in a transaction",
			says: "A fence that is not current is refused in a transaction as anywhere.",
			run:  txLost,
		},
		{
			name: "settle after an enqueue in one transaction",
			says: "A transaction may enqueue and settle; all of it counts or none.",
			run:  txBoth,
		},
		{
			name: "receipts in a transaction",
			says: "Enqueue in a transaction sees what it did itself: present IDs and held keys.",
			run:  txReceipts,
		},
		{
			name: "an open ack does not stop the heartbeat",
			says: "Extend never waits for an open transaction that holds a job: that claim counts as alive. A rescue never waits either.",
			run:  txHeldOpen, ordered: true, needs: func(h traits) bool { return h.hasTx() && !h.OneWriter },
		},
		{
			name: "settle does not wait for an open transaction",
			says: "Outside a transaction Settle does not wait for an open one that holds a job: it settles the others and returns " +
				"a BusyError with the refs that it left.",
			run: txBusy, needs: func(h traits) bool { return h.hasTx() && !h.OneWriter },
		},
		{
			name: "settle does not wait for an enqueue of the same ID",
			says: "One outcome never hinders another: beside an open transaction that has enqueued a present ID, Settle settles the " +
				"others, and that job too or returns a BusyError with its ref.",
			run: txTaken, needs: func(h traits) bool { return h.hasTx() && !h.OneWriter },
		},
		{
			name: "cycle claims also when settle is busy",
			says: "In a Cycle the Claim is made also after a BusyError of the Settle, and then returned with it.",
			run:  txBusyCycle, needs: func(h traits) bool { return h.hasTx() && h.cycles && !h.OneWriter },
		},
		{
			name: "an open transaction does not stop readers",
			says: "All methods return before long after their context ends; an open transaction holds up no reader.",
			run:  txReaders,
		},
	}
	cases = append(cases, txFailureCases()...)
	for i := range cases {
		if cases[i].needs == nil {
			cases[i].needs = traits.hasTx
		}
	}
	return cases
}

// A tx is a caller's transaction.
type tx struct {
	pawl.Writer
	w                *world
	commit, rollback func() error
}

func (w *world) begin() *tx {
	w.Helper()
	writer, commit, rollback := w.h.Begin(w, w.s)
	return &tx{writer, w, commit, rollback}
}

func (x *tx) enqueue(reqs ...pawl.Request) []pawl.Receipt {
	x.w.Helper()
	receipts, err := x.Enqueue(x.w.ctx, complete(reqs...))
	x.w.ok(err)
	return receipts
}

func (x *tx) settle(outcomes ...pawl.Outcome) []pawl.Ref {
	x.w.Helper()
	lost, err := x.Settle(x.w.ctx, outcomes)
	x.w.ok(err)
	return lost
}

func txEnqueue(w *world) {
	x := w.begin()
	id := x.enqueue(pawl.Request{Payload: []byte("p"), Delay: time.Second})[0].ID
	w.gone(id)
	if s := w.stats(); s.Scheduled != 0 {
		w.Fatalf("Count sees %d jobs before commit", s.Scheduled)
	}
	w.same("jobs listed before commit", w.list(pawl.ListSpec{Limit: 10}), []*pawl.Job{})
	w.ok(x.commit())
	w.inState(id, pawl.Scheduled)
	w.clock.Advance(time.Second)
	if j := w.claimOne(); j.ID != id || string(j.Payload) != "p" {
		w.Fatalf("claimed %v with payload %q", j.ID, j.Payload)
	}
}

func txRollback(w *world) {
	x := w.begin()
	ids := x.enqueue(pawl.Request{UniqueKey: "k"}, pawl.Request{})
	w.ok(x.rollback())
	for _, r := range ids {
		w.gone(r.ID)
	}
	if n := len(w.claim(10)); n != 0 {
		w.Fatalf("%d jobs of a transaction that was rolled back were claimed", n)
	}
	w.free("rolled back")
}

func txSettle(w *world) {
	for v := pawl.Ack; v <= pawl.Skip; v++ {
		id := w.add(pawl.Request{})
		o := pawl.Outcome{Ref: w.claimOne().Ref, Verb: v, Delay: time.Hour, Error: "e", Result: []byte("r")}
		before := w.job(id)
		x := w.begin()
		w.same("lost refs", x.settle(o), []pawl.Ref{})
		w.same("the job before commit", w.job(id), before)
		w.ok(x.rollback())
		w.same("the job after rollback", w.job(id), before)
		x = w.begin()
		w.same("lost refs", x.settle(o), []pawl.Ref{})
		w.ok(x.commit())
		want := &record{Job: *before}
		want.settle(o, w.now())
		w.same("the job after commit of "+v.String(), w.job(id), &want.Job)
		w.settled(o) // the same again is success
		w.changed(pawl.Delete, id)
	}
}

func txLost(w *world) {
	id := w.add(pawl.Request{})
	old := w.claimOne().Ref
	w.clock.Advance(lease)
	w.sweep()
	current := w.claimOne().Ref
	x := w.begin()
	foreign := current
	foreign.Fence += 10
	missing := pawl.Ref{Queue: queueA, ID: newID(), Fence: 1}
	w.same("lost refs", x.settle(
		pawl.Outcome{Ref: old, Verb: pawl.Ack}, pawl.Outcome{Ref: foreign, Verb: pawl.Bury}, pawl.Outcome{Ref: missing, Verb: pawl.Ack},
	), []pawl.Ref{old, foreign, missing})
	w.same("lost refs", x.settle(pawl.Outcome{Ref: current, Verb: pawl.Ack}), []pawl.Ref{})
	w.same("lost refs of another verb", x.settle(pawl.Outcome{Ref: current, Verb: pawl.Nack}), []pawl.Ref{current})
	w.ok(x.commit())
	w.inState(id, pawl.Completed)
}

func txBoth(w *world) {
	id := w.add(pawl.Request{})
	ref := w.claimOne().Ref
	for _, commit := range []bool{false, true} {
		x := w.begin()
		next := x.enqueue(pawl.Request{})[0].ID
		w.same("lost refs", x.settle(pawl.Outcome{Ref: ref, Verb: pawl.Ack}), []pawl.Ref{})
		if !commit {
			w.ok(x.rollback())
			w.gone(next)
			w.inState(id, pawl.Running)
			continue
		}
		w.ok(x.commit())
		w.inState(next, pawl.Ready)
		w.inState(id, pawl.Completed)
	}
}

func txReceipts(w *world) {
	holder := w.add(pawl.Request{UniqueKey: "k"})
	x := w.begin()
	first := newID()
	w.same("receipts", x.enqueue(
		pawl.Request{ID: first, UniqueKey: "other"}, pawl.Request{ID: first}, pawl.Request{UniqueKey: "other"}, pawl.Request{UniqueKey: "k"},
	), []pawl.Receipt{
		{ID: first, Queue: queueA, Status: pawl.Stored},
		{ID: first, Queue: queueA, Status: pawl.Exists},
		{ID: first, Queue: queueA, Status: pawl.Duplicate},
		{ID: holder, Queue: queueA, Status: pawl.Duplicate},
	})
	w.same("receipts of another call", x.enqueue(pawl.Request{ID: first}), []pawl.Receipt{{ID: first, Queue: queueA, Status: pawl.Exists}})
	w.ok(x.commit())
	if s := w.stats(); s.Ready != 2 {
		w.Fatalf("%d jobs are ready, want 2", s.Ready)
	}
}

// txHeldOpen holds a job in an open transaction for three leases.
func txHeldOpen(w *world) {
	held, other, dead := w.add(pawl.Request{}), w.add(pawl.Request{}), w.add(pawl.Request{})
	jobs := w.claim(3)
	x := w.begin()
	w.same("lost refs", x.settle(pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Ack}), []pawl.Ref{})
	var rescued []pawl.Ref
	for range 6 {
		w.clock.Advance(lease / 2)
		lost := w.extend(pawl.Renewal{Ref: jobs[0].Ref, Lease: lease}, pawl.Renewal{Ref: jobs[1].Ref, Lease: lease})
		w.same("lost refs", lost, []pawl.Ref{})
		rescued = append(rescued, w.sweep().Rescued...)
	}
	w.same("rescued", rescued, []pawl.Ref{jobs[2].Ref})
	w.ok(x.commit())
	w.sweep()
	w.inState(held, pawl.Completed)
	w.inState(other, pawl.Running)
	w.inState(dead, pawl.Ready)
}

// busy holds a job in an open transaction and returns what settles it, and
// another one, from outside.
func (w *world) busy() (x *tx, outcomes []pawl.Outcome) {
	w.Helper()
	w.addN(3, pawl.Request{})
	jobs := w.claim(2)
	x = w.begin()
	w.same("lost refs", x.settle(pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Ack}), []pawl.Ref{})
	return x, []pawl.Outcome{{Ref: jobs[0].Ref, Verb: pawl.Nack}, {Ref: jobs[1].Ref, Verb: pawl.Ack}}
}

func (w *world) wasBusy(err error, with pawl.Ref) {
	w.Helper()
	var busy *pawl.BusyError
	if !errors.As(err, &busy) {
		w.Fatalf("error is %v, want a BusyError", err)
	}
	w.exactly("refs of the BusyError", busy.Refs, []pawl.Ref{with})
}

func txBusy(w *world) {
	for _, commit := range []bool{true, false} {
		x, outcomes := w.busy()
		held, free := outcomes[0].Ref, outcomes[1].Ref
		missing := pawl.Ref{Queue: queueA, ID: newID(), Fence: 1}
		lost, err := w.s.Settle(w.ctx, append(outcomes, pawl.Outcome{Ref: missing, Verb: pawl.Ack}))
		w.wasBusy(err, held)
		w.exactly("lost refs beside a BusyError", lost, []pawl.Ref{missing})
		w.inState(held.ID, pawl.Running)
		w.inState(free.ID, pawl.Completed)
		if commit {
			w.ok(x.commit())
			w.same("lost refs after commit", w.settle(outcomes...), []pawl.Ref{held})
			w.inState(held.ID, pawl.Completed)
			continue
		}
		w.ok(x.rollback())
		w.settled(outcomes...)
		w.inState(held.ID, pawl.Ready)
	}
}

func txBusyCycle(w *world) {
	c, _ := pawl.Find[pawl.Cycler](w.s)
	x, outcomes := w.busy()
	lost, claimed, err := c.Cycle(w.ctx, outcomes, asking(queueA, 5))
	w.wasBusy(err, outcomes[0].Ref)
	w.same("lost refs", lost, []pawl.Ref{})
	if len(claimed.Jobs) != 1 {
		w.Fatalf("a Cycle with a BusyError claimed %d jobs, want 1", len(claimed.Jobs))
	}
	w.inState(outcomes[1].Ref.ID, pawl.Completed)
	w.settled(pawl.Outcome{Ref: claimed.Jobs[0].Ref, Verb: pawl.Ack})
	w.ok(x.commit())
}

func txReaders(w *world) {
	id := w.add(pawl.Request{})
	ref := w.claimOne().Ref
	x := w.begin()
	x.enqueue(pawl.Request{})
	w.same("lost refs", x.settle(pawl.Outcome{Ref: ref, Verb: pawl.Ack}), []pawl.Ref{})
	w.inState(id, pawl.Running)
	if s := w.stats(); s.Running != 1 || s.Ready != 0 {
		w.Fatalf("numbers before commit: %+v", s)
	}
	w.ok(x.commit())
	w.inState(id, pawl.Completed)
}

// txTaken acks a job that goes with it, while a transaction has met its ID.
func txTaken(w *world) {
	w.addN(2, pawl.Request{Retention: pawl.DeleteNow})
	var outcomes []pawl.Outcome
	for _, j := range w.claim(2) {
		outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
	}
	taken, free := outcomes[0].Ref, outcomes[1].Ref
	x := w.begin()
	if got := x.enqueue(pawl.Request{ID: taken.ID})[0].Status; got != pawl.Exists {
		w.Fatalf("enqueue of a present ID: receipt %v, want exists", got)
	}
	ctx, cancel := context.WithTimeout(w.ctx, w.patience())
	defer cancel()
	lost, err := w.s.Settle(ctx, outcomes)
	w.same("lost refs", lost, []pawl.Ref{})
	if err != nil {
		w.wasBusy(err, taken)
		w.inState(taken.ID, pawl.Running)
	}
	w.gone(free.ID)
	w.ok(x.rollback())
	if err != nil {
		w.settled(outcomes[0])
	}
	w.gone(taken.ID)
}
