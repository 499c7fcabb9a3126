package storagetest

import (
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/pawlq/pawl"
)

// The methods of a world call the storage and fail the case on any error.

const (
	lease  = time.Minute // of claims, unless a case says otherwise
	queueA = "a"
	worker = "worker-1"
)

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatalf("unexpected error: %v", err)
	}
}

// same compares what a case got with what it wanted. Locators are the engine's
// own, and nil and empty mean the same.
func (w *world) same(what string, got, want any) {
	w.Helper()
	if d := cmp.Diff(want, got, comparing); d != "" {
		w.Fatalf("%s (-want +got):\n%s", what, d)
	}
}

// exactly is same, with Locators: what was given comes back just so.
func (w *world) exactly(what string, got, want []pawl.Ref) {
	w.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		w.Fatalf("%s (-want +got):\n%s", what, d)
	}
}

var comparing = cmp.Options{
	cmpopts.EquateEmpty(),
	cmpopts.IgnoreUnexported(pawl.Job{}),
	cmpopts.IgnoreFields(pawl.Ref{}, "Locator"),
}

func (w *world) now() time.Time { return w.clock.Now() }

// enqueue stores completed copies of the requests, in queue "a" unless they
// name another, and returns the receipts.
func (w *world) enqueue(reqs ...pawl.Request) []pawl.Receipt {
	w.Helper()
	receipts, err := w.s.Enqueue(w.ctx, w.requests(reqs...))
	w.ok(err)
	if len(receipts) != len(reqs) {
		w.Fatalf("Enqueue of %d requests returned %d receipts", len(reqs), len(receipts))
	}
	return receipts
}

func complete(reqs ...pawl.Request) []*pawl.Request {
	completed := make([]*pawl.Request, len(reqs))
	for i, r := range reqs {
		r.Queue = or(r.Queue, queueA)
		completed[i] = Complete(r)
	}
	return completed
}

// add stores one job and returns its ID.
func (w *world) add(r pawl.Request) pawl.ID {
	w.Helper()
	receipt := w.enqueue(r)[0]
	if receipt.Status != pawl.Stored {
		w.Fatalf("Enqueue: receipt %v, want stored", receipt.Status)
	}
	return receipt.ID
}

// addN stores n equal jobs and returns their IDs.
func (w *world) addN(n int, r pawl.Request) []pawl.ID {
	w.Helper()
	reqs := make([]pawl.Request, n)
	for i := range reqs {
		reqs[i] = r
	}
	ids := make([]pawl.ID, n)
	for i, receipt := range w.enqueue(reqs...) {
		ids[i] = receipt.ID
	}
	return ids
}

// asking returns the spec of a claim of up to n jobs of one queue.
func asking(queue string, n int) pawl.ClaimSpec {
	return pawl.ClaimSpec{
		Queues: []pawl.QueueAsk{{Queue: queue, Max: n}}, Max: n, Lease: lease, Worker: worker, Token: newToken(),
	}
}

func (w *world) claimBy(spec pawl.ClaimSpec) []*pawl.Job {
	w.Helper()
	c, err := w.s.Claim(w.ctx, spec)
	w.ok(err)
	return c.Jobs
}

// claim claims up to n jobs of queue "a".
func (w *world) claim(n int) []*pawl.Job {
	w.Helper()
	return w.claimBy(asking(queueA, n))
}

// claimOne claims the one job that must be there.
func (w *world) claimOne() *pawl.Job {
	w.Helper()
	jobs := w.claim(1)
	if len(jobs) != 1 {
		w.Fatalf("Claim returned %d jobs, want 1", len(jobs))
	}
	return jobs[0]
}

// settle settles outcomes and returns what was lost.
func (w *world) settle(outcomes ...pawl.Outcome) []pawl.Ref {
	w.Helper()
	lost, err := w.s.Settle(w.ctx, outcomes)
	w.ok(err)
	return lost
}

// settled settles outcomes of which none may be lost.
func (w *world) settled(outcomes ...pawl.Outcome) {
	w.Helper()
	if lost := w.settle(outcomes...); len(lost) > 0 {
		w.Fatalf("Settle: lost %v, want none", lost)
	}
}

func (w *world) extend(renewals ...pawl.Renewal) []pawl.Ref {
	w.Helper()
	lost, err := w.s.Extend(w.ctx, renewals)
	w.ok(err)
	return lost
}

func (w *world) sweepBy(spec pawl.SweepSpec) pawl.Swept {
	w.Helper()
	s, err := w.s.Sweep(w.ctx, spec)
	w.ok(err)
	return s
}

func (w *world) sweep() pawl.Swept {
	w.Helper()
	return w.sweepBy(pawl.SweepSpec{Limit: pawl.MaxStep})
}

func (w *world) change(c pawl.Change) []pawl.Changed {
	w.Helper()
	done, err := w.s.Change(w.ctx, c)
	w.ok(err)
	if len(done) != len(c.IDs) {
		w.Fatalf("Change of %d IDs returned %d results", len(c.IDs), len(done))
	}
	return done
}

// changed applies verb to jobs of which each must be there and fit.
func (w *world) changed(verb pawl.ChangeVerb, ids ...pawl.ID) {
	w.Helper()
	for _, c := range w.change(pawl.Change{Verb: verb, Queue: queueA, IDs: ids}) {
		if c.Status != pawl.Done {
			w.Fatalf("%v: %v, want done", verb, c.Status)
		}
	}
}

func (w *world) pause(queue string, paused bool) {
	w.Helper()
	w.ok(w.s.Configure(w.ctx, queue, pawl.QueueSettings{Paused: &paused}))
}

// get returns the job of queue "a", nil if there is none.
func (w *world) get(id pawl.ID) *pawl.Job {
	w.Helper()
	jobs, err := w.s.Get(w.ctx, queueA, id)
	w.ok(err)
	if len(jobs) != 1 {
		w.Fatalf("Get of one ID returned %d entries", len(jobs))
	}
	return jobs[0]
}

// job returns the job of queue "a", which must be there.
func (w *world) job(id pawl.ID) *pawl.Job {
	w.Helper()
	j := w.get(id)
	if j == nil {
		w.Fatalf("Get: job %v is gone", id)
	}
	return j
}

// inState fails unless the job is in state s.
func (w *world) inState(id pawl.ID, s pawl.State) {
	w.Helper()
	if j := w.job(id); j.State != s {
		w.Fatalf("job is %v (%s), want %v", j.State, j.Reason, s)
	}
}

// gone fails unless there is no job with the ID.
func (w *world) gone(id pawl.ID) {
	w.Helper()
	if j := w.get(id); j != nil {
		w.Fatalf("job is still there, %v", j.State)
	}
}

// list returns all jobs that match, page by page.
func (w *world) list(spec pawl.ListSpec) []*pawl.Job {
	w.Helper()
	var all []*pawl.Job
	for range maxPages {
		page, err := w.s.List(w.ctx, spec)
		w.ok(err)
		if len(page.Jobs) > spec.Limit {
			w.Fatalf("List with limit %d returned %d jobs", spec.Limit, len(page.Jobs))
		}
		all = append(all, page.Jobs...)
		if page.Next == "" {
			return all
		}
		spec.Cursor = page.Next
	}
	w.Fatalf("List did not end after %d pages", maxPages)
	return nil
}

// maxPages is more than any case can need: a cursor that never ends fails.
const maxPages = 20_000

// stats returns the numbers of queue "a".
func (w *world) stats() pawl.QueueStats {
	w.Helper()
	all, err := w.s.Count(w.ctx, queueA)
	w.ok(err)
	if len(all) != 1 {
		w.Fatalf("Count of one queue returned %d entries", len(all))
	}
	return all[0]
}

func idsOf(jobs []*pawl.Job) []pawl.ID {
	ids := make([]pawl.ID, len(jobs))
	for i, j := range jobs {
		ids[i] = j.ID
	}
	return ids
}
