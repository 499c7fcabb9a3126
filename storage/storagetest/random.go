package storagetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pawlq/pawl"
	"pgregory.net/rapid"
)

func modelCases() []testCase {
	return []testCase{{
		name: "random",
		says: "After any sequence of calls a storage holds and returns what the transition table says.",
		run:  randomModel,
	}}
}

// randomModel drives a storage and the model with the same random calls. The
// number of checks and steps is set by rapid's flags.
func randomModel(w *world) {
	rapid.Check(w, func(t *rapid.T) {
		scoped(w, func(tb testingTB) {
			// The bound is for one sequence, not for all of them: how long
			// those take is a matter of rapid's flags and of the machine.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), caseTimeout)
			tb.Cleanup(cancel)
			r := newRun(ctx, tb, t, w)
			t.Repeat(r.actions())
		})
	})
}

// A run is one random sequence of calls.
type run struct {
	*pair
	t       *rapid.T
	cycler  pawl.Cycler
	ids     []pawl.ID // of all jobs that ever were, also deleted ones
	home    map[pawl.ID]place
	refs    []pawl.Ref
	last    *pawl.ClaimSpec // of the newest claim, for repeats
	settled []pawl.Outcome  // for repeats
}

var (
	runQueues = []string{"a", "b"}
	runKinds  = []string{"k", "l"}
	runKeys   = []string{"", "", "x", "y", "z"}
)

func newRun(ctx context.Context, tb testingTB, t *rapid.T, w *world) *run {
	clock := NewClock()
	inner := &world{TB: failing{tb, t}, h: w.h, says: w.says, ctx: ctx, clock: clock, s: w.h.Open(tb, clock.Now)}
	r := &run{pair: newPair(inner), t: t, home: map[pawl.ID]place{}}
	r.cycler, _ = pawl.Find[pawl.Cycler](inner.s)
	return r
}

func (r *run) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"enqueue":    r.enqueueSome,
		"claim":      r.claimSome,
		"claim2":     r.claimSome,
		"repeat":     r.claimAgain,
		"settle":     r.settleSome,
		"settle2":    r.settleSome,
		"settle old": r.settleAgain,
		"cycle":      r.cycleSome,
		"extend":     r.extendSome,
		"change":     r.changeSome,
		"pause":      r.pauseSome,
		"pass":       r.passSome,
		"due":        r.passToDue,
		"late":       r.passAndClaim,
		"list":       r.listSome,
		"":           func(*rapid.T) { r.verify("after a step") },
	}
}

func draw[T any](t *rapid.T, what string, from ...T) T {
	return rapid.SampledFrom(from).Draw(t, what)
}

func (r *run) enqueueSome(t *rapid.T) {
	n := rapid.IntRange(1, 4).Draw(t, "requests")
	reqs := make([]*pawl.Request, n)
	for i := range reqs {
		q := drawRequest(t, r.now())
		if len(r.ids) > 0 && rapid.IntRange(0, 9).Draw(t, "old ID") == 0 {
			q.ID = draw(t, "ID", r.ids...)
			q.Queue = r.home[q.ID].queue // one ID must not be used in two queues, or parts of one
			if r.h.part(&q) != r.home[q.ID].part {
				q.ID = pawl.ID{}
			}
		}
		if r.h.PartialEnqueue && i > 0 && q.Queue != reqs[0].Queue { // what a refused call may have stored
			q.ID, q.Queue = pawl.ID{}, reqs[0].Queue
		}
		reqs[i] = Complete(q)
	}
	if r.h.SampledDepth || r.inParts(reqs) {
		for _, q := range reqs {
			q.MaxDepth = pawl.Unlimited
		}
	}
	r.enqueue(reqs...)
	for _, q := range reqs {
		if _, known := r.home[q.ID]; !known {
			r.ids = append(r.ids, q.ID)
		}
		r.home[q.ID] = place{q.Queue, r.h.part(q)}
	}
}

// inParts reports whether requests are of several parts of a queue, which need not
// be stored in order, so that it is open which one finds the queue full.
func (r *run) inParts(reqs []*pawl.Request) bool {
	return slices.ContainsFunc(reqs, func(q *pawl.Request) bool {
		return slices.ContainsFunc(reqs, func(o *pawl.Request) bool { return o.Queue == q.Queue && r.h.part(o) != r.h.part(q) })
	})
}

func drawRequest(t *rapid.T, now time.Time) pawl.Request {
	q := pawl.Request{
		Queue: draw(t, "queue", runQueues...), Kind: draw(t, "kind", runKinds...),
		Priority:    draw(t, "priority", 0, 0, -1, 1),
		Delay:       draw(t, "delay", 0, 0, 0, time.Second, time.Minute),
		MaxAttempts: draw(t, "attempts", 1, 2, 25, pawl.Unlimited),
		MaxRescues:  draw(t, "rescues", 1, 3, pawl.NoRescues),
		Retention:   draw(t, "retention", pawl.DeleteNow, time.Minute, time.Hour),
		Lease:       draw(t, "lease", 0, 0, 20*time.Second),
		UniqueKey:   draw(t, "key", runKeys...),
		MaxDepth:    draw(t, "depth", pawl.Unlimited, pawl.Unlimited, 2, 5),
		WhenFull:    draw(t, "when full", pawl.Reject, pawl.DropOldest),
		Payload:     rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "payload"),
	}
	if q.UniqueKey != "" {
		q.UniqueMode = draw(t, "mode", pawl.UniqueUntilFinal, pawl.UniqueUntilClaimed, pawl.UniqueUntilWindow)
		q.OnDuplicate = draw(t, "on duplicate", pawl.KeepFirst, pawl.Replace)
	}
	if q.UniqueMode == pawl.UniqueUntilWindow {
		q.UniqueWindow = draw(t, "window", time.Second, 10*time.Minute)
	}
	if rapid.IntRange(0, 4).Draw(t, "start before") == 0 {
		q.StartBefore = now.Add(rapid.Custom(drawSpan).Draw(t, "at"))
	}
	return q
}

// drawSpan draws a length of time within which most of a run happens.
func drawSpan(t *rapid.T) time.Duration {
	return time.Duration(rapid.IntRange(1, 600).Draw(t, "seconds")) * time.Second
}

func (r *run) drawSpec(t *rapid.T) pawl.ClaimSpec {
	spec := pawl.ClaimSpec{
		Max: rapid.IntRange(1, 5).Draw(t, "max"), Lease: draw(t, "lease", time.Second, lease),
		Worker: draw(t, "worker", "w1", "w2"), Token: newToken(),
	}
	for _, q := range draw(t, "queues", []string{"a"}, []string{"b"}, []string{"a", "b"}, []string{"b", "none", "a"}) {
		spec.Queues = append(spec.Queues, pawl.QueueAsk{Queue: q, Max: rapid.IntRange(1, 4).Draw(t, "of queue")})
	}
	return spec
}

func (r *run) claimSome(t *rapid.T) {
	r.claimBy(r.drawSpec(t))
}

func (r *run) claimBy(spec pawl.ClaimSpec) {
	got, err := r.s.Claim(r.ctx, spec)
	r.ok(err)
	r.tookJobs(spec, got)
}

func (r *run) tookJobs(spec pawl.ClaimSpec, got pawl.Claimed) {
	late := len(r.m.late(r.now())) > 0
	r.claimed(spec, got.Jobs)
	for _, j := range got.Jobs {
		r.refs = append(r.refs, j.Ref)
	}
	r.last = &spec
	if !late {
		r.nextDue(spec, got)
	}
}

// nextDue checks NextDue where it is fixed: no asked queue is paused or has a
// ready job left, and there was no other work of Sweep's that changes it.
func (r *run) nextDue(spec pawl.ClaimSpec, got pawl.Claimed) {
	for _, ask := range spec.Queues {
		if r.m.paused[ask.Queue] || len(r.m.claimable(ask.Queue, r.now())) > 0 {
			return
		}
		if r.h.Part != nil && given(got.Jobs, ask.Queue) >= ask.Max {
			return // what is due in other parts is of no use to the claimer
		}
	}
	if len(got.Jobs) >= spec.Max || spec.Repeat {
		return
	}
	want := r.m.nextDue(spec, r.now())
	if d := got.NextDue - want; d < -time.Millisecond || d > time.Millisecond {
		r.Fatalf("NextDue of Claim is %v, want %v", got.NextDue, want)
	}
}

func given(jobs []*pawl.Job, queue string) (n int) {
	for _, j := range jobs {
		if j.Queue == queue {
			n++
		}
	}
	return n
}

func (r *run) claimAgain(t *rapid.T) {
	if r.last == nil {
		t.Skip("nothing was claimed yet")
	}
	spec := *r.last
	spec.Repeat = true
	r.claimBy(spec)
}

func (r *run) drawOutcomes(t *rapid.T) []pawl.Outcome {
	if len(r.refs) == 0 {
		t.Skip("nothing was claimed yet")
	}
	var outcomes []pawl.Outcome
	n := rapid.IntRange(1, 4).Draw(t, "outcomes")
	repeat := rapid.Bool().Draw(t, "repeat")
	for range n {
		o := pawl.Outcome{
			Ref: draw(t, "ref", r.refs...), Verb: pawl.Verb(rapid.IntRange(int(pawl.Ack), int(pawl.Skip)).Draw(t, "verb")),
			Delay: draw(t, "delay", 0, 0, time.Second, time.Minute), Repeat: repeat,
		}
		switch o.Verb {
		case pawl.Ack:
			o.Result, o.Delay = draw(t, "result", nil, []byte("r")), 0
		case pawl.Nack, pawl.Bury:
			o.Error = draw(t, "error", "e", "")
		case pawl.Release:
			o.Priority = draw(t, "priority", nil, new(int))
		}
		if !straddles(outcomes, o) {
			outcomes = append(outcomes, o)
		}
	}
	return outcomes
}

// straddles reports whether o repeats an outcome of its call after one of a
// newer claim of the job. Whether that is lost or success is left open, since
// it changes nothing either way and no worker does it.
func straddles(outcomes []pawl.Outcome, o pawl.Outcome) bool {
	i := slices.IndexFunc(outcomes, func(p pawl.Outcome) bool { return p.Ref == o.Ref && p.Verb == o.Verb })
	return i >= 0 && slices.ContainsFunc(outcomes[i:], func(p pawl.Outcome) bool {
		return p.Ref.ID == o.Ref.ID && p.Ref.Fence > o.Ref.Fence
	})
}

func (r *run) settleSome(t *rapid.T) {
	r.settled = r.drawOutcomes(t)
	r.settle(r.settled...)
}

func (r *run) settleAgain(t *rapid.T) {
	if len(r.settled) == 0 {
		t.Skip("nothing was settled yet")
	}
	r.settle(r.settled...)
}

func (r *run) cycleSome(t *rapid.T) {
	if r.cycler == nil {
		t.Skip("the storage is no Cycler")
	}
	outcomes, spec := r.drawOutcomes(t), r.drawSpec(t)
	lost, got, err := r.cycler.Cycle(r.ctx, outcomes, spec)
	r.ok(err)
	r.same("lost refs of Cycle", lost, r.m.settle(outcomes, r.now()))
	r.tookJobs(spec, got)
}

func (r *run) extendSome(t *rapid.T) {
	if len(r.refs) == 0 {
		t.Skip("nothing was claimed yet")
	}
	renewals := make([]pawl.Renewal, rapid.IntRange(1, 3).Draw(t, "renewals"))
	for i := range renewals {
		renewals[i] = pawl.Renewal{Ref: draw(t, "ref", r.refs...), Lease: draw(t, "lease", time.Second, time.Hour)}
		if rapid.Bool().Draw(t, "progress") {
			renewals[i].Progress = &pawl.Progress{Percent: 50, Counters: map[string]int64{"n": int64(i)}}
		}
	}
	r.extend(renewals...)
}

func (r *run) changeSome(t *rapid.T) {
	if len(r.ids) == 0 {
		t.Skip("there is no job yet")
	}
	c := pawl.Change{
		Verb:  draw(t, "verb", pawl.Kick, pawl.Kick, pawl.Cancel, pawl.Delete, pawl.Reschedule, pawl.Edit),
		Queue: draw(t, "queue", "", "a", "b"),
		IDs:   rapid.SliceOfNDistinct(rapid.SampledFrom(r.ids), 1, min(3, len(r.ids)), rapid.ID[pawl.ID]).Draw(t, "IDs"),
		From:  draw(t, "from", nil, nil, []pawl.State{pawl.Ready, pawl.Buried}),
	}
	switch c.Verb {
	case pawl.Reschedule:
		c.Delay = draw(t, "delay", 0, time.Second, time.Hour)
	case pawl.Edit:
		c.Edit.Priority = draw(t, "priority", nil, new(int))
		c.Edit.Payload = draw(t, "payload", nil, []byte{}, []byte("edited"))
		if rapid.Bool().Draw(t, "start before") {
			at := r.now().Add(rapid.Custom(drawSpan).Draw(t, "at"))
			c.Edit.StartBefore = &at
		}
	}
	r.change(c)
}

func (r *run) pauseSome(t *rapid.T) {
	queue, paused := draw(t, "queue", runQueues...), rapid.IntRange(0, 2).Draw(t, "paused") == 0
	r.pause(queue, paused)
	r.m.paused[queue] = paused
}

// passSome lets time pass and does at once what it made due.
func (r *run) passSome(t *rapid.T) {
	r.pass(draw(t, "time", time.Microsecond, time.Second, 20*time.Second, lease, time.Hour))
	r.sweepBy(pawl.SweepSpec{Limit: draw(t, "limit", 1, 3, pawl.MaxStep), BuriedRetention: time.Hour})
}

// passToDue lets time pass until the next job is due, and claims without a
// sweep before: what is due must be found, what is late must not.
func (r *run) passToDue(t *rapid.T) {
	spec := r.drawSpec(t)
	d := r.m.nextDue(spec, r.now())
	if d == 0 {
		t.Skip("no job will be due")
	}
	r.pass(d)
	r.claimBy(spec)
	r.passed()
}

// passAndClaim lets time pass and claims, once or more, while all that it made
// due is still to be done.
func (r *run) passAndClaim(t *rapid.T) {
	r.pass(draw(t, "time", time.Second, 20*time.Second, lease, time.Hour))
	for range rapid.IntRange(1, 3).Draw(t, "claims") {
		if r.last != nil && rapid.Bool().Draw(t, "again") {
			r.claimAgain(t)
		} else {
			r.claimSome(t)
		}
		r.verify("after a claim in place of a sweep")
	}
	r.passed()
}

// passed does at once all that time made due.
func (r *run) passed() {
	r.sweepBy(pawl.SweepSpec{Limit: pawl.MaxStep, BuriedRetention: time.Hour})
}

func (r *run) listSome(t *rapid.T) {
	f := pawl.Filter{
		Queue: draw(t, "queue", "", "a"), Kind: draw(t, "kind", "", "k"),
		UniqueKey: draw(t, "key", "", "", "x"), WorkerID: draw(t, "worker", "", "", "w1"),
		States: draw(t, "states", nil, []pawl.State{pawl.Ready}, []pawl.State{pawl.Running, pawl.Completed, pawl.Scheduled}),
	}
	spec := pawl.ListSpec{Filter: f, Payloads: true, Limit: rapid.IntRange(1, 10).Draw(t, "limit")}
	r.listed(fmt.Sprintf("list %+v", f), r.world.list(spec), r.m.list(f))
}
