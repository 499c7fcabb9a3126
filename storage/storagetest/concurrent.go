package storagetest

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
)

func concurrentCases() []testCase {
	return []testCase{
		{
			name: "claims are distinct",
			says: "A job is claimed by one claimer at a time, however many claim at once.",
			run:  concurrentClaims,
		},
		{
			name: "claims until fewer come",
			says: "Fewer than asked for come only if no more can be claimed, or calls under way have the others in hand: " +
				"callers that each claim until fewer come leave nothing.",
			run: concurrentFewer,
		},
		{
			name: "unique key under concurrent enqueues",
			says: "Unique means at most one job per key, under any concurrency.",
			run:  concurrentKey,
		},
		{
			name: "same ID under concurrent enqueues",
			says: "An ID that is present changes nothing: of many enqueues of one ID at once, one stores it, and to all others it exists.",
			run:  concurrentID,
		},
		{
			name: "depth under concurrent enqueues",
			says: "MaxDepth is exact under any concurrency.",
			run:  concurrentDepth, needs: traits.exactDepth,
		},
		{
			name: "settles of one claim have one winner",
			says: "If the ref is the current claim, the job moves and the fence ends: of different verbs at once, one is accepted.",
			run:  concurrentSettle,
		},
		{
			name: "settle against rescue",
			says: "Either the worker's outcome counts or the rescue does, never both.",
			run:  concurrentRescue,
		},
		{
			name: "extend against rescue",
			says: "Either the lease is extended or the job is rescued, never both, and Extend says which.",
			run:  concurrentExtend,
		},
		{
			name: "sweeps need no leader",
			says: "Any number of processes may sweep: each due thing is done once.",
			run:  concurrentSweeps,
		},
		{
			name: "sweeps of buried jobs",
			says: "MaxBuried deletes the oldest buried jobs beyond that number, and however many sweep at once, not one more.",
			run:  func(w *world) { concurrentMost(w, pawl.Buried, pawl.Bury) }, ordered: true,
		},
		{
			name: "sweeps of completed jobs",
			says: "MaxCompleted deletes the oldest completed jobs beyond that number, and however many sweep at once, not one more.",
			run:  func(w *world) { concurrentMost(w, pawl.Completed, pawl.Ack) }, ordered: true,
		},
		{
			name: "sweeps beside jobs that end",
			says: "Those with the oldest FinishedAt beyond MaxCompleted are deleted, also while others end: the newest ones stay.",
			run:  concurrentEnds, ordered: true,
		},
		{
			name: "reads are of one moment",
			says: "Get returns each job as it was at one moment, and List too: never a part of it from before a change, or of another job.",
			run:  concurrentReads,
		},
		{
			name: "everything at once",
			says: "All methods may be called concurrently: nothing vanishes, and each job ends once.",
			run:  concurrentAll,
		},
	}
}

// handles returns n handles, some of them of their own if the storage can be
// opened more than once.
func (w *world) handles(n int) []pawl.Storage {
	w.Helper()
	all := make([]pawl.Storage, n)
	for i := range all {
		all[i] = w.s
		if w.h.Reopen != nil && i%4 == 1 && i < maxHandles {
			all[i] = w.h.Reopen(w, w.s, w.clock.Now)
		}
	}
	return all
}

// maxHandles keeps a case with many goroutines from opening as many handles.
const maxHandles = 12

// together runs f once for each of n goroutines, each with a handle, and
// reports the first error.
func (w *world) together(n int, f func(i int, s pawl.Storage) error) {
	w.Helper()
	handles := w.handles(n)
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i, s := range handles {
		wg.Go(func() {
			<-start
			errs[i] = f(i, s)
		})
	}
	close(start)
	wg.Wait()
	for _, err := range errs {
		w.ok(err)
	}
}

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

func concurrentMost(w *world, state pawl.State, v pawl.Verb) {
	const kept, more = 40, 60
	ids := w.addN(kept+more, pawl.Request{Retention: time.Hour})
	for len(ids) > 0 { // in groups of different times
		for _, j := range w.claim(min(20, len(ids))) {
			w.settled(pawl.Outcome{Ref: j.Ref, Verb: v})
		}
		ids = ids[min(20, len(ids)):]
		w.clock.Advance(time.Second)
	}
	var purged atomic.Int64
	spec := most(state, kept, 50)
	w.together(8, func(_ int, s pawl.Storage) error {
		for {
			swept, err := s.Sweep(w.ctx, spec)
			purged.Add(int64(swept.Purged))
			if err != nil || !swept.More {
				return err
			}
		}
	})
	// Jobs that another sweep is about to delete may be passed by.
	for range 4 {
		purged.Add(int64(w.sweepBy(spec).Purged))
	}
	if n := w.kept(state); n != kept {
		w.Fatalf("%d %v jobs are left, want %d", n, state, kept)
	}
	if purged.Load() != more {
		w.Fatalf("sweeps purged %d jobs, want %d", purged.Load(), more)
	}
}

// concurrentEnds sweeps while jobs end one after the other.
func concurrentEnds(w *world) {
	const n, kept = 60, 10
	w.addN(n, pawl.Request{Retention: time.Hour})
	spec := most(pawl.Completed, kept, 3)
	var ended []pawl.ID
	var over atomic.Bool
	w.together(3, func(i int, s pawl.Storage) error {
		if i > 0 {
			for !over.Load() {
				if _, err := s.Sweep(w.ctx, spec); err != nil {
					return err
				}
			}
			return nil
		}
		defer over.Store(true)
		for range n {
			c, err := s.Claim(w.ctx, asking(queueA, 1))
			if err != nil || len(c.Jobs) != 1 {
				return fmt.Errorf("claimed %d jobs: %w", len(c.Jobs), err)
			}
			if lost, err := s.Settle(w.ctx, []pawl.Outcome{{Ref: c.Jobs[0].Ref, Verb: pawl.Ack}}); err != nil || len(lost) > 0 {
				return fmt.Errorf("lost %d: %w", len(lost), err)
			}
			ended = append(ended, c.Jobs[0].ID)
			w.clock.Advance(time.Second)
		}
		return nil
	})
	w.sweptBy(spec)
	for i, id := range ended {
		if i < n-kept {
			w.gone(id)
		} else {
			w.inState(id, pawl.Completed)
		}
	}
}

func concurrentSweeps(w *world) {
	const n = 60
	w.addN(n, pawl.Request{})
	w.claim(n)
	w.addN(n, pawl.Request{Delay: time.Second, Retention: time.Second})
	w.clock.Advance(lease)
	var promoted, rescued atomic.Int64
	w.together(6, func(_ int, s pawl.Storage) error {
		for {
			swept, err := s.Sweep(w.ctx, pawl.SweepSpec{Limit: 7})
			promoted.Add(int64(swept.Promoted))
			rescued.Add(int64(len(swept.Rescued)))
			if err != nil || !swept.More {
				return err
			}
		}
	})
	w.clock.Advance(lease) // a lease may get a grace because writers were held up
	last := w.sweep()
	rescued.Add(int64(len(last.Rescued)))
	if promoted.Load() != n || rescued.Load() != n {
		w.Fatalf("promoted %d and rescued %d jobs, want %d and %d", promoted.Load(), rescued.Load(), n, n)
	}
	if s := w.stats(); s.Ready != 2*n {
		w.Fatalf("%d jobs are ready, want %d", s.Ready, 2*n)
	}
}

// concurrentAll lets producers, workers, sweepers, readers and an operator
// work at once while time passes, then drains what is left.
func concurrentAll(w *world) {
	const producers, perProducer = 3, 60
	acks := newTally()
	w.together(producers+6, func(i int, s pawl.Storage) error {
		switch {
		case i < producers:
			return produce(w, s, perProducer)
		case i < producers+3:
			return work(w, s, acks, 40, true)
		}
		return operate(w, s, i, 40)
	})
	for range 1000 {
		w.clock.Advance(time.Minute)
		for w.sweep().More {
		}
		w.ok(work(w, w.s, acks, 1, false))
		if s := w.stats(); s.Completed == producers*perProducer {
			break
		}
	}
	if s := w.stats(); s.Completed != producers*perProducer {
		w.Fatalf("%d of %d jobs were completed: %+v", s.Completed, producers*perProducer, s)
	}
	if n := acks.repeated(); n != 0 || acks.len() != producers*perProducer {
		w.Fatalf("%d jobs were acked, %d of them more than once", acks.len(), n)
	}
}

func produce(w *world, s pawl.Storage, n int) error {
	for i := range n {
		r := pawl.Request{
			Delay: time.Duration(i%3) * time.Second, Priority: i % 4, MaxAttempts: pawl.Unlimited, MaxRescues: 1 << 20,
		}
		if _, err := s.Enqueue(w.ctx, complete(r)); err != nil {
			return err
		}
	}
	return nil
}

// work claims jobs and acks them; with failing, a few are nacked or forgotten.
func work(w *world, s pawl.Storage, acks *ackTally, rounds int, failing bool) error {
	for round := range rounds {
		c, err := s.Claim(w.ctx, asking(queueA, 10))
		if err != nil {
			return err
		}
		var outcomes []pawl.Outcome
		for i, j := range c.Jobs {
			switch n := (round + i) % 9; {
			case failing && n == 0:
				outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Nack, Delay: time.Second, Error: "e"})
			case failing && n == 1:
			default:
				outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
			}
		}
		lost, err := s.Settle(w.ctx, outcomes)
		if err != nil {
			return err
		}
		acks.add(outcomes, lost)
	}
	return nil
}

// operate sweeps, looks, pauses and resumes while time passes.
func operate(w *world, s pawl.Storage, i, rounds int) error {
	for round := range rounds {
		w.clock.Advance(2 * time.Second)
		if _, err := s.Sweep(w.ctx, pawl.SweepSpec{Limit: 20}); err != nil {
			return err
		}
		if _, err := s.List(w.ctx, pawl.ListSpec{Limit: 10}); err != nil {
			return err
		}
		if _, err := s.Count(w.ctx); err != nil {
			return err
		}
		paused := round%4 == i%4 && round < rounds-1
		if err := s.Configure(w.ctx, queueA, pawl.QueueSettings{Paused: &paused}); err != nil {
			return err
		}
	}
	paused := false
	return s.Configure(w.ctx, queueA, pawl.QueueSettings{Paused: &paused})
}

// An ackTally counts accepted acks by job.
type ackTally struct {
	mu sync.Mutex
	of map[pawl.ID]int
}

func newTally() *ackTally { return &ackTally{of: map[pawl.ID]int{}} }

func (t *ackTally) add(outcomes []pawl.Outcome, lost []pawl.Ref) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range outcomes {
		if o.Verb == pawl.Ack {
			t.of[o.Ref.ID]++
		}
	}
	for _, ref := range lost {
		for _, o := range outcomes {
			if o.Verb == pawl.Ack && o.Ref == ref {
				t.of[ref.ID]--
			}
		}
	}
}

func (t *ackTally) len() int { return len(t.of) }

func (t *ackTally) repeated() (n int) {
	for _, acks := range t.of {
		if acks != 1 {
			n++
		}
	}
	return n
}
