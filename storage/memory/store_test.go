package memory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlq/pawl"
)

func TestClose(t *testing.T) {
	s, _ := newStore(t)
	enqueue(t, s, newRequest(nil))
	listening, ended := make(chan bool), make(chan error)
	go func() {
		ended <- s.Watch(ctx, func(pawl.Event) { listening <- true })
	}()
	<-listening
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("Watch at work: %v", err)
	}
	for name, err := range calls(s, ctx) {
		if !errors.Is(err, pawl.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
}

func TestContextOver(t *testing.T) {
	s, _ := newStore(t)
	over, cancel := context.WithCancel(ctx)
	cancel()
	for name, err := range calls(s, over) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// calls calls each method and returns the errors by name.
func calls(s *Store, ctx context.Context) map[string]error {
	errs := make(map[string]error)
	_, errs["Enqueue"] = s.Enqueue(ctx, []*pawl.Request{newRequest(nil)})
	_, errs["Settle"] = s.Settle(ctx, nil)
	_, errs["Claim"] = s.Claim(ctx, spec(1))
	_, errs["Extend"] = s.Extend(ctx, nil)
	_, errs["Sweep"] = s.Sweep(ctx, pawl.SweepSpec{Limit: 1})
	_, errs["Get"] = s.Get(ctx, "")
	_, errs["List"] = s.List(ctx, pawl.ListSpec{Limit: 1})
	_, errs["Count"] = s.Count(ctx)
	_, errs["Change"] = s.Change(ctx, pawl.Change{})
	errs["Configure"] = s.Configure(ctx, "q", pawl.QueueSettings{})
	errs["Watch"] = s.Watch(ctx, func(pawl.Event) {})
	_, _, errs["Cycle"] = s.Cycle(ctx, nil, spec(1))
	return errs
}

// check compares the trees, timers, keys and counts of s with its records.
func check(t testing.TB, s *Store) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var (
		jobs   int
		timers [numTimers]int
		open   = make(map[*claim]int)
	)
	for name, q := range s.queues {
		if q.name != name || q.jobs == 0 && !q.paused {
			t.Errorf("queue %q is known as %q with %d jobs", q.name, name, q.jobs)
		}
		sum, retrying := 0, 0
		for state := range q.in {
			sum += q.in[state].size
			for it := range q.in[state].from(beginning) {
				r := s.records.at(it.v)
				if int(r.state) != state || r.queue != q || r.place() != it.key || s.get(r.id) != r {
					t.Errorf("record %+v is at %v in state %d of %q", r, it.key, state, name)
				}
				switch r.state {
				case pawl.Scheduled:
					if r.retrying() {
						retrying++
					}
				case pawl.Running:
					open[r.claim]++
					timers[rescueTimer]++
				case pawl.Completed, pawl.Canceled:
					timers[purgeTimer]++
				}
				if r.state.Waiting() && r.startBefore() != 0 {
					timers[expireTimer]++
				}
				if r.holdsKey(s.now()) && q.keys.get(r.extra.uniqueKey) != r.slot {
					t.Errorf("record %+v does not hold its key", r)
				}
			}
		}
		if q.next != q.in[pawl.Scheduled].first().key || sum != q.jobs || retrying != q.retrying {
			t.Errorf("queue %q: next %v, %d jobs, %d retrying; want %v, %d, %d", name,
				q.next, q.jobs, q.retrying, q.in[pawl.Scheduled].first().key, sum, retrying)
		}
		for key, held := range q.keys.m {
			r := s.records.at(held)
			if s.get(r.id) != r || r.extra.uniqueKey != key {
				t.Errorf("key %q is held by %+v, which is gone", key, r)
			}
		}
		jobs += sum
	}
	for i, want := range timers {
		if got := s.timers[i].size; got != want {
			t.Errorf("timer %d has %d records, want %d", i, got, want)
		}
	}
	for c, n := range open {
		if c.open != n || s.claims[c.token] == nil {
			t.Errorf("claim %+v has %d running jobs", c, n)
		}
	}
	if jobs != len(s.jobs.m) || len(s.sorted) != len(s.queues) || len(s.claims) > len(open) {
		t.Errorf("%d jobs, %d by ID; %d queues, %d sorted; %d claims, %d known",
			jobs, len(s.jobs.m), len(s.queues), len(s.sorted), len(open), len(s.claims))
	}
}

// TestRandom does a bit of everything and checks that all parts of the store
// agree, and that nothing is left of a store whose jobs are deleted.
func TestRandom(t *testing.T) {
	s, clock := newStore(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	ids := []pawl.ID{{}} // one that is not there
	for step := range 4000 {
		if step%50 == 0 {
			check(t, s)
		}
		switch rnd.IntN(7) {
		case 0, 1:
			r := randomRequest(rnd)
			ids = append(ids, r.ID)
			if _, err := s.Enqueue(ctx, []*pawl.Request{r, r}); err != nil && !errors.Is(err, pawl.ErrFull) {
				t.Fatal(err)
			}
		case 2, 3:
			sp := spec(1+rnd.IntN(5), "a", "b", "c")
			sp.Token, sp.Repeat = rnd.Int64N(3), rnd.IntN(5) == 0
			c, err := s.Claim(ctx, sp)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Settle(ctx, randomOutcomes(rnd, c.Jobs)); err != nil {
				t.Fatal(err)
			}
		case 4:
			verb := pawl.ChangeVerb(1 + rnd.IntN(int(pawl.Edit)))
			priority := rnd.IntN(3)
			change(t, s, pawl.Change{
				Verb: verb, IDs: []pawl.ID{ids[rnd.IntN(len(ids))]},
				Delay: time.Duration(rnd.IntN(5)) * time.Second,
				Edit:  pawl.EditFields{Priority: &priority},
			})
		case 5:
			sp := pawl.SweepSpec{Limit: 1 + rnd.IntN(5), BuriedRetention: time.Minute, MaxBuried: rnd.IntN(4),
				MaxCompleted: rnd.IntN(4), MaxCanceled: rnd.IntN(4)}
			sweep(t, s, sp)
			paused := rnd.IntN(4) == 0
			if err := s.Configure(ctx, "a", pawl.QueueSettings{Paused: &paused}); err != nil {
				t.Fatal(err)
			}
		case 6:
			clock.advance(time.Duration(rnd.Int64N(int64(5 * time.Second))))
		}
	}
	check(t, s)
	change(t, s, pawl.Change{Verb: pawl.Delete, IDs: ids})
	paused := false
	if err := s.Configure(ctx, "a", pawl.QueueSettings{Paused: &paused}); err != nil {
		t.Fatal(err)
	}
	check(t, s)
	if len(s.jobs.m)+len(s.queues)+len(s.claims)+s.scheduled.size > 0 {
		t.Errorf("left: %d jobs, %d queues, %d claims", len(s.jobs.m), len(s.queues), len(s.claims))
	}
}

func randomRequest(rnd *rand.Rand) *pawl.Request {
	return newRequest(func(r *pawl.Request) {
		r.Queue = string(rune('a' + rnd.IntN(3)))
		r.Priority = rnd.IntN(3) - 1
		r.MaxRescues = 1
		r.Retention = []time.Duration{pawl.DeleteNow, time.Second, time.Minute}[rnd.IntN(3)]
		if rnd.IntN(2) == 0 {
			r.Delay = time.Duration(rnd.IntN(20)) * time.Second
		}
		if rnd.IntN(4) == 0 {
			r.StartBefore = time.Date(2030, 1, 2, 3, rnd.IntN(200), 0, 0, time.UTC)
		}
		if rnd.IntN(2) == 0 {
			r.UniqueKey = string(rune('x' + rnd.IntN(3)))
			r.UniqueMode = pawl.UniqueMode(rnd.IntN(3))
			r.OnDuplicate = pawl.OnDuplicate(rnd.IntN(2))
			if r.UniqueMode == pawl.UniqueUntilWindow {
				r.UniqueWindow = 10 * time.Second
			}
		}
		if rnd.IntN(3) == 0 {
			r.MaxDepth, r.WhenFull = 1+rnd.IntN(5), pawl.WhenFull(1+rnd.IntN(2))
		}
	})
}

// randomOutcomes settles most of the jobs in some way or other.
func randomOutcomes(rnd *rand.Rand, jobs []*pawl.Job) []pawl.Outcome {
	var outcomes []pawl.Outcome
	for _, j := range jobs {
		if verb := pawl.Verb(rnd.IntN(int(pawl.Skip) + 1)); verb != 0 {
			delay := time.Duration(rnd.IntN(3)) * time.Second
			outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: verb, Delay: delay})
		}
	}
	return outcomes
}

// TestConcurrent runs all jobs once with enqueuers, claimers and sweepers at
// work together.
func TestConcurrent(t *testing.T) {
	s := New(nil)
	defer s.Close()
	const producers, batches, batch = 4, 50, 10
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		runs = make(map[pawl.ID]int)
	)
	for p := range producers {
		wg.Go(func() {
			for b := range batches {
				enqueueN(t, s, batch, func(i int, r *pawl.Request) {
					r.Retention = pawl.DeleteNow
					r.Payload = fmt.Append(nil, p, b, i)
				})
			}
		})
		wg.Go(func() {
			var outcomes []pawl.Outcome
			for {
				lost, c, err := s.Cycle(ctx, outcomes, spec(7))
				if err != nil || len(lost) > 0 {
					t.Error(lost, err)
					return
				}
				outcomes = nil
				mu.Lock()
				for _, j := range c.Jobs {
					runs[j.ID]++
					outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
				}
				done := len(runs) == producers*batches*batch
				mu.Unlock()
				if done && len(outcomes) == 0 {
					return
				}
			}
		})
		wg.Go(func() {
			for range batches {
				sweep(t, s, pawl.SweepSpec{Limit: 100})
				listAll(t, s, pawl.ListSpec{Limit: 10, Payloads: true})
			}
		})
	}
	wg.Wait()
	for id, n := range runs {
		if n != 1 {
			t.Errorf("job %v ran %d times", id, n)
		}
	}
	stats, err := s.Count(ctx)
	if diff := cmp.Diff([]pawl.QueueStats{}, stats); diff != "" || err != nil {
		t.Errorf("left (%v):\n%s", err, diff)
	}
}

func TestIndexGivesRoomBack(t *testing.T) {
	var x index[int]
	const n = 2 * minShrink
	for i := range n {
		x.put(i, slot(i+1))
	}
	for i := range n - 10 {
		x.remove(i)
	}
	if x.peak > minShrink {
		t.Errorf("has room for %d entries", x.peak)
	}
	for i := n - 10; i < n; i++ {
		if got := x.get(i); got != slot(i+1) {
			t.Errorf("entry %d is %v", i, got)
		}
	}
}
