package storagetest

import (
	"time"

	"github.com/pawlq/pawl"
)

func uniqueRules() []testCase {
	return []testCase{
		{
			name: "unique key is held by one job",
			says: "UniqueKey lets its queue hold only one job with that key; the receipt of a second one names the holder (Duplicate).",
			run:  uniqueOneHolder,
		},
		{
			name: "unique key is of its queue",
			says: "Unique keys of different queues are different, and keys are compared byte by byte.",
			run:  uniqueScope,
		},
		{
			name: "unique until final",
			says: "UniqueUntilFinal holds the key until the job is completed, buried or canceled: while it waits, runs, is retried or rescued.",
			run:  uniqueUntilFinal,
		},
		{
			name: "unique until claimed",
			says: "UniqueUntilClaimed gives the key up at the first claim, for good: a retry or a kick does not take it again.",
			run:  uniqueUntilClaimed,
		},
		{
			name: "unique until window",
			says: "UniqueUntilWindow holds the key until UniqueWindow after the job became final, and keeps the record at least that long.",
			run:  uniqueUntilWindow,
		},
		{
			name: "replace rewrites the waiting holder",
			says: "Replace rewrites a waiting holder in place, under its own ID, as if just enqueued.",
			run:  uniqueReplace,
		},
		{
			name: "replace keeps a running holder",
			says: "A holder that is running or final is kept by Replace; the receipt is Duplicate.",
			run:  uniqueReplaceRunning,
		},
		{
			name: "replace within one call",
			says: "Requests of one call follow each other: a later one finds the key of an earlier one held.",
			run:  uniqueWithinCall,
		},
		{
			name: "unique key that comes free keeps its place",
			says: "Enqueue stores the requests in order, also those whose keys come free at this very moment, and Replace rewrites a holder that comes behind them.",
			run:  uniqueInOrder,
		},
		{
			name: "kick into a held key names the holder",
			says: "Kick takes the unique key again or gives Conflict, which names the holder, and nothing changes.",
			run:  uniqueKickConflict,
		},
		{
			name: "delete gives the key up",
			says: "Deleting a job gives its key up, also within its window.",
			run:  uniqueDelete,
		},
	}
}

// keyed tries to enqueue a job with the key and returns the receipt.
func (w *world) keyed(key string) pawl.Receipt {
	w.Helper()
	return w.enqueue(pawl.Request{UniqueKey: key})[0]
}

// held fails unless the key "k" is held by the job.
func (w *world) held(id pawl.ID, when string) {
	w.Helper()
	if r := w.keyed("k"); r.Status != pawl.Duplicate || r.ID != id {
		w.Fatalf("%s: receipt %v, want a duplicate of the holder", when, r.Status)
	}
}

// free fails unless the key "k" can be taken, and leaves it free.
func (w *world) free(when string) {
	w.Helper()
	r := w.keyed("k")
	if r.Status != pawl.Stored {
		w.Fatalf("%s: receipt %v, want stored", when, r.Status)
	}
	w.changed(pawl.Delete, r.ID)
}

func uniqueOneHolder(w *world) {
	id := w.add(pawl.Request{UniqueKey: "k", Payload: []byte("first")})
	before := w.job(id)
	w.held(id, "second enqueue")
	w.same("the holder", w.job(id), before)
	if n := w.stats().Ready; n != 1 {
		w.Fatalf("%d jobs are ready, want 1", n)
	}
}

func uniqueScope(w *world) {
	w.add(pawl.Request{UniqueKey: "k"})
	w.add(pawl.Request{UniqueKey: "k", Queue: "b"})
	for _, key := range []string{"K", "k ", " k", "kk", "é", "e\u0301", "k:1", "k'\"\\%_*"} {
		w.add(pawl.Request{UniqueKey: key})
	}
}

func uniqueUntilFinal(w *world) {
	id := w.add(pawl.Request{UniqueKey: "k", MaxAttempts: 2})
	w.held(id, "ready")
	j := w.claimOne()
	w.held(id, "running")
	w.settled(pawl.Outcome{Ref: j.Ref, Verb: pawl.Nack, Delay: time.Second})
	w.held(id, "retried")
	w.clock.Advance(time.Second)
	w.claimOne()
	w.clock.Advance(lease)
	w.sweep()
	w.held(id, "rescued")
	j = w.claimOne()
	w.settled(pawl.Outcome{Ref: j.Ref, Verb: pawl.Nack})
	w.inState(id, pawl.Buried)
	w.free("buried")
	w.changed(pawl.Kick, id)
	w.held(id, "kicked")
	w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Ack})
	w.free("completed")
	id = w.add(pawl.Request{UniqueKey: "k"})
	w.changed(pawl.Cancel, id)
	w.free("canceled")
}

func uniqueUntilClaimed(w *world) {
	r := pawl.Request{UniqueKey: "k", UniqueMode: pawl.UniqueUntilClaimed, MaxAttempts: 2}
	id := w.add(r)
	w.held(id, "ready")
	j := w.claimOne()
	w.free("claimed")
	w.settled(pawl.Outcome{Ref: j.Ref, Verb: pawl.Nack})
	w.free("retried")
	w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Bury})
	w.changed(pawl.Kick, id)
	w.free("kicked")
	w.changed(pawl.Cancel, id)
	id = w.add(r)
	w.changed(pawl.Cancel, id)
	w.free("canceled before a claim")
}

func uniqueUntilWindow(w *world) {
	window := time.Hour
	r := pawl.Request{UniqueKey: "k", UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: window, Retention: pawl.DeleteNow}
	for _, verb := range []pawl.Verb{pawl.Ack, pawl.Bury} {
		id := w.add(r)
		w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: verb})
		w.held(id, "at once after "+verb.String())
		w.clock.Advance(window - time.Microsecond)
		w.sweep()
		w.job(id)
		w.held(id, "just before the end of the window after "+verb.String())
		w.clock.Advance(time.Microsecond)
		w.free("at the end of the window after " + verb.String())
		w.sweep()
		if verb == pawl.Ack {
			w.gone(id)
		}
	}
}

func uniqueReplace(w *world) {
	id := w.add(pawl.Request{UniqueKey: "k", Payload: []byte("old"), Meta: map[string]string{"old": "1"}})
	w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Nack, Delay: time.Hour, Error: "e"})
	before := w.job(id)
	w.clock.Advance(time.Second)
	r := pawl.Request{
		UniqueKey: "k", OnDuplicate: pawl.Replace, Payload: []byte("new"), Kind: "other", Priority: -3, MaxAttempts: 7,
	}
	receipt := w.enqueue(r)[0]
	w.same("receipt", receipt, pawl.Receipt{ID: id, Queue: queueA, Status: pawl.Replaced})
	want := *before
	want.Payload, want.Meta, want.Kind, want.Priority, want.MaxAttempts = []byte("new"), nil, "other", -3, 7
	want.State, want.Reason, want.RunAt, want.Attempt = pawl.Ready, "", w.now(), 0
	w.same("the replaced job", w.job(id), &want)
	w.same("claimed jobs", idsOf(w.claim(2)), []pawl.ID{id})
}

func uniqueReplaceRunning(w *world) {
	id := w.add(pawl.Request{
		UniqueKey: "k", UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: time.Hour, Payload: []byte("old"),
	})
	j := w.claimOne()
	for range 2 {
		before := w.job(id)
		receipt := w.enqueue(pawl.Request{UniqueKey: "k", OnDuplicate: pawl.Replace, Payload: []byte("new")})[0]
		w.same("receipt", receipt, pawl.Receipt{ID: id, Queue: queueA, Status: pawl.Duplicate})
		w.same("the holder", w.job(id), before)
		w.settled(pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
	}
}

func uniqueWithinCall(w *world) {
	first, second := newID(), newID()
	receipts := w.enqueue(
		pawl.Request{ID: first, UniqueKey: "k", Payload: []byte("1")},
		pawl.Request{ID: second, UniqueKey: "k", Payload: []byte("2")},
		pawl.Request{UniqueKey: "k", Payload: []byte("3"), OnDuplicate: pawl.Replace},
		pawl.Request{UniqueKey: "k", Payload: []byte("4"), UniqueMode: pawl.UniqueUntilClaimed, OnDuplicate: pawl.Replace},
	)
	w.same("receipts", receipts, []pawl.Receipt{
		{ID: first, Queue: queueA, Status: pawl.Stored},
		{ID: first, Queue: queueA, Status: pawl.Duplicate},
		{ID: first, Queue: queueA, Status: pawl.Replaced},
		{ID: first, Queue: queueA, Status: pawl.Replaced},
	})
	w.gone(second)
	j := w.claimOne()
	if string(j.Payload) != "4" {
		w.Fatalf("payload is %q, want that of the last Replace", j.Payload)
	}
	w.free("claimed: the mode is that of the last Replace")
}

func uniqueInOrder(w *world) {
	w.add(pawl.Request{UniqueKey: "k", UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: time.Hour, Retention: pawl.DeleteNow})
	w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Ack})
	w.clock.Advance(time.Hour)
	var reqs []pawl.Request
	want := map[int][]pawl.ID{} // by part
	for _, key := range []string{"a", "k", "b", "", "c"} {
		r := pawl.Request{ID: newID(), UniqueKey: key, Priority: 1}
		reqs = append(reqs, r)
		part := w.h.part(&pawl.Request{Queue: queueA, ID: r.ID, UniqueKey: key})
		want[part] = append(want[part], r.ID)
	}
	last := reqs[len(reqs)-1]
	reqs = append(reqs, pawl.Request{UniqueKey: last.UniqueKey, OnDuplicate: pawl.Replace, Priority: 1, Payload: []byte("new")})
	receipts := w.enqueue(reqs...)
	for _, r := range receipts[:len(reqs)-1] {
		w.same("status", r.Status, pawl.Stored)
	}
	w.same("receipt", receipts[len(reqs)-1], pawl.Receipt{ID: last.ID, Queue: queueA, Status: pawl.Replaced})
	jobs := w.claim(len(reqs))
	w.same("order of claims", w.byPart(jobs), want)
	if j := w.job(last.ID); string(j.Payload) != "new" {
		w.Fatalf("payload is %q, want that of the Replace", j.Payload)
	}
}

func uniqueKickConflict(w *world) {
	for _, mode := range []pawl.UniqueMode{pawl.UniqueUntilFinal, pawl.UniqueUntilWindow} {
		r := pawl.Request{UniqueKey: "k", UniqueMode: mode}
		if mode == pawl.UniqueUntilWindow {
			r.UniqueWindow = time.Second
		}
		old := w.add(r)
		w.settled(pawl.Outcome{Ref: w.claimOne().Ref, Verb: pawl.Bury})
		w.clock.Advance(time.Second)
		holder := w.add(r)
		before := w.job(old)
		w.same("result of Kick", w.change(pawl.Change{Verb: pawl.Kick, Queue: queueA, IDs: []pawl.ID{old}}), []pawl.Changed{
			{ID: old, Status: pawl.Conflict, Before: pawl.Buried, Holder: holder},
		})
		w.same("the job that was not kicked", w.job(old), before)
		w.changed(pawl.Delete, holder)
		w.changed(pawl.Kick, old)
		w.held(old, "kicked")
		w.changed(pawl.Delete, old)
	}
}

func uniqueDelete(w *world) {
	id := w.add(pawl.Request{UniqueKey: "k"})
	w.changed(pawl.Delete, id)
	w.free("a waiting job was deleted")
	id = w.add(pawl.Request{UniqueKey: "k", UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: time.Hour})
	w.claimOne()
	w.changed(pawl.Delete, id)
	w.free("a running job was deleted")
	id = w.add(pawl.Request{UniqueKey: "k", UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: time.Hour})
	w.changed(pawl.Cancel, id)
	w.held(id, "canceled, in its window")
	w.changed(pawl.Delete, id)
	w.free("a job in its window was deleted")
}
