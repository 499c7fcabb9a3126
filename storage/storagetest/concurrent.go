package storagetest

import (
	"slices"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

func concurrentCases() []testCase {
	return slices.Concat(concurrentWaiting(), concurrentRunning())
}

// concurrentWaiting are the cases of enqueues and claims.
func concurrentWaiting() []testCase {
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
			name: "requests of a call are in order",
			says: "None is Duplicate because of one behind it, and one with the ID of another before it that was stored, or was there, " +
				"is Exists: also while others delete jobs.",
			run: func(w *world) { concurrentOrder(w, false) },
		},
		{
			name: "requests of a call are in order in a full queue",
			says: "None is Duplicate because of one behind it, and one with the ID of another before it that was stored, or was there, " +
				"is Exists: also while others delete jobs.",
			run: func(w *world) { concurrentOrder(w, true) }, needs: traits.exactDepth,
		},
		{
			name: "depth under concurrent enqueues",
			says: "MaxDepth is exact under any concurrency.",
			run:  concurrentDepth, needs: traits.exactDepth,
		},
	}
}

// concurrentRunning are the cases of settles, sweeps, and all together.
func concurrentRunning() []testCase {
	return []testCase{
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
