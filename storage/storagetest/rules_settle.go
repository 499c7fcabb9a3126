package storagetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pawlq/pawl"
)

func settleRules() []testCase {
	return append(settleFenceRules(), settleVerbRules()...)
}

// settleFenceRules are about which outcomes count.
func settleFenceRules() []testCase {
	return []testCase{
		{
			name: "settle can be repeated",
			says: "If the ref's claim was ended by the same verb before, nothing changes and that is success.",
			run:  settleRepeated,
		},
		{
			name: "settle by another verb is lost",
			says: "A ref whose claim was ended by another verb comes back as lost, and nothing changes.",
			run:  settleOtherVerb,
		},
		{
			name: "settle twice in one call",
			says: "Within one call the same outcome again is success even if the first removed the record.",
			run:  settleTwiceInCall,
		},
		{
			name: "settle again after a newer claim in one call",
			says: "Within one call the same outcome again is success, whatever came between.",
			run:  settleAgainAfterNewer,
		},
		{
			name: "lost refs come back as given",
			says: "The ref of an outcome that is lost comes back just as it was given, with its Locator, and in order.",
			run:  settleLostAsGiven,
		},
		{
			name: "settle of a missing job",
			says: "With Outcome.Repeat a missing job counts as settled; without, its ref is lost.",
			run:  settleMissing,
		},
		{
			name: "one outcome never hinders another",
			says: "One outcome never hinders another; lost refs come back in order.",
			run:  settleMixed,
		},
		{
			name: "settle after rescue is lost",
			says: "A rescue ends the fence: the old worker's outcome is lost, whatever it is, also after the job was claimed again.",
			run:  settleAfterRescue,
		},
		{
			name: "expired lease may still be settled",
			says: "A claim whose lease expired, but that was not given away, is current: it may be acked.",
			run:  settleExpired,
		},
	}
}

// settleVerbRules are about what they do.
func settleVerbRules() []testCase {
	return []testCase{
		{
			name: "nack spends an attempt",
			says: "If Attempt has reached MaxAttempts the job is Buried with ReasonAttempts; else it waits for Delay (Counts.Retries).",
			run:  settleNack,
		},
		{
			name: "hand back spends no attempt",
			says: "Release, SnoozeFor and Skip hand the job back, its attempt unspent, and are counted.",
			run:  settleHandBack,
		},
		{
			name: "failures are bounded",
			says: "A job keeps its last MaxFailures failures, each with time, attempt, worker, text and stack.",
			run:  settleFailures,
		},
		{
			name: "settle is atomic over a large batch",
			says: "Settle takes up to MaxStep outcomes.",
			run:  settleMany,
		},
		{
			name: "locator zero is valid",
			says: "A Ref is plain data; Locator 0 is always valid.",
			run:  settleLocator,
		},
	}
}

func settleRepeated(w *world) {
	for v := pawl.Ack; v <= pawl.Skip; v++ {
		id := w.add(pawl.Request{})
		o := pawl.Outcome{Ref: w.claimOne().Ref, Verb: v, Error: "e", Result: []byte("r"), Delay: time.Hour}
		w.settled(o)
		before := w.job(id)
		w.clock.Advance(time.Second)
		w.settled(o)
		o.Repeat, o.Delay, o.Error = true, time.Minute, "other"
		w.settled(o)
		w.same("the job after its "+v.String()+" was repeated", w.job(id), before)
		w.changed(pawl.Delete, id)
	}
}

func settleOtherVerb(w *world) {
	for v := pawl.Ack; v <= pawl.Skip; v++ {
		id := w.add(pawl.Request{})
		ref := w.claimOne().Ref
		w.settled(pawl.Outcome{Ref: ref, Verb: v, Delay: time.Hour})
		before := w.job(id)
		for other := pawl.Ack; other <= pawl.Skip; other++ {
			if other != v {
				w.same("lost refs", w.settle(pawl.Outcome{Ref: ref, Verb: other, Repeat: true}), []pawl.Ref{ref})
			}
		}
		w.same("the job after "+v.String()+" and then others", w.job(id), before)
		w.changed(pawl.Delete, id)
	}
}

func settleTwiceInCall(w *world) {
	id := w.add(pawl.Request{Retention: pawl.DeleteNow})
	gone := pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Ack}
	kept := w.add(pawl.Request{})
	stays := pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Nack}
	other := stays
	other.Verb = pawl.Ack
	never := gone
	never.Verb = pawl.Nack
	w.same("lost refs", w.settle(gone, stays, never, gone, stays, other, gone), []pawl.Ref{never.Ref, other.Ref})
	w.gone(id)
	if n := w.job(kept).Counts.Retries; n != 1 {
		w.Fatalf("Counts.Retries is %d after one nack given twice, want 1", n)
	}
}

// settleLostAsGiven loses refs with Locators of all sorts: the engine's own,
// none, that of another job, and ones that no engine gave.
func settleLostAsGiven(w *world) {
	w.addN(6, pawl.Request{})
	jobs := w.claim(5)
	w.settled(pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Ack}, pawl.Outcome{Ref: jobs[1].Ref, Verb: pawl.Ack})
	w.changed(pawl.Delete, jobs[2].ID)
	var refs []pawl.Ref
	for _, ref := range []pawl.Ref{jobs[1].Ref, jobs[2].Ref, jobs[0].Ref, {Queue: queueA, ID: newID(), Fence: 1}} {
		for _, locator := range []int64{ref.Locator, 0, jobs[3].Locator, 1 << 40, -1} {
			ref.Locator = locator
			refs = append(refs, ref)
		}
	}
	var outcomes []pawl.Outcome
	var renewals []pawl.Renewal
	for _, ref := range refs {
		outcomes = append(outcomes, pawl.Outcome{Ref: ref, Verb: pawl.Nack, Error: "e"})
		renewals = append(renewals, pawl.Renewal{Ref: ref, Lease: lease})
	}
	want := refs // what was lost, with some that are not between
	outcomes = slices.Insert(outcomes, 7, pawl.Outcome{Ref: jobs[3].Ref, Verb: pawl.Ack})
	renewals = slices.Insert(renewals, 7, pawl.Renewal{Ref: jobs[4].Ref, Lease: lease})
	w.exactly("lost refs of Extend", w.extend(renewals...), want)
	w.exactly("lost refs of Settle", w.settle(outcomes...), want)
	w.inState(jobs[3].ID, pawl.Completed)
	w.inState(jobs[4].ID, pawl.Running)
	c, ok := pawl.Find[pawl.Cycler](w.s)
	if !ok {
		return
	}
	lost, claimed, err := c.Cycle(w.ctx, outcomes, asking(queueA, 5))
	w.ok(err)
	w.exactly("lost refs of Cycle", lost, want)
	w.same("jobs claimed by Cycle", len(claimed.Jobs), 1)
}

func settleMissing(w *world) {
	ref := pawl.Ref{Queue: queueA, ID: newID(), Fence: 1}
	w.same("lost refs", w.settle(pawl.Outcome{Ref: ref, Verb: pawl.Ack}), []pawl.Ref{ref})
	w.settled(pawl.Outcome{Ref: ref, Verb: pawl.Ack, Repeat: true})
	w.add(pawl.Request{Retention: pawl.DeleteNow})
	o := pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Ack}
	w.settled(o)
	w.same("lost refs", w.settle(o), []pawl.Ref{o.Ref})
	o.Repeat = true
	w.settled(o)
}

func settleMixed(w *world) {
	w.addN(6, pawl.Request{})
	jobs := w.claim(6)
	foreign := jobs[1].Ref
	foreign.Fence += 100
	missing := pawl.Ref{Queue: queueA, ID: newID(), Fence: 7}
	w.changed(pawl.Cancel, jobs[4].ID)
	lost := w.settle(
		pawl.Outcome{Ref: jobs[4].Ref, Verb: pawl.Ack},
		pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Ack},
		pawl.Outcome{Ref: foreign, Verb: pawl.Nack},
		pawl.Outcome{Ref: jobs[2].Ref, Verb: pawl.Bury},
		pawl.Outcome{Ref: missing, Verb: pawl.Release},
		pawl.Outcome{Ref: jobs[3].Ref, Verb: pawl.SnoozeFor, Delay: time.Hour},
	)
	w.same("lost refs", lost, []pawl.Ref{jobs[4].Ref, foreign, missing})
	want := []pawl.State{pawl.Completed, pawl.Running, pawl.Buried, pawl.Scheduled, pawl.Canceled, pawl.Running}
	for i, j := range jobs {
		w.inState(j.ID, want[i])
	}
}

func settleAgainAfterNewer(w *world) {
	for _, retention := range []time.Duration{time.Hour, pawl.DeleteNow} {
		w.add(pawl.Request{Retention: retention})
		old := w.claimOne().Ref
		w.settled(pawl.Outcome{Ref: old, Verb: pawl.Nack})
		newer := w.claimOne().Ref
		nack := pawl.Outcome{Ref: old, Verb: pawl.Nack}
		w.settled(nack, pawl.Outcome{Ref: newer, Verb: pawl.Ack}, nack)
	}
}

func settleAfterRescue(w *world) {
	id := w.add(pawl.Request{})
	old := w.claimOne().Ref
	w.clock.Advance(lease)
	w.same("rescued", w.sweep().Rescued, []pawl.Ref{old})
	for _, again := range []bool{false, true} {
		if again {
			w.claimOne()
		}
		before := w.job(id)
		for v := pawl.Ack; v <= pawl.Skip; v++ {
			w.same("lost refs", w.settle(pawl.Outcome{Ref: old, Verb: v, Repeat: true}), []pawl.Ref{old})
		}
		w.same("lost refs", w.extend(pawl.Renewal{Ref: old, Lease: time.Hour}), []pawl.Ref{old})
		w.same("the job", w.job(id), before)
	}
}

func settleExpired(w *world) {
	id := w.add(pawl.Request{})
	j := w.claimOne()
	w.clock.Advance(10 * lease)
	w.settled(pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
	w.inState(id, pawl.Completed)
	w.same("rescued", w.sweep().Rescued, []pawl.Ref{})
}

func settleNack(w *world) {
	id := w.add(pawl.Request{MaxAttempts: 3})
	for attempt := 1; attempt <= 3; attempt++ {
		j := w.claimOne()
		if j.Attempt != attempt {
			w.Fatalf("claim %d has Attempt %d", attempt, j.Attempt)
		}
		w.settled(pawl.Outcome{Ref: j.Ref, Verb: pawl.Nack, Delay: time.Minute, Error: "e"})
		j = w.job(id)
		if len(j.Failures) != attempt || j.Counts.Retries != min(attempt, 2) {
			w.Fatalf("after nack %d: %d failures, %d retries", attempt, len(j.Failures), j.Counts.Retries)
		}
		if attempt < 3 && (j.State != pawl.Scheduled || j.Reason != pawl.ReasonRetry || !j.RunAt.Equal(w.now().Add(time.Minute))) {
			w.Fatalf("after nack %d the job is %v (%s) at %v", attempt, j.State, j.Reason, j.RunAt)
		}
		w.clock.Advance(time.Minute)
	}
	if j := w.job(id); j.State != pawl.Buried || j.Reason != pawl.ReasonAttempts || j.Attempt != 3 {
		w.Fatalf("after the last nack the job is %v (%s), attempt %d", j.State, j.Reason, j.Attempt)
	}
	id = w.add(pawl.Request{MaxAttempts: pawl.Unlimited})
	for range 30 {
		w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Nack})
	}
	w.inState(id, pawl.Ready)
}

func settleHandBack(w *world) {
	id := w.add(pawl.Request{MaxAttempts: 1})
	runAt := w.now()
	w.clock.Advance(time.Second)
	for _, v := range []pawl.Verb{pawl.Release, pawl.SnoozeFor, pawl.Skip, pawl.Release} {
		j := w.claimOne()
		if j.Attempt != 1 {
			w.Fatalf("before %v: Attempt is %d, want 1", v, j.Attempt)
		}
		w.settled(pawl.Outcome{Ref: j.Ref, Verb: v})
		if j := w.job(id); j.State != pawl.Ready || j.Attempt != 0 || !j.RunAt.Equal(runAt) {
			w.Fatalf("after %v: %v, attempt %d, RunAt %v; want ready, 0, %v", v, j.State, j.Attempt, j.RunAt, runAt)
		}
	}
	w.same("counts", w.job(id).Counts, pawl.Counts{Releases: 2, Snoozes: 1, Skips: 1})
	w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.SnoozeFor, Delay: time.Hour})
	if j := w.job(id); j.State != pawl.Scheduled || j.Reason != pawl.ReasonSnooze || !j.RunAt.Equal(w.now().Add(time.Hour)) {
		w.Fatalf("after a snooze of an hour: %v (%s) at %v", j.State, j.Reason, j.RunAt)
	}
}

func settleFailures(w *world) {
	id := w.add(pawl.Request{MaxAttempts: pawl.Unlimited})
	long := strings.Repeat("é", pawl.MaxErrorText/2)
	var want []pawl.Failure
	for i := range pawl.MaxFailures + 3 {
		spec := asking(queueA, 1)
		spec.Worker = fmt.Sprint("w", i)
		ref := w.claimBy(spec)[0].Ref
		w.clock.Advance(time.Second)
		f := pawl.Failure{At: w.now(), Attempt: i + 1, WorkerID: spec.Worker, Error: fmt.Sprint("failure ", i), Stack: long}
		if i%2 == 0 {
			f.Error, f.Stack = long, ""
		}
		w.settled(pawl.Outcome{Ref: ref, Verb: pawl.Nack, Error: f.Error, Stack: f.Stack})
		want = append(want, f)
	}
	w.same("failures", w.job(id).Failures, want[3:])
}

func settleMany(w *world) {
	w.addN(pawl.MaxStep, pawl.Request{})
	jobs := w.claim(pawl.MaxStep)
	outcomes := make([]pawl.Outcome, len(jobs))
	for i, j := range jobs {
		outcomes[i] = pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack, Result: fmt.Append(nil, i)}
	}
	w.settled(outcomes...)
	if n := w.stats().Completed; n != pawl.MaxStep {
		w.Fatalf("%d jobs are completed, want %d", n, pawl.MaxStep)
	}
	if got := string(w.job(jobs[700].ID).Result); got != "700" {
		w.Fatalf("a result is %q, want 700", got)
	}
}

func settleLocator(w *world) {
	id := w.add(pawl.Request{})
	j := w.claimOne()
	ref := pawl.Ref{Queue: j.Queue, ID: j.ID, Fence: j.Fence}
	w.same("lost refs", w.extend(pawl.Renewal{Ref: ref, Lease: lease}), []pawl.Ref{})
	w.settled(pawl.Outcome{Ref: ref, Verb: pawl.Ack})
	w.inState(id, pawl.Completed)
}
