package storagetest

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/pawlq/pawl"
)

func enqueueRules() []testCase {
	return []testCase{
		{
			name: "enqueue returns a receipt each",
			says: "Enqueue stores the requests in order, and returns one receipt each, in order.",
			run:  enqueueReceipts,
		},
		{
			name: "enqueue of a present ID changes nothing",
			says: "An ID that is present changes nothing (Exists), also within one call, and is looked at before the unique key.",
			run:  enqueueExists,
		},
		{
			name: "enqueue is all or none",
			says: "Enqueue stores the requests, all or none: a FullError is for the whole call.",
			run:  enqueueAtomic, needs: func(h traits) bool { return h.atomicEnqueue() && h.exactDepth() },
		},
		{
			name: "enqueue later or now",
			says: "A stored job is Scheduled if its RunAt is after now, else it is Ready with RunAt = now.",
			run:  enqueueDue,
		},
		{
			name: "run time is rounded up",
			says: "RunAt is rounded up to the microsecond, never down: no job runs early.",
			run:  enqueueRoundsUp,
		},
		{
			name: "enqueue of many",
			says: "One Enqueue takes up to MaxBatch requests.",
			run:  enqueueMany,
		},
		{
			name: "enqueue of many that meet",
			says: "One Enqueue takes up to MaxBatch requests, of which later ones find the IDs and keys of earlier ones.",
			run:  enqueueManyMeet,
		},
		{
			name: "enqueue of many bytes",
			says: "One Enqueue of several requests takes up to MaxBatchBytes of payload.",
			run:  enqueueManyBytes,
		},
		{
			name: "a refused enqueue changes nothing",
			says: "Enqueue stores the requests, all or none: what a refused call replaced or dropped is as it was.",
			run:  enqueueRefused, needs: func(h traits) bool { return h.atomicEnqueue() && h.exactDepth() },
		},
		{
			name: "enqueue of nothing",
			says: "Enqueue of no requests stores nothing and is no error.",
			run: func(w *world) {
				receipts, err := w.s.Enqueue(w.ctx, nil)
				w.ok(err)
				w.same("receipts", receipts, []pawl.Receipt{})
			},
		},
	}
}

func enqueueReceipts(w *world) {
	reqs := complete(pawl.Request{}, pawl.Request{Queue: "b"}, pawl.Request{Delay: time.Hour})
	receipts, err := w.s.Enqueue(w.ctx, reqs)
	w.ok(err)
	w.same("receipts", receipts, []pawl.Receipt{
		{ID: reqs[0].ID, Queue: queueA, Status: pawl.Stored},
		{ID: reqs[1].ID, Queue: "b", Status: pawl.Stored},
		{ID: reqs[2].ID, Queue: queueA, Status: pawl.Stored},
	})
	jobs, err := w.s.Get(w.ctx, "", reqs[0].ID, reqs[1].ID, reqs[2].ID)
	w.ok(err)
	for i, j := range jobs {
		if j == nil || j.ID != reqs[i].ID || j.Queue != reqs[i].Queue {
			w.Fatalf("request %d was not stored as it was asked for: %+v", i, j)
		}
	}
}

func enqueueExists(w *world) {
	first := pawl.Request{ID: newID(), Payload: []byte("first")}
	key := w.keyBeside(first, "k")
	holder := w.add(pawl.Request{UniqueKey: key})
	second := pawl.Request{ID: first.ID, Payload: []byte("second"), UniqueKey: key}
	receipts := w.enqueue(first, second, pawl.Request{UniqueKey: key})
	w.same("receipts", receipts, []pawl.Receipt{
		{ID: first.ID, Queue: queueA, Status: pawl.Stored},
		{ID: first.ID, Queue: queueA, Status: pawl.Exists},
		{ID: holder, Queue: queueA, Status: pawl.Duplicate},
	})
	if got := string(w.job(first.ID).Payload); got != "first" {
		w.Fatalf("payload is %q, want %q", got, "first")
	}
	if n := w.stats().Ready; n != 2 {
		w.Fatalf("%d jobs are ready, want 2", n)
	}
}

func enqueueAtomic(w *world) {
	w.addN(2, pawl.Request{})
	reqs := complete(pawl.Request{Queue: "b"}, pawl.Request{UniqueKey: "k"}, pawl.Request{MaxDepth: 3}, pawl.Request{})
	_, err := w.s.Enqueue(w.ctx, reqs)
	var full *pawl.FullError
	if !errors.As(err, &full) || full.Queue != queueA || full.Limit != 3 || !errors.Is(err, pawl.ErrFull) {
		w.Fatalf("error is %v, want a FullError for queue a with limit 3", err)
	}
	for _, r := range reqs {
		jobs, err := w.s.Get(w.ctx, r.Queue, r.ID)
		w.ok(err)
		if jobs[0] != nil {
			w.Fatalf("a request of the refused call was stored")
		}
	}
	if got := w.enqueue(pawl.Request{UniqueKey: "k"})[0].Status; got != pawl.Stored {
		w.Fatalf("the refused call left its unique key behind: %v", got)
	}
}

func enqueueDue(w *world) {
	now := w.now()
	for _, c := range []struct {
		r     pawl.Request
		state pawl.State
		runAt time.Time
	}{
		{pawl.Request{}, pawl.Ready, now},
		{pawl.Request{Delay: time.Microsecond}, pawl.Scheduled, now.Add(time.Microsecond)},
		{pawl.Request{RunAt: now}, pawl.Ready, now},
		{pawl.Request{RunAt: now.Add(-time.Hour)}, pawl.Ready, now},
		{pawl.Request{RunAt: now.Add(time.Microsecond)}, pawl.Scheduled, now.Add(time.Microsecond)},
		{pawl.Request{RunAt: now.Add(time.Hour).In(time.FixedZone("", 3600))}, pawl.Scheduled, now.Add(time.Hour)},
	} {
		j := w.job(w.add(c.r))
		if j.State != c.state || !j.RunAt.Equal(c.runAt) || !j.CreatedAt.Equal(now) {
			w.Fatalf("delay %v, run at %v: job is %v at %v, created %v; want %v at %v, created %v",
				c.r.Delay, c.r.RunAt, j.State, j.RunAt, j.CreatedAt, c.state, c.runAt, now)
		}
	}
}

func enqueueRoundsUp(w *world) {
	at := w.now().Add(time.Second)
	id := w.add(pawl.Request{RunAt: at.Add(time.Nanosecond)})
	if got, want := w.job(id).RunAt, at.Add(time.Microsecond); !got.Equal(want) {
		w.Fatalf("RunAt is %v, want %v", got, want)
	}
	w.clock.Set(at.Add(time.Microsecond - time.Nanosecond))
	if n := len(w.claim(1)); n != 0 {
		w.Fatalf("the job was claimed a nanosecond early")
	}
	w.clock.Advance(time.Nanosecond)
	w.claimOne()
}

func enqueueMany(w *world) {
	reqs := make([]pawl.Request, pawl.MaxBatch)
	for i := range reqs {
		reqs[i].Payload = fmt.Append(nil, i)
	}
	receipts := w.enqueue(reqs...)
	for i, r := range receipts {
		if r.Status != pawl.Stored {
			w.Fatalf("receipt %d is %v", i, r.Status)
		}
	}
	if n := w.stats().Ready; n != pawl.MaxBatch {
		w.Fatalf("%d jobs are ready, want %d", n, pawl.MaxBatch)
	}
	jobs := w.claim(pawl.MaxStep)
	if len(jobs) != pawl.MaxStep {
		w.Fatalf("claimed %d jobs, want %d", len(jobs), pawl.MaxStep)
	}
	next := map[int][]int{} // the places of each part's jobs, in order
	for i, r := range receipts {
		part := w.h.part(&pawl.Request{Queue: queueA, ID: r.ID})
		next[part] = append(next[part], i)
	}
	for i, j := range jobs {
		part := w.h.partOf(j)
		if len(next[part]) == 0 {
			w.Fatalf("claimed job %d is one too many", i)
		}
		at := next[part][0]
		if want := fmt.Sprint(at); string(j.Payload) != want || j.ID != receipts[at].ID {
			w.Fatalf("claimed job %d has payload %s, want %s: jobs come in order of insertion", i, j.Payload, want)
		}
		next[part] = next[part][1:]
	}
}

// enqueueManyMeet sends MaxBatch requests of which each third has the ID of the
// first of its three and the one between has the key of the three before.
func enqueueManyMeet(w *world) {
	reqs := make([]pawl.Request, pawl.MaxBatch)
	want := make([]pawl.Receipt, len(reqs))
	for i := range reqs {
		want[i] = pawl.Receipt{ID: newID(), Queue: queueA, Status: pawl.Stored}
		switch {
		case i%3 == 0:
			reqs[i].UniqueKey = w.keyBeside(pawl.Request{ID: want[i].ID}, fmt.Sprint("key ", i, " "))
		case i%3 == 1 && i > 3:
			reqs[i].UniqueKey = reqs[i-4].UniqueKey
			reqs[i].ID = want[i].ID
			want[i].ID, want[i].Status = want[i-4].ID, pawl.Duplicate
			continue
		case i%3 == 2:
			want[i].ID, want[i].Status = want[i-2].ID, pawl.Exists
		}
		reqs[i].ID = want[i].ID
	}
	receipts := w.enqueue(reqs...)
	for i, r := range receipts {
		if r != want[i] {
			w.Fatalf("receipt %d is %v of %v, want %v of %v", i, r.Status, r.ID, want[i].Status, want[i].ID)
		}
	}
	for i, r := range w.enqueue(reqs...) { // all are present, or meet the same key
		if status := map[bool]pawl.ReceiptStatus{true: pawl.Duplicate, false: pawl.Exists}[want[i].Status == pawl.Duplicate]; r.Status != status {
			w.Fatalf("repeated: receipt %d is %v, want %v", i, r.Status, status)
		}
	}
}

func enqueueManyBytes(w *world) {
	const n = 64
	reqs := make([]pawl.Request, n)
	for i := range reqs {
		reqs[i].Payload = bytes.Repeat([]byte{byte(i), 0xff}, pawl.MaxBatchBytes/n/2)
	}
	for i, r := range w.enqueue(reqs...) {
		if i%20 == 3 && !bytes.Equal(w.job(r.ID).Payload, reqs[i].Payload) {
			w.Fatalf("payload %d came back as other bytes", i)
		}
	}
	if got := w.stats().Ready; got != n {
		w.Fatalf("%d jobs are ready, want %d", got, n)
	}
}

func enqueueRefused(w *world) {
	p := newPair(w)
	p.add(pawl.Request{UniqueKey: "k", Payload: []byte("first"), Delay: time.Hour})
	p.add(pawl.Request{Queue: "full", Retention: pawl.DeleteNow})
	p.add(pawl.Request{Queue: "full"})
	for range 2 {
		p.enqueue(complete(
			pawl.Request{UniqueKey: "other"},
			pawl.Request{UniqueKey: "k", OnDuplicate: pawl.Replace, Payload: []byte("second"), Priority: 7},
			pawl.Request{Queue: "full", MaxDepth: 2, WhenFull: pawl.DropOldest},
			pawl.Request{Queue: "full", MaxDepth: 2, WhenFull: pawl.DropOldest},
			pawl.Request{Queue: "full", MaxDepth: 2},
		)...)
		p.verify("after a refused call")
	}
}
