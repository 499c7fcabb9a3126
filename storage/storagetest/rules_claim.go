package storagetest

import (
	"time"

	"github.com/pawlq/pawl"
)

func claimRules() []testCase { return append(claimDueRules(), claimOtherRules()...) }

func claimDueRules() []testCase {
	return []testCase{
		{
			name: "claim order",
			says: "Within a queue jobs come by Priority, then RunAt, then order of insertion. Jobs are returned in claim order.",
			run:  claimOrder, ordered: true,
		},
		{
			name: "claim order of many due jobs",
			says: "Within a queue jobs come by Priority, then RunAt, also when more than MaxStep scheduled jobs are due at once.",
			run:  claimOrderDue, ordered: true,
		},
		{
			name: "claim order of returned jobs",
			says: "A job released without a delay keeps its RunAt and so its place; with one it gets a new place.",
			run:  claimOrderReturned, ordered: true,
		},
		{
			name: "claim of a returned job when the clock was set back",
			says: "A job released without a delay keeps its RunAt and is claimable, also if the clock was set back since it was enqueued.",
			run:  claimSetBack,
		},
		{
			name: "claim empties queues in strict order",
			says: "Queues are emptied in the order of spec.Queues, each up to its own number, up to spec.Max jobs of all together.",
			run:  claimQueues,
		},
		{
			name: "claim sets the record",
			says: "A claimed job gets a new fence, Attempt+1, WorkerID, ClaimedAt, the first time StartedAt, and " +
				"LeaseUntil = now + its own Lease or else spec.Lease. Its Reason and Progress are cleared.",
			run: claimRecord, ordered: true,
		},
		{
			name: "never early",
			says: "Due scheduled jobs of the asked queues are claimable, without a sweep, and never before they are due.",
			run:  claimNeverEarly,
		},
		{
			name: "claim does not return late jobs",
			says: "A job whose StartBefore has come is never returned by Claim; it ends as Sweep would end it.",
			run:  claimStartBefore,
		},
	}
}

func claimOtherRules() []testCase {
	return []testCase{
		{
			name: "paused queue yields nothing",
			says: "A paused queue yields nothing to a Claim that began after Configure returned; other queues do, and it does again when resumed.",
			run:  claimPaused,
		},
		{
			name: "pause is seen by other handles",
			says: "A paused queue yields nothing to a Claim of any process that began after Configure returned.",
			run:  claimPausedElsewhere, needs: traits.reopens,
		},
		{
			name: "claim says when the next job is due",
			says: "NextDue is how long until the first scheduled job of the asked queues is due, if fewer jobs were found than asked for; " +
				"0 means none is known. It is never shorter than the truth by more than a millisecond.",
			run: claimNextDue,
		},
		{
			name: "claim says when the next job is due after others were claimed",
			says: "NextDue is of scheduled jobs: running, ready, canceled ones and those of other queues do not count, retried ones do.",
			run:  claimNextDueLater,
		},
		{
			name: "claim can be repeated",
			says: "With spec.Repeat, the jobs of any asked queue that are running under spec.Token are returned, if there are any, instead of new ones.",
			run:  claimRepeat, ordered: true,
		},
		{
			name: "repeat returns only what is still running",
			says: "A repeated claim returns the jobs that are running under its token, and new ones only if there are none.",
			run:  claimRepeatSettled, ordered: true,
		},
		{
			name: "fence is never reused",
			says: "Fence is given once: it grows with every claim of the ID, even when the job was deleted and its ID enqueued again meanwhile.",
			run:  claimFence,
		},
		{
			name: "claim is seen by other handles",
			says: "All methods may be called from any number of processes on one storage.",
			run:  claimElsewhere, needs: traits.reopens, ordered: true,
		},
	}
}

func claimOrder(w *world) {
	add := func(priority int, delay time.Duration) pawl.ID {
		return w.add(pawl.Request{Priority: priority, Delay: delay})
	}
	a, b := add(0, 3*time.Second), add(0, 2*time.Second)
	c, d := add(pawl.MaxPriority, 0), add(-pawl.MaxPriority, 0)
	e, f := add(-1, 5*time.Second), add(0, 2*time.Second)
	g, h := add(0, 0), add(0, 0)
	w.clock.Advance(10 * time.Second)
	i := add(0, 0)
	want := []pawl.ID{d, e, g, h, b, f, a, i, c}
	w.same("first claimed", idsOf(w.claim(4)), want[:4])
	w.same("then claimed", idsOf(w.claim(100)), want[4:])
}

// claimOrderDue makes more jobs due than one step promotes, the most urgent of
// them last.
func claimOrderDue(w *world) {
	const n = 2*pawl.MaxStep + 100
	reqs := make([]pawl.Request, n)
	for i := range reqs {
		reqs[i].Delay = time.Second + time.Duration(i)*time.Millisecond
	}
	reqs[n-1].Priority = -1
	var ids []pawl.ID
	for _, r := range w.enqueue(reqs...) {
		ids = append(ids, r.ID)
	}
	ids = append(ids[n-1:], ids[:n-1]...)
	w.clock.Advance(time.Minute)
	for len(ids) > 0 {
		some := min(len(ids), pawl.MaxStep-1)
		w.same("claimed", idsOf(w.claim(some)), ids[:some])
		ids = ids[some:]
	}
}

func claimOrderReturned(w *world) {
	ids := w.addN(4, pawl.Request{})
	w.clock.Advance(time.Second)
	jobs := w.claim(3)
	urgent := -1
	w.settled(
		pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Release},
		pawl.Outcome{Ref: jobs[1].Ref, Verb: pawl.Nack},
		pawl.Outcome{Ref: jobs[2].Ref, Verb: pawl.Release, Delay: time.Second, Priority: &urgent},
	)
	w.clock.Advance(time.Second)
	w.same("claimed", idsOf(w.claim(10)), []pawl.ID{ids[2], ids[0], ids[3], ids[1]})
}

func claimSetBack(w *world) {
	id := w.add(pawl.Request{})
	for _, verb := range []pawl.Verb{pawl.Release, pawl.SnoozeFor, pawl.Skip} {
		j := w.claimOne()
		w.clock.Advance(-time.Hour)
		w.settled(pawl.Outcome{Ref: j.Ref, Verb: verb})
		if now := w.get(id); now.State != pawl.Ready || !now.RunAt.Equal(j.RunAt) {
			w.Fatalf("after %v the job is %v and due at %v; want ready and %v", verb, now.State, now.RunAt, j.RunAt)
		}
	}
	w.claimOne()
}

func claimQueues(w *world) {
	for _, q := range []string{"x", "y", "z"} {
		w.addN(4, pawl.Request{Queue: q})
	}
	w.add(pawl.Request{Queue: "z", Priority: -1000})
	claim := func(limit int, asks ...pawl.QueueAsk) (queues string) {
		spec := pawl.ClaimSpec{Queues: asks, Max: limit, Lease: lease, Worker: worker, Token: newToken()}
		for _, j := range w.claimBy(spec) {
			queues += j.Queue
		}
		return queues
	}
	for _, c := range []struct {
		max  int
		asks []pawl.QueueAsk
		want string
	}{
		{10, []pawl.QueueAsk{{Queue: "y", Max: 2}, {Queue: "none", Max: 5}, {Queue: "x", Max: 1}}, "yyx"},
		{3, []pawl.QueueAsk{{Queue: "x", Max: 2}, {Queue: "z", Max: 9}}, "xxz"},
		{10, []pawl.QueueAsk{{Queue: "x", Max: 9}, {Queue: "y", Max: 9}, {Queue: "z", Max: 9}}, "xyyzzzz"},
		{10, []pawl.QueueAsk{{Queue: "x", Max: 9}, {Queue: "y", Max: 9}}, ""},
	} {
		if got := claim(c.max, c.asks...); got != c.want {
			w.Fatalf("claim of at most %d from %v took jobs of queues %q, want %q", c.max, c.asks, got, c.want)
		}
	}
}

func claimRecord(w *world) {
	id := w.add(pawl.Request{})
	own := w.add(pawl.Request{Priority: 1, Lease: 7 * time.Second})
	w.clock.Advance(time.Second)
	want := *w.job(id)
	jobs := w.claim(2)
	if jobs[0].Fence == 0 {
		w.Fatalf("a claimed job has fence 0")
	}
	want.Ref, want.State, want.Attempt, want.WorkerID = jobs[0].Ref, pawl.Running, 1, worker
	want.StartedAt, want.ClaimedAt, want.LeaseUntil = w.now(), w.now(), w.now().Add(lease)
	w.same("the claimed job", jobs[0], &want)
	w.same("the record", w.job(id), &want)
	if got, want := w.job(own).LeaseUntil, w.now().Add(7*time.Second); !got.Equal(want) {
		w.Fatalf("the lease of a job with its own ends at %v, want %v", got, want)
	}

	w.extend(pawl.Renewal{Ref: jobs[0].Ref, Lease: lease, Progress: &pawl.Progress{Percent: 50}})
	w.settled(pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Nack, Error: "e"})
	w.clock.Advance(time.Second)
	want = *w.job(id)
	again := w.claimOne()
	if again.Fence <= jobs[0].Fence {
		w.Fatalf("the second claim has fence %d, the first had %d", again.Fence, jobs[0].Fence)
	}
	want.Ref, want.State, want.Reason, want.Progress = again.Ref, pawl.Running, "", nil
	want.Attempt, want.ClaimedAt, want.LeaseUntil = 2, w.now(), w.now().Add(lease)
	w.same("the job claimed again", again, &want)
}

func claimNeverEarly(w *world) {
	id := w.add(pawl.Request{Delay: time.Hour})
	for _, step := range []time.Duration{0, time.Minute, 59*time.Minute - time.Microsecond} {
		w.clock.Advance(step)
		w.sweep()
		if jobs := w.claim(10); len(jobs) != 0 {
			w.Fatalf("a job due at %v was claimed at %v", jobs[0].RunAt, w.now())
		}
	}
	w.inState(id, pawl.Scheduled)
	w.clock.Advance(time.Microsecond)
	w.claimOne()
}

func claimStartBefore(w *world) {
	late := pawl.Request{StartBefore: w.now().Add(time.Minute)}
	running := w.add(late)
	j := w.claimOne()
	ready := w.add(late)
	late.Delay = time.Second
	due := w.add(late)
	late.Delay, late.Retention = 0, pawl.DeleteNow
	dropped := w.add(late)
	w.clock.Advance(time.Minute - time.Microsecond)
	w.extend(pawl.Renewal{Ref: j.Ref, Lease: lease})
	w.clock.Advance(time.Microsecond)
	if jobs := w.claim(10); len(jobs) != 0 {
		w.Fatalf("Claim returned %d jobs whose StartBefore has come", len(jobs))
	}
	w.sweep()
	for _, id := range []pawl.ID{ready, due} {
		j := w.job(id)
		if j.State != pawl.Canceled || j.Reason != pawl.ReasonExpired || !j.FinishedAt.Equal(w.now()) {
			w.Fatalf("the late job is %v (%s), finished %v", j.State, j.Reason, j.FinishedAt)
		}
	}
	w.gone(dropped)
	w.inState(running, pawl.Running)
	w.settled(pawl.Outcome{Ref: j.Ref, Verb: pawl.Release})
	w.sweep()
	w.inState(running, pawl.Canceled) // it was waiting again
}

func claimPaused(w *world) {
	w.addN(2, pawl.Request{})
	w.add(pawl.Request{Queue: "b"})
	w.pause(queueA, true)
	if n := len(w.claim(10)); n != 0 {
		w.Fatalf("a paused queue yielded %d jobs", n)
	}
	spec := asking(queueA, 5)
	spec.Queues = append(spec.Queues, pawl.QueueAsk{Queue: "b", Max: 5})
	if jobs := w.claimBy(spec); len(jobs) != 1 || jobs[0].Queue != "b" {
		w.Fatalf("Claim of a paused queue and another one returned %d jobs, want that of the other", len(jobs))
	}
	w.add(pawl.Request{}) // enqueue goes on
	if !w.stats().Paused {
		w.Fatalf("Count does not say that the queue is paused")
	}
	w.ok(w.s.Configure(w.ctx, queueA, pawl.QueueSettings{})) // no setting, no change
	if n := len(w.claim(10)); n != 0 {
		w.Fatalf("an empty Configure resumed the queue")
	}
	w.pause(queueA, false)
	if n := len(w.claim(10)); n != 3 {
		w.Fatalf("a resumed queue yielded %d jobs, want 3", n)
	}
}

func claimPausedElsewhere(w *world) {
	other := w.h.Reopen(w, w.s, w.clock.Now)
	w.addN(4, pawl.Request{})
	for _, paused := range []bool{true, false, true} {
		w.pause(queueA, paused)
		c, err := other.Claim(w.ctx, asking(queueA, 1))
		w.ok(err)
		if got := len(c.Jobs) == 0; got != paused {
			w.Fatalf("paused is %v, but the other handle claimed %d jobs", paused, len(c.Jobs))
		}
	}
}

func claimNextDue(w *world) {
	next := func(max int, want time.Duration) {
		w.Helper()
		c, err := w.s.Claim(w.ctx, asking(queueA, max))
		w.ok(err)
		if d := c.NextDue - want; d < -time.Millisecond || d > time.Millisecond || want == 0 && d != 0 {
			w.Fatalf("NextDue is %v, want %v", c.NextDue, want)
		}
	}
	next(1, 0)
	w.add(pawl.Request{Delay: time.Hour})
	w.add(pawl.Request{Delay: time.Minute})
	w.add(pawl.Request{Queue: "b", Delay: time.Second})
	next(1, time.Minute)
	w.clock.Advance(time.Minute - 1500*time.Microsecond)
	next(1, 1500*time.Microsecond)
	w.clock.Advance(1500 * time.Microsecond)
	next(2, time.Hour-time.Minute)
	w.clock.Advance(time.Hour)
	next(2, 0)
}

func claimNextDueLater(w *world) {
	next := func(when string, want time.Duration) {
		w.Helper()
		spec := asking(queueA, 5)
		spec.Lease = time.Hour // so that there is no rescue that a Claim may make or not
		c, err := w.s.Claim(w.ctx, spec)
		w.ok(err)
		if d := c.NextDue - want; d < -time.Millisecond || d > time.Millisecond || want == 0 && d != 0 {
			w.Fatalf("%s: NextDue is %v, want %v", when, c.NextDue, want)
		}
	}
	first := w.add(pawl.Request{Delay: time.Minute, Priority: 1})
	second := w.add(pawl.Request{Delay: 2 * time.Minute, Priority: 2})
	w.add(pawl.Request{Delay: 3 * time.Minute})
	w.add(pawl.Request{})
	next("with the claim of a ready job", time.Minute)
	w.clock.Advance(time.Minute)
	next("with the claim of the job that came due", time.Minute)
	w.settled(pawl.Outcome{Ref: w.job(first).Ref, Verb: pawl.Nack, Delay: 10 * time.Second})
	next("after a retry", 10*time.Second)
	w.changed(pawl.Cancel, first)
	next("after that was canceled", time.Minute)
	w.change(pawl.Change{Verb: pawl.Reschedule, Queue: queueA, IDs: []pawl.ID{second}, Delay: 4 * time.Minute})
	next("after one was put off", 2*time.Minute)
	w.clock.Advance(4 * time.Minute)
	next("with the claim of the last", 0)
}

func claimRepeat(w *world) {
	w.addN(3, pawl.Request{})
	w.addN(3, pawl.Request{Queue: "b"})
	spec := asking(queueA, 2)
	spec.Queues, spec.Max = []pawl.QueueAsk{{Queue: queueA, Max: 2}, {Queue: "b", Max: 1}}, 3
	first := w.claimBy(spec)
	w.claimBy(asking("b", 1)) // of another token
	w.clock.Advance(time.Second)
	spec.Repeat = true
	again := w.claimBy(spec)
	w.same("jobs of the repeated claim", again, first)
	if s := w.stats(); s.Ready != 1 || s.Running != 2 {
		w.Fatalf("%d jobs are ready and %d running, want 1 and 2", s.Ready, s.Running)
	}
}

func claimRepeatSettled(w *world) {
	ids := w.addN(3, pawl.Request{})
	spec := asking(queueA, 2)
	first := w.claimBy(spec)
	w.settled(pawl.Outcome{Ref: first[0].Ref, Verb: pawl.Ack})
	spec.Repeat = true
	w.same("jobs still running", idsOf(w.claimBy(spec)), []pawl.ID{ids[1]})
	w.settled(pawl.Outcome{Ref: first[1].Ref, Verb: pawl.Ack})
	w.same("new jobs", idsOf(w.claimBy(spec)), []pawl.ID{ids[2]})
	spec = asking(queueA, 2)
	spec.Repeat = true
	w.same("jobs under an unknown token", w.claimBy(spec), []*pawl.Job{})
}

func claimFence(w *world) {
	r := pawl.Request{ID: newID()}
	seen := map[int64]bool{}
	last := int64(0)
	for i := range 5 {
		w.add(r)
		old := w.claimOne()
		w.settled(pawl.Outcome{Ref: old.Ref, Verb: pawl.Release})
		j := w.claimOne()
		for _, fence := range []int64{old.Fence, j.Fence} {
			if seen[fence] || fence <= last {
				w.Fatalf("round %d: fence %d after %d", i, fence, last)
			}
			seen[fence], last = true, fence
		}
		w.changed(pawl.Delete, r.ID)
		w.add(r)
		fresh := w.claimOne()
		w.same("lost refs", w.settle(pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack}), []pawl.Ref{j.Ref})
		w.inState(r.ID, pawl.Running)
		last = max(last, fresh.Fence)
		w.changed(pawl.Delete, r.ID)
	}
}

func claimElsewhere(w *world) {
	other := w.h.Reopen(w, w.s, w.clock.Now)
	ids := w.addN(2, pawl.Request{})
	mine := w.claimOne()
	c, err := other.Claim(w.ctx, asking(queueA, 5))
	w.ok(err)
	w.same("jobs of the other handle", idsOf(c.Jobs), ids[1:])
	lost, err := other.Settle(w.ctx, []pawl.Outcome{{Ref: mine.Ref, Verb: pawl.Ack}})
	w.ok(err)
	w.same("lost refs when a ref is used in another process", lost, []pawl.Ref{})
	w.inState(ids[0], pawl.Completed)
	w.same("lost refs", w.extend(pawl.Renewal{Ref: mine.Ref, Lease: lease}), []pawl.Ref{mine.Ref})
	w.settled(pawl.Outcome{Ref: c.Jobs[0].Ref, Verb: pawl.Ack})
	jobs, err := other.Get(w.ctx, "", ids...)
	w.ok(err)
	for _, j := range jobs {
		if j.State != pawl.Completed {
			w.Fatalf("the other handle sees a job that is %v, want completed", j.State)
		}
	}
}
