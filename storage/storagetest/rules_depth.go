package storagetest

import (
	"errors"
	"time"

	"github.com/pawlq/pawl"
)

func depthRules() []testCase {
	return []testCase{
		{
			name: "depth limit",
			says: "MaxDepth refuses a job when its queue already holds that many waiting (ready or scheduled) jobs.",
			run:  depthLimit, needs: traits.exactDepth,
		},
		{
			name: "depth does not hinder what is there",
			says: "Nack, rescue and kick are never refused by a depth limit, and running or final jobs do not count.",
			run:  depthOnlyEnqueue, needs: traits.exactDepth,
		},
		{
			name: "depth is looked at last",
			says: "A present ID or a held key comes before the depth limit.",
			run:  depthLast, needs: traits.exactDepth,
		},
		{
			name: "drop the oldest",
			says: "DropOldest first cancels, with reason dropped, the waiting job of least urgency that became due first; " +
				"if none is ready, the scheduled job due next.",
			run: depthDropOldest, needs: traits.exactDepth,
		},
		{
			name: "drop sees the call's own jobs",
			says: "The jobs of the same Enqueue that came before count, and can be the oldest.",
			run:  depthDropOwn, needs: traits.exactDepth, ordered: true,
		},
		{
			name: "drop gives up the record and the key",
			says: "A dropped job ends like any canceled one: its key is given up, and with DeleteNow the record goes.",
			run:  depthDropEnds, needs: traits.exactDepth, ordered: true,
		},
	}
}

func (w *world) full(r pawl.Request) {
	w.Helper()
	if _, err := w.s.Enqueue(w.ctx, complete(r)); !errors.Is(err, pawl.ErrFull) {
		w.Fatalf("error is %v, want ErrFull", err)
	}
}

func depthLimit(w *world) {
	limited := pawl.Request{MaxDepth: 3}
	w.add(limited)
	w.add(pawl.Request{MaxDepth: 3, Delay: time.Hour})
	w.add(limited)
	w.full(limited)
	w.add(pawl.Request{MaxDepth: 3, Queue: "b"})
	w.add(pawl.Request{MaxDepth: 4})
	w.add(pawl.Request{})
	w.full(pawl.Request{MaxDepth: 4})
	if s := w.stats(); s.Ready != 4 || s.Scheduled != 1 {
		w.Fatalf("%d jobs are ready and %d scheduled, want 4 and 1", s.Ready, s.Scheduled)
	}
}

func depthOnlyEnqueue(w *world) {
	limited := pawl.Request{MaxDepth: 1}
	id := w.add(limited)
	j := w.claimOne()
	w.add(limited)
	w.full(limited)
	w.settled(pawl.Outcome{Ref: j.Ref, Verb: pawl.Nack})
	jobs := w.claim(2)
	w.settled(pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Bury}, pawl.Outcome{Ref: jobs[1].Ref, Verb: pawl.Ack})
	w.add(limited)
	w.full(limited)
	w.changed(pawl.Kick, id)
	w.claim(2)
	w.clock.Advance(lease)
	w.sweep()
	if n := w.stats().Ready; n != 2 {
		w.Fatalf("%d jobs are ready, want 2", n)
	}
}

func depthLast(w *world) {
	id := w.add(pawl.Request{UniqueKey: "k"})
	w.same("receipts", w.enqueue(
		pawl.Request{ID: id, UniqueKey: "k", MaxDepth: 1},
		pawl.Request{UniqueKey: "k", MaxDepth: 1},
		pawl.Request{UniqueKey: "k", MaxDepth: 1, OnDuplicate: pawl.Replace},
	), []pawl.Receipt{
		{ID: id, Queue: queueA, Status: pawl.Exists},
		{ID: id, Queue: queueA, Status: pawl.Duplicate},
		{ID: id, Queue: queueA, Status: pawl.Replaced},
	})
}

func depthDropOldest(w *world) {
	add := func(priority int, delay time.Duration) pawl.ID {
		w.clock.Advance(time.Second)
		return w.add(pawl.Request{Priority: priority, Delay: delay})
	}
	order := []pawl.ID{
		4: add(0, 2*time.Hour), 3: add(5, time.Hour), // scheduled: due next first, whatever its priority
		2: add(-1, 0), 0: add(1, 0), 1: add(1, 0), // ready: least urgent first, then due first
	}
	for i, id := range order {
		w.clock.Advance(time.Second)
		w.add(pawl.Request{MaxDepth: 5, WhenFull: pawl.DropOldest, Delay: 3 * time.Hour})
		j := w.job(id)
		if j.State != pawl.Canceled || j.Reason != pawl.ReasonDropped || !j.FinishedAt.Equal(w.now()) {
			w.Fatalf("drop %d: the job that was next to go is %v (%s), finished %v", i, j.State, j.Reason, j.FinishedAt)
		}
		if s := w.stats(); s.Canceled != int64(i+1) || s.Ready+s.Scheduled != 5 {
			w.Fatalf("drop %d: %d canceled, %d waiting; want %d and 5", i, s.Canceled, s.Ready+s.Scheduled, i+1)
		}
	}
}

func depthDropOwn(w *world) {
	receipts := w.enqueue(
		pawl.Request{},
		pawl.Request{Delay: time.Minute},
		pawl.Request{Delay: time.Second, MaxDepth: 2, WhenFull: pawl.DropOldest},
	)
	w.inState(receipts[0].ID, pawl.Canceled)
	w.inState(receipts[1].ID, pawl.Scheduled)
	w.inState(receipts[2].ID, pawl.Scheduled)
}

func depthDropEnds(w *world) {
	drop := pawl.Request{MaxDepth: 1, WhenFull: pawl.DropOldest}
	id := w.add(pawl.Request{UniqueKey: "k", Retention: pawl.DeleteNow})
	next := w.add(drop)
	w.gone(id)
	w.free("dropped")
	ids := w.addN(3, drop) // within one call, each drops the one before
	w.inState(next, pawl.Canceled)
	w.inState(ids[0], pawl.Canceled)
	w.inState(ids[1], pawl.Canceled)
	w.inState(ids[2], pawl.Ready)
}
