package storagetest

import (
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
)

func retentionRules() []testCase {
	return []testCase{
		{
			name: "retention keeps the record",
			says: "Retention keeps the record of a completed or canceled job that long; then Sweep purges it.",
			run:  retentionKeeps,
		},
		{
			name: "DeleteNow removes the record",
			says: "With DeleteNow the record goes in the step that ends the job, unless a unique window keeps it; buried jobs stay.",
			run:  retentionDeleteNow,
		},
		{
			name: "window outlasts retention",
			says: "A record is kept for the longer of its Retention and its unique window.",
			run:  retentionWindow,
		},
		{
			name: "buried jobs stay",
			says: "Buried jobs stay until kicked or deleted; BuriedRetention deletes them that long after FinishedAt.",
			run:  retentionBuried,
		},
		{
			name: "MaxBuried deletes the oldest",
			says: "MaxBuried is how many buried jobs each queue keeps; the ones with the oldest FinishedAt beyond it are deleted, but for those that a unique window keeps.",
			run:  func(w *world) { retentionMost(w, pawl.Buried) }, ordered: true,
		},
		{
			name: "MaxCompleted deletes the oldest",
			says: "MaxCompleted is how many completed jobs each queue keeps; the ones with the oldest FinishedAt beyond it are deleted, but for those that a unique window keeps.",
			run:  func(w *world) { retentionMost(w, pawl.Completed) }, ordered: true,
		},
		{
			name: "MaxCanceled deletes the oldest",
			says: "MaxCanceled is how many canceled jobs each queue keeps; the ones with the oldest FinishedAt beyond it are deleted, but for those that a unique window keeps.",
			run:  func(w *world) { retentionMost(w, pawl.Canceled) }, ordered: true,
		},
		{
			name: "ends at one time",
			says: "MaxCompleted, MaxBuried and MaxCanceled are how many records of each state each queue keeps, also of those that ended at one time.",
			run:  retentionTies, ordered: true,
		},
		{
			name: "numbers are counted by state and queue",
			says: "MaxCompleted, MaxBuried and MaxCanceled count the records of their own state, in each queue for itself; 0 means all.",
			run:  retentionApart, ordered: true,
		},
		{
			name: "what is over does not count",
			says: "Of the records whose retention is not over, the ones with the oldest FinishedAt beyond the number are deleted.",
			run:  retentionOver, ordered: true,
		},
		{
			name: "what is kicked or deleted meanwhile counts",
			says: "However many sweep at once, and whatever is kicked or deleted meanwhile, not one more than is beyond the number is deleted.",
			run:  retentionMeanwhile, ordered: true,
		},
		{
			name: "purge frees the ID",
			says: "Enqueueing an ID changes nothing while the job or its retained record exists; afterwards it is a new job.",
			run:  retentionID,
		},
	}
}

// finish stores a job and ends it by the verb.
func (w *world) finish(r pawl.Request, v pawl.Verb) pawl.ID {
	w.Helper()
	id := w.add(r)
	w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: v, Error: "e"})
	return id
}

func retentionKeeps(w *world) {
	completed := w.finish(pawl.Request{Retention: time.Hour}, pawl.Ack)
	canceled := w.add(pawl.Request{Retention: time.Hour})
	w.changed(pawl.Cancel, canceled)
	longer := w.finish(pawl.Request{Retention: time.Hour + time.Microsecond}, pawl.Ack)
	waiting := w.add(pawl.Request{Retention: time.Second})
	w.clock.Advance(time.Hour - time.Microsecond)
	if n := w.sweep().Purged; n != 0 {
		w.Fatalf("purged %d jobs too early", n)
	}
	w.inState(completed, pawl.Completed)
	w.clock.Advance(time.Microsecond)
	if n := w.sweep().Purged; n != 2 {
		w.Fatalf("purged %d jobs, want 2", n)
	}
	w.gone(completed)
	w.gone(canceled)
	w.job(longer)
	w.inState(waiting, pawl.Ready)
	w.changed(pawl.Kick, longer)
	w.clock.Advance(24 * time.Hour)
	if n := w.sweep().Purged; n != 0 {
		w.Fatalf("purged %d jobs that are not final", n)
	}
}

func retentionDeleteNow(w *world) {
	r := pawl.Request{Retention: pawl.DeleteNow}
	w.gone(w.finish(r, pawl.Ack))
	id := w.add(r)
	w.changed(pawl.Cancel, id)
	w.gone(id)
	id = w.finish(r, pawl.Bury)
	w.inState(id, pawl.Buried)
	w.changed(pawl.Kick, id)
	w.claimOne()
	w.changed(pawl.Cancel, id)
	w.gone(id)
	if s := w.stats(); s != (pawl.QueueStats{Queue: queueA}) {
		w.Fatalf("numbers are left: %+v", s)
	}
}

func retentionWindow(w *world) {
	r := pawl.Request{UniqueKey: "k", UniqueMode: pawl.UniqueUntilWindow}
	for _, c := range []struct{ retention, window, want time.Duration }{
		{time.Minute, time.Hour, time.Hour},
		{time.Hour, time.Minute, time.Hour},
		{pawl.DeleteNow, time.Minute, time.Minute},
	} {
		r.Retention, r.UniqueWindow = c.retention, c.window
		id := w.finish(r, pawl.Ack)
		w.clock.Advance(c.want - time.Microsecond)
		w.sweep()
		w.job(id)
		w.clock.Advance(time.Microsecond)
		w.sweep()
		w.gone(id)
	}
}

func retentionBuried(w *world) {
	id := w.finish(pawl.Request{Retention: time.Second}, pawl.Bury)
	w.clock.Advance(1000 * time.Hour)
	w.sweep()
	w.job(id)
	spec := pawl.SweepSpec{Limit: 10, BuriedRetention: 1000*time.Hour + time.Microsecond}
	w.sweepBy(spec)
	w.job(id)
	windowed := w.finish(pawl.Request{UniqueKey: "k", UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: 2000 * time.Hour}, pawl.Bury)
	w.clock.Advance(time.Microsecond)
	if n := w.sweepBy(spec).Purged; n != 1 {
		w.Fatalf("purged %d jobs, want 1", n)
	}
	w.gone(id)
	w.clock.Advance(2000*time.Hour - time.Microsecond - time.Microsecond)
	w.sweepBy(spec)
	w.job(windowed)
	w.clock.Advance(time.Microsecond)
	w.sweepBy(spec)
	w.gone(windowed)
}

// most is a spec that keeps so many jobs of a state.
func most(state pawl.State, n, limit int) pawl.SweepSpec {
	spec := pawl.SweepSpec{Limit: limit}
	switch state {
	case pawl.Completed:
		spec.MaxCompleted = n
	case pawl.Buried:
		spec.MaxBuried = n
	case pawl.Canceled:
		spec.MaxCanceled = n
	}
	return spec
}

// end stores a job and ends it in the state.
func (w *world) end(r pawl.Request, state pawl.State) pawl.ID {
	w.Helper()
	r.Queue, r.Retention = or(r.Queue, queueA), 24*time.Hour
	id := w.add(r)
	if state == pawl.Canceled {
		w.change(pawl.Change{Verb: pawl.Cancel, Queue: r.Queue, IDs: []pawl.ID{id}})
		return id
	}
	v := map[pawl.State]pawl.Verb{pawl.Completed: pawl.Ack, pawl.Buried: pawl.Bury}[state]
	w.settled(pawl.Outcome{Ref: w.claimBy(asking(r.Queue, 1))[0].Ref, Verb: v, Error: "e"})
	return id
}

// sweptBy sweeps until nothing is left to do, and returns how many jobs that purged.
// More may be true once too often: a limit was reached.
func (w *world) sweptBy(spec pawl.SweepSpec) (purged int) {
	w.Helper()
	for range 1000 {
		swept := w.sweepBy(spec)
		if purged += swept.Purged; !swept.More {
			return purged
		}
	}
	w.Fatalf("there is always more to sweep")
	return 0
}

func retentionMost(w *world, state pawl.State) {
	keyed := w.end(pawl.Request{UniqueKey: "k", UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: time.Hour}, state)
	var ids []pawl.ID
	for range 5 {
		w.clock.Advance(time.Second)
		ids = append(ids, w.end(pawl.Request{}, state))
	}
	other := w.end(pawl.Request{Queue: "b"}, state)
	if n := w.sweptBy(most(state, 7, 2)); n != 0 {
		w.Fatalf("purged %d jobs of queues that are within the number", n)
	}
	first := w.sweepBy(most(state, 2, 2))
	if first.Purged != 2 || !first.More {
		w.Fatalf("purged %d jobs, more %v, want the limit of 2 and more", first.Purged, first.More)
	}
	w.gone(ids[0])
	w.gone(ids[1])
	if n := w.sweptBy(most(state, 3, 2)); n != 0 {
		w.Fatalf("purged %d jobs though only one is beyond the number, which its window keeps", n)
	}
	w.sweptBy(most(state, 2, 2))
	w.gone(ids[2])
	w.job(keyed)
	for _, id := range ids[3:] {
		w.job(id)
	}
	jobs, err := w.s.Get(w.ctx, "b", other)
	w.ok(err)
	if jobs[0] == nil {
		w.Fatalf("a job of a queue that is within the number was deleted")
	}
	w.clock.Advance(time.Hour)
	if n := w.sweptBy(most(state, 2, 2)); n != 1 {
		w.Fatalf("purged %d jobs when the window was over, want 1", n)
	}
	w.gone(keyed)
}

func retentionTies(w *world) {
	for _, state := range []pawl.State{pawl.Completed, pawl.Buried, pawl.Canceled} {
		older := w.end(pawl.Request{}, state)
		w.clock.Advance(time.Second)
		ids := w.addN(30, pawl.Request{Retention: time.Hour})
		if state == pawl.Canceled {
			w.changed(pawl.Cancel, ids...)
		} else {
			var outcomes []pawl.Outcome
			for _, j := range w.claim(len(ids)) {
				v := map[pawl.State]pawl.Verb{pawl.Completed: pawl.Ack, pawl.Buried: pawl.Bury}[state]
				outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: v})
			}
			w.settled(outcomes...)
		}
		w.clock.Advance(time.Second)
		newer := w.end(pawl.Request{}, state)
		for _, kept := range []int{20, 19, 1} {
			w.sweptBy(most(state, kept, 7))
			if n := w.kept(state); n != kept {
				w.Fatalf("%d %v jobs are left, want %d", n, state, kept)
			}
			w.gone(older)
			w.job(newer)
		}
		w.changed(pawl.Delete, newer)
	}
}

// kept is how many jobs of a final state queueA has.
func (w *world) kept(state pawl.State) int {
	w.Helper()
	s := w.stats()
	return int(map[pawl.State]int64{pawl.Completed: s.Completed, pawl.Buried: s.Buried, pawl.Canceled: s.Canceled}[state])
}

func retentionApart(w *world) {
	states := []pawl.State{pawl.Completed, pawl.Buried, pawl.Canceled}
	for range 4 {
		for _, state := range states {
			w.end(pawl.Request{}, state)
			w.end(pawl.Request{Queue: "b"}, state)
			w.clock.Advance(time.Second)
		}
	}
	want := pawl.QueueStats{Completed: 4, Buried: 4, Canceled: 4}
	check := func(spec pawl.SweepSpec, purged int) {
		w.Helper()
		if n := w.sweptBy(spec); n != purged {
			w.Fatalf("purged %d jobs by %+v, want %d", n, spec, purged)
		}
		for _, queue := range []string{queueA, "b"} {
			all, err := w.s.Count(w.ctx, queue)
			w.ok(err)
			want.Queue = queue
			if all[0] != want {
				w.Fatalf("%+v are left by %+v, want %+v", all[0], spec, want)
			}
		}
	}
	check(pawl.SweepSpec{Limit: 100}, 0)
	want.Completed = 3
	check(pawl.SweepSpec{Limit: 100, MaxCompleted: 3}, 2)
	want.Canceled = 2
	check(pawl.SweepSpec{Limit: 100, MaxCanceled: 2}, 4)
	want.Completed, want.Buried, want.Canceled = 1, 3, 1
	check(pawl.SweepSpec{Limit: 3, MaxCompleted: 1, MaxBuried: 3, MaxCanceled: 1}, 8)
}

func retentionOver(w *world) {
	first := w.end(pawl.Request{}, pawl.Completed)
	w.clock.Advance(time.Second)
	w.finish(pawl.Request{Retention: time.Second}, pawl.Ack)
	w.clock.Advance(time.Second)
	if n := w.sweptBy(most(pawl.Completed, 1, 10)); n != 1 {
		w.Fatalf("purged %d jobs, want the one whose retention is over", n)
	}
	w.inState(first, pawl.Completed)
}

// retentionMeanwhile changes the newest jobs by hand at each moment at which a Sweep
// looks at the clock.
func retentionMeanwhile(w *world) {
	var looks, at atomic.Int64
	var then func()
	w.s = w.h.Open(w.TB, func() time.Time {
		if looks.Add(1) == at.Load() {
			then()
		}
		return w.clock.Now()
	})
	const kept = 60
	for n := int64(1); ; n++ {
		var ids []pawl.ID
		for range 3 {
			ids = append(ids, w.addN(kept, pawl.Request{})...)
			var outcomes []pawl.Outcome
			for _, j := range w.claim(kept) {
				outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Bury})
			}
			w.settled(outcomes...)
			w.clock.Advance(time.Second)
		}
		change := meanwhile{w: w, c: pawl.Change{Verb: pawl.Kick, Queue: queueA, IDs: ids[2*kept:]}, done: make(chan struct{})}
		if n%2 == 0 {
			change.c.Verb = pawl.Delete
		}
		then = change.begin
		at.Store(looks.Load() + n)
		w.sweepBy(most(pawl.Buried, kept, 1000))
		if at.Load() > looks.Load() {
			return
		}
		<-change.done
		w.sweptBy(most(pawl.Buried, kept, 1000))
		if left, want := w.kept(pawl.Buried), min(kept, change.before-kept); change.within.Load() && left != want {
			w.Fatalf("%d of %d jobs are left after a %v of %d at look %d, want %d", left, change.before, change.c.Verb, kept, n, want)
		}
		w.change(pawl.Change{Verb: pawl.Delete, Queue: queueA, IDs: ids})
	}
}

// meanwhile is a change of buried jobs in the middle of a Sweep.
type meanwhile struct {
	w      *world
	c      pawl.Change
	before int         // how many there were
	within atomic.Bool // it was made before the Sweep went on
	done   chan struct{}
}

// begin makes the change; but where a Sweep holds all, that comes after it.
func (m *meanwhile) begin() {
	go func() {
		defer close(m.done)
		all, err := m.w.s.Count(m.w.ctx, m.c.Queue)
		if err == nil {
			m.before = int(all[0].Buried)
			_, err = m.w.s.Change(m.w.ctx, m.c)
		}
		if err != nil {
			m.w.Errorf("a change beside a Sweep: %v", err)
		}
	}()
	select {
	case <-m.done:
		m.within.Store(true)
	case <-time.After(300 * time.Millisecond):
	}
}

func retentionID(w *world) {
	r := pawl.Request{ID: newID(), Retention: time.Hour, Payload: []byte("first")}
	w.finish(r, pawl.Ack)
	again := r
	again.Payload = []byte("second")
	if got := w.enqueue(again)[0].Status; got != pawl.Exists {
		w.Fatalf("receipt %v while the record is kept, want exists", got)
	}
	w.inState(r.ID, pawl.Completed)
	w.clock.Advance(time.Hour)
	w.sweep()
	w.add(again)
	if j := w.claimOne(); string(j.Payload) != "second" || j.Attempt != 1 {
		w.Fatalf("the new job has payload %q, attempt %d", j.Payload, j.Attempt)
	}
}
