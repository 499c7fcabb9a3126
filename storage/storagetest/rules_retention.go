package storagetest

import (
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
			says: "MaxBuried deletes the oldest buried jobs of each queue beyond that number; a unique window keeps a record in any case.",
			run:  retentionMaxBuried, ordered: true,
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

func retentionMaxBuried(w *world) {
	keyed := w.finish(pawl.Request{UniqueKey: "k", UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: time.Hour}, pawl.Bury)
	var ids []pawl.ID
	for range 5 {
		w.clock.Advance(time.Second)
		ids = append(ids, w.finish(pawl.Request{}, pawl.Bury))
	}
	other := w.add(pawl.Request{Queue: "b"})
	w.settled(pawl.Outcome{Ref: w.claimBy(asking("b", 1))[0].Ref, Verb: pawl.Bury})
	for range 5 { // a sweep is bounded and may need several steps
		w.sweepBy(pawl.SweepSpec{Limit: 2, MaxBuried: 3})
	}
	w.job(keyed)
	w.gone(ids[0])
	w.gone(ids[1])
	for _, id := range ids[2:] {
		w.job(id)
	}
	jobs, err := w.s.Get(w.ctx, "b", other)
	w.ok(err)
	if jobs[0] == nil {
		w.Fatalf("a job of a queue that is within the number was deleted")
	}
	w.clock.Advance(time.Hour)
	for range 2 {
		w.sweepBy(pawl.SweepSpec{Limit: 2, MaxBuried: 3})
	}
	w.gone(keyed)
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
