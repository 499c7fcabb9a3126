package storagetest

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
)

func concurrentSettle(w *world) {
	for range 10 {
		id := w.add(pawl.Request{})
		ref := w.claimOne().Ref
		var won atomic.Int64
		w.together(int(pawl.Skip), func(i int, s pawl.Storage) error {
			lost, err := s.Settle(w.ctx, []pawl.Outcome{{Ref: ref, Verb: pawl.Verb(i + 1), Delay: time.Hour, Error: "e"}})
			if len(lost) == 0 && err == nil {
				won.Add(1)
			}
			return err
		})
		if won.Load() != 1 {
			w.Fatalf("%d verbs were accepted for one claim, want 1", won.Load())
		}
		w.changed(pawl.Delete, id)
	}
}

func concurrentRescue(w *world) {
	for range 10 {
		id := w.add(pawl.Request{})
		ref := w.claimOne().Ref
		w.clock.Advance(lease)
		var lost, rescued atomic.Int64
		w.together(4, func(i int, s pawl.Storage) error {
			if i%2 == 1 {
				swept, err := s.Sweep(w.ctx, pawl.SweepSpec{Limit: 10})
				rescued.Add(int64(len(swept.Rescued)))
				return err
			}
			refs, err := s.Settle(w.ctx, []pawl.Outcome{{Ref: ref, Verb: pawl.Ack}})
			lost.Add(int64(len(refs)))
			return err
		})
		want := map[bool]pawl.State{true: pawl.Ready, false: pawl.Completed}[rescued.Load() == 1]
		if lost.Load() != 2*rescued.Load() || rescued.Load() > 1 || w.job(id).State != want {
			w.Fatalf("%d rescues, %d of 2 acks lost, job is %v", rescued.Load(), lost.Load(), w.job(id).State)
		}
		w.changed(pawl.Delete, id)
	}
}

func concurrentExtend(w *world) {
	const n, jobs = 8, 200
	w.addN(jobs, pawl.Request{})
	renewals := make([]pawl.Renewal, jobs)
	for i, j := range w.claim(jobs) {
		renewals[i] = pawl.Renewal{Ref: j.Ref, Lease: lease}
	}
	w.clock.Advance(lease)
	answers := make([][]pawl.Ref, n)
	w.together(n, func(i int, s pawl.Storage) error {
		if i%2 == 0 {
			swept, err := s.Sweep(w.ctx, pawl.SweepSpec{Limit: jobs / 4})
			answers[i] = swept.Rescued
			return err
		}
		var err error
		mine := slices.Collect(slices.Chunk(renewals, 2*jobs/n))[i/2]
		answers[i], err = s.Extend(w.ctx, mine)
		return err
	})
	rescued, lost := map[pawl.Ref]bool{}, map[pawl.Ref]bool{}
	for i, refs := range answers {
		for _, ref := range refs {
			if i%2 == 0 {
				rescued[ref] = true
			} else {
				lost[ref] = true
			}
		}
	}
	for _, r := range renewals {
		if state := w.job(r.Ref.ID).State; lost[r.Ref] != rescued[r.Ref] || rescued[r.Ref] != (state == pawl.Ready) {
			w.Fatalf("rescued is %t, lost for Extend %t, the job is %v", rescued[r.Ref], lost[r.Ref], state)
		}
	}
}
