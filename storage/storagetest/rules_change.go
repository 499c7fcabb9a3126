package storagetest

import (
	"time"

	"github.com/pawlq/pawl"
)

func changeRules() []testCase {
	return []testCase{
		{
			name: "change answers for each ID",
			says: "Change applies the verb to each of the IDs and says what became of each, in order.",
			run:  changeResults,
		},
		{
			name: "change keeps to From",
			says: "Change.From: only jobs in these states are changed; others are WrongState, and nothing changes.",
			run:  changeFrom,
		},
		{
			name: "change of a queue",
			says: "An empty queue searches all queues; a job of another queue than the named one is not found.",
			run:  changeQueue,
		},
		{
			name: "change ends the fence",
			says: "Every change ends the fence of a running job it touches.",
			run:  changeFence,
		},
		{
			name: "kick",
			says: "Kick makes a Buried, Canceled or Completed job Ready with RunAt = now, Attempt and Rescued 0, Counts.Kicks+1, " +
				"and without FinishedAt, Result, Progress, StartBefore and Reason.",
			run: changeKick,
		},
		{
			name: "reschedule",
			says: "Reschedule sets the RunAt of a Scheduled or Ready job, by Delay or RunAt; both zero mean now. Reason stays.",
			run:  changeReschedule,
		},
		{
			name: "edit",
			says: "Edit rewrites the fields of a Scheduled or Ready job that Change.Edit names; nil leaves a field as it is.",
			run:  changeEdit,
		},
		{
			name: "edit moves the job",
			says: "A changed priority takes the job to its new place in the claim order, a changed StartBefore counts at once.",
			run:  changeEditOrder, ordered: true,
		},
	}
}

func changeResults(w *world) {
	completed := w.finish(pawl.Request{}, pawl.Ack)
	running := w.add(pawl.Request{})
	w.claimOne()
	ready := w.add(pawl.Request{})
	missing := newID()
	got := w.change(pawl.Change{Verb: pawl.Cancel, Queue: queueA, IDs: []pawl.ID{completed, ready, missing, running}})
	w.same("results", got, []pawl.Changed{
		{ID: completed, Status: pawl.WrongState, Before: pawl.Completed},
		{ID: ready, Status: pawl.Done, Before: pawl.Ready},
		{ID: missing, Status: pawl.NotFound},
		{ID: running, Status: pawl.Done, Before: pawl.Running},
	})
	w.inState(completed, pawl.Completed)
	w.inState(ready, pawl.Canceled)
	w.inState(running, pawl.Canceled)
	got = w.change(pawl.Change{Verb: pawl.Delete, Queue: queueA, IDs: []pawl.ID{missing, ready}})
	w.same("results", got, []pawl.Changed{
		{ID: missing, Status: pawl.NotFound},
		{ID: ready, Status: pawl.Done, Before: pawl.Canceled},
	})
	w.same("results without IDs", w.change(pawl.Change{Verb: pawl.Delete, Queue: queueA}), []pawl.Changed{})
}

func changeFrom(w *world) {
	buried, canceled := w.finish(pawl.Request{}, pawl.Bury), w.add(pawl.Request{})
	w.changed(pawl.Cancel, canceled)
	before := w.job(canceled)
	got := w.change(pawl.Change{
		Verb: pawl.Kick, Queue: queueA, IDs: []pawl.ID{canceled, buried}, From: []pawl.State{pawl.Buried, pawl.Completed},
	})
	w.same("results", got, []pawl.Changed{
		{ID: canceled, Status: pawl.WrongState, Before: pawl.Canceled},
		{ID: buried, Status: pawl.Done, Before: pawl.Buried},
	})
	w.same("the job in another state", w.job(canceled), before)
	w.inState(buried, pawl.Ready)
	for _, v := range []pawl.ChangeVerb{pawl.Cancel, pawl.Delete, pawl.Reschedule, pawl.Edit} {
		got := w.change(pawl.Change{Verb: v, Queue: queueA, IDs: []pawl.ID{buried}, From: []pawl.State{pawl.Scheduled}})
		w.same("results of "+v.String(), got, []pawl.Changed{{ID: buried, Status: pawl.WrongState, Before: pawl.Ready}})
	}
}

func changeQueue(w *world) {
	a, b := w.add(pawl.Request{}), w.add(pawl.Request{Queue: "b"})
	w.same("results", w.change(pawl.Change{Verb: pawl.Cancel, Queue: "b", IDs: []pawl.ID{a, b}}), []pawl.Changed{
		{ID: a, Status: pawl.NotFound},
		{ID: b, Status: pawl.Done, Before: pawl.Ready},
	})
	w.same("results", w.change(pawl.Change{Verb: pawl.Delete, IDs: []pawl.ID{a, b}}), []pawl.Changed{
		{ID: a, Status: pawl.Done, Before: pawl.Ready},
		{ID: b, Status: pawl.Done, Before: pawl.Canceled},
	})
	jobs, err := w.s.Get(w.ctx, "", a, b)
	w.ok(err)
	w.same("jobs left", jobs, []*pawl.Job{nil, nil})
}

func changeFence(w *world) {
	for _, v := range []pawl.ChangeVerb{pawl.Cancel, pawl.Delete} {
		id := w.add(pawl.Request{})
		ref := w.claimOne().Ref
		w.changed(v, id)
		w.same("lost refs of Extend after "+v.String(), w.extend(pawl.Renewal{Ref: ref, Lease: lease}), []pawl.Ref{ref})
		w.same("lost refs of Settle after "+v.String(), w.settle(pawl.Outcome{Ref: ref, Verb: pawl.Ack}), []pawl.Ref{ref})
	}
}

func changeKick(w *world) {
	id := w.add(pawl.Request{MaxAttempts: 1, StartBefore: w.now().Add(48 * time.Hour), Priority: 3, Delay: time.Second})
	w.clock.Advance(time.Second)
	ref := w.claimOne().Ref
	w.extend(pawl.Renewal{Ref: ref, Lease: lease, Progress: &pawl.Progress{Percent: 1}})
	w.settled(pawl.Outcome{Ref: ref, Verb: pawl.Nack, Error: "e"})
	w.clock.Advance(time.Hour)
	want := *w.job(id)
	w.changed(pawl.Kick, id)
	want.State, want.Reason, want.RunAt, want.Attempt, want.Counts.Kicks = pawl.Ready, "", w.now(), 0, 1
	want.FinishedAt, want.StartBefore, want.Progress = time.Time{}, time.Time{}, nil
	w.same("the kicked job", w.job(id), &want)
	w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Ack, Result: []byte("r")})
	w.changed(pawl.Kick, id)
	if j := w.job(id); len(j.Result) != 0 || j.Counts.Kicks != 2 {
		w.Fatalf("kicked again: result %q, %d kicks", j.Result, j.Counts.Kicks)
	}
	w.changed(pawl.Cancel, id)
	w.changed(pawl.Kick, id)
	w.claimOne()
}

func changeReschedule(w *world) {
	id := w.add(pawl.Request{})
	w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Nack, Delay: time.Minute})
	for _, c := range []struct {
		change pawl.Change
		in     time.Duration
	}{
		{pawl.Change{Delay: time.Hour}, time.Hour},
		{pawl.Change{}, 0},
		{pawl.Change{RunAt: w.now().Add(time.Second)}, time.Second},
		{pawl.Change{RunAt: w.now().Add(time.Nanosecond)}, time.Microsecond},
		{pawl.Change{RunAt: w.now().Add(-time.Second)}, 0},
	} {
		c.change.Verb, c.change.Queue, c.change.IDs = pawl.Reschedule, queueA, []pawl.ID{id}
		w.change(c.change)
		j := w.job(id)
		want := pawl.Ready
		if c.in > 0 {
			want = pawl.Scheduled
		}
		if j.State != want || !j.RunAt.Equal(w.now().Add(c.in)) || j.Reason != pawl.ReasonRetry {
			w.Fatalf("rescheduled by %v: %v (%s) at %v, want %v (retry) in %v", c.change, j.State, j.Reason, j.RunAt, want, c.in)
		}
	}
	w.claimOne()
}

func changeEdit(w *world) {
	full := editAll()
	for name, e := range map[string]pawl.EditFields{
		"nothing":       {},
		"Payload":       {Payload: []byte{0, 255}},
		"empty Payload": {Payload: []byte{}},
		"Meta":          {Meta: map[string]string{"k": "v"}},
		"Priority":      {Priority: full.Priority},
		"Timeout":       {Timeout: full.Timeout},
		"Lease":         {Lease: full.Lease},
		"MaxAttempts":   {MaxAttempts: full.MaxAttempts},
		"StartBefore":   {StartBefore: full.StartBefore},
		"Retention":     {Retention: full.Retention},
		"all":           full,
	} {
		for _, delay := range []time.Duration{0, time.Hour} {
			id := w.add(pawl.Request{Payload: []byte("old"), Meta: map[string]string{"old": "1"}, Delay: delay})
			want := &record{Job: *w.job(id)}
			want.edit(e)
			w.change(pawl.Change{Verb: pawl.Edit, Queue: queueA, IDs: []pawl.ID{id}, Edit: e})
			w.same("the job after an edit of "+name, w.job(id), &want.Job)
		}
	}
}

func changeEditOrder(w *world) {
	ids := w.addN(3, pawl.Request{})
	urgent, late := -1, w.now().Add(time.Second)
	w.change(pawl.Change{Verb: pawl.Edit, Queue: queueA, IDs: ids[2:], Edit: pawl.EditFields{Priority: &urgent}})
	w.change(pawl.Change{Verb: pawl.Edit, Queue: queueA, IDs: ids[:1], Edit: pawl.EditFields{StartBefore: &late}})
	w.clock.Advance(time.Second)
	w.same("claimed", idsOf(w.claim(3)), []pawl.ID{ids[2], ids[1]})
}
