package storagetest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
)

func concurrentKey(w *world) {
	const n = 32
	for mode := pawl.UniqueUntilFinal; mode <= pawl.UniqueUntilWindow; mode++ {
		r := pawl.Request{UniqueKey: fmt.Sprint("k", mode), UniqueMode: mode}
		if mode == pawl.UniqueUntilWindow {
			r.UniqueWindow = time.Hour
		}
		receipts := make([]pawl.Receipt, n)
		w.together(n, func(i int, s pawl.Storage) error {
			got, err := s.Enqueue(w.ctx, complete(r))
			if err == nil {
				receipts[i] = got[0]
			}
			return err
		})
		stored := 0
		for _, got := range receipts {
			if got.ID != receipts[0].ID {
				w.Fatalf("receipts name different holders of one key")
			}
			if got.Status == pawl.Stored {
				stored++
			}
		}
		if stored != 1 {
			w.Fatalf("%d jobs were stored under one key, want 1", stored)
		}
	}
}

func concurrentID(w *world) {
	const n, rounds = 16, 5
	ready := int64(0)
	for i, r := range []pawl.Request{{}, {UniqueKey: "key"}, {UniqueKey: "key", OnDuplicate: pawl.Replace}} {
		for round := range rounds {
			if r.UniqueKey != "" {
				r.UniqueKey = fmt.Sprint(i, round)
			}
			q := complete(r)
			var stored, exists atomic.Int64
			w.together(n, func(_ int, s pawl.Storage) error {
				got, err := s.Enqueue(w.ctx, q)
				switch {
				case err != nil:
				case got[0].Status == pawl.Stored:
					stored.Add(1)
				case got[0].Status == pawl.Exists && got[0].ID == q[0].ID:
					exists.Add(1)
				}
				return err
			})
			ready++
			if s := w.stats(); stored.Load() != 1 || exists.Load() != n-1 || s.Ready != ready {
				w.Fatalf("%d receipts say stored and %d exists, %d jobs are ready; want 1, %d and %d", stored.Load(), exists.Load(), s.Ready, n-1, ready)
			}
		}
	}
}

// concurrentOrder enqueues a call whose first job is there, with a key that is free, while
// others delete that job. The second wants the key, and in a full queue a job has to be
// dropped for it; now and then the third is the first again.
func concurrentOrder(w *world, full bool) {
	for round := range 20 {
		key := pawl.Request{UniqueKey: fmt.Sprint("key ", round), Retention: time.Hour}
		there := w.finish(key, pawl.Ack)
		reqs := complete(key, key, key)
		reqs[0].ID, reqs[2].ID = there, there
		reqs = reqs[:2+round%2]
		if full {
			w.add(pawl.Request{Retention: pawl.DeleteNow})
			reqs[1].MaxDepth, reqs[1].WhenFull = 1, pawl.DropOldest
		}
		holder, want := there, []pawl.ReceiptStatus{pawl.Stored, pawl.Duplicate, pawl.Exists} // it was deleted before
		got := w.enqueueBesideDelete(reqs, there)
		if got[0].Status == pawl.Exists {
			holder, want = reqs[1].ID, []pawl.ReceiptStatus{pawl.Exists, pawl.Stored, pawl.Exists}
		}
		for k, r := range got {
			if r.Status != want[k] {
				w.Fatalf("receipts are %v, want %v", got, want)
			}
		}
		w.inState(holder, pawl.Ready)
		for _, j := range w.list(pawl.ListSpec{Filter: pawl.Filter{Queue: queueA}, Limit: 10}) {
			w.changed(pawl.Delete, j.ID)
		}
	}
}

// enqueueBesideDelete enqueues while another deletes a job, which may be gone.
func (w *world) enqueueBesideDelete(reqs []*pawl.Request, id pawl.ID) (got []pawl.Receipt) {
	w.Helper()
	w.together(2, func(i int, s pawl.Storage) (err error) {
		if i == 0 {
			got, err = s.Enqueue(w.ctx, reqs)
			return err
		}
		_, err = s.Change(w.ctx, pawl.Change{Verb: pawl.Delete, Queue: queueA, IDs: []pawl.ID{id}, From: pawl.Delete.From()})
		return err
	})
	return got
}

func concurrentDepth(w *world) {
	const limit = 20
	w.together(16, func(_ int, s pawl.Storage) error {
		for range 5 {
			if _, err := s.Enqueue(w.ctx, complete(pawl.Request{MaxDepth: limit, WhenFull: pawl.DropOldest})); err != nil {
				return err
			}
		}
		return nil
	})
	if s := w.stats(); s.Ready != limit || s.Canceled != 16*5-limit {
		w.Fatalf("%d jobs are ready and %d dropped, want %d and %d", s.Ready, s.Canceled, limit, 16*5-limit)
	}
}
