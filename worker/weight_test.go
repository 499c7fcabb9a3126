package worker_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// starts notes in which order the jobs of queues start.
type starts struct {
	mu     sync.Mutex
	queues []string
	takes  time.Duration // a run
}

func (s *starts) Kinds() []pawl.Kind {
	return worker.Func(func(_ context.Context, j *pawl.Job) error {
		s.mu.Lock()
		s.queues = append(s.queues, j.Queue)
		s.mu.Unlock()
		time.Sleep(s.takes)
		return nil
	}).Kinds()
}

func (s *starts) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queues)
}

// share returns which part of the starts from, up to to, was of the queue.
func (s *starts) share(queue string, from, to int) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, q := range s.queues[from:to] {
		if q == queue {
			n++
		}
	}
	return float64(n) / float64(to-from)
}

// wantShares checks that each window of the starts has the shares, within tolerance.
func (s *starts) wantShares(t *testing.T, from, to, window int, tolerance float64, want map[string]float64) {
	t.Helper()
	for ; from+window <= to; from += window {
		for queue, share := range want {
			if got := s.share(queue, from, from+window); math.Abs(got-share) > tolerance {
				t.Errorf("of starts %d to %d, %.3f were of %s, want %.2f", from, from+window, got, queue, share)
			}
		}
	}
}

func (f *fixture) enqueueMany(queue string, n int) {
	f.t.Helper()
	for n > 0 {
		reqs := make([]*pawl.Request, min(n, pawl.MaxBatch))
		for i := range reqs {
			reqs[i] = &pawl.Request{Queue: queue, Kind: "k", Retention: pawl.DeleteNow}
		}
		if _, err := f.q.EnqueueMany(context.Background(), reqs); err != nil {
			f.t.Fatal(err)
		}
		n -= len(reqs)
	}
}

func weighted(weights map[string]int) (queues []worker.Queue) {
	for _, name := range []string{"a", "b", "c", "d"} {
		if weights[name] > 0 {
			queues = append(queues, worker.Queue{Name: name, Weight: weights[name]})
		}
	}
	return queues
}

var sixThreeOne = map[string]int{"a": 6, "b": 3, "c": 1}

// While all queues have jobs, those started are shared by weight, also over
// short times, whether a claim brings many or few; when one has no more, the
// others have its slots.
func TestWeightsShareTheStartedJobs(t *testing.T) {
	for _, takes := range []time.Duration{time.Microsecond, 4 * time.Millisecond, 60 * time.Millisecond} {
		t.Run(takes.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, cycling)
				const each = 20_000
				for queue := range sixThreeOne {
					f.enqueueMany(queue, each)
				}
				h := &starts{takes: takes}
				f.start(h, &worker.Options{Queues: weighted(sixThreeOne), Concurrency: 20})
				rest(3 * each * takes / 20)
				f.stop()
				if n := h.len(); n != 3*each {
					t.Fatalf("%d jobs started: a slot was free while there were jobs", n)
				}
				h.wantShares(t, 0, 33_000, 33_000, 0.02, map[string]float64{"a": .6, "b": .3, "c": .1})
				h.wantShares(t, 0, 33_000, 1000, 0.02, map[string]float64{"a": .6, "b": .3, "c": .1})
				h.wantShares(t, 0, 33_000, 100, 0.08, map[string]float64{"a": .6, "b": .3, "c": .1})
				h.wantShares(t, 35_000, 46_000, 1000, 0.02, map[string]float64{"a": 0, "b": .75, "c": .25})
				h.wantShares(t, 48_000, 60_000, 1000, 0, map[string]float64{"c": 1})
			})
		})
	}
}

// A queue that had no jobs for a while has its share when it has some again, at
// once and no more.
func TestWeightIsNotSavedUp(t *testing.T) {
	for _, sort := range sorts {
		t.Run(sort.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, sort.make)
				f.enqueueMany("b", 3000)
				f.enqueueMany("c", 1000)
				h := &starts{takes: 100 * time.Millisecond}
				f.start(h, &worker.Options{Queues: weighted(sixThreeOne), Concurrency: 10})
				rest(10*time.Second - time.Millisecond)
				began := h.len()
				f.enqueueMany("a", 1200)
				rest(30 * time.Second)
				f.stop()
				const tolerance = .07 // one job of c has the time of six of a
				h.wantShares(t, 0, began, 100, tolerance, map[string]float64{"b": .75, "c": .25})
				h.wantShares(t, began, began+2000, 100, tolerance, map[string]float64{"a": .6, "b": .3, "c": .1})
				h.wantShares(t, began+2100, began+2900, 100, tolerance, map[string]float64{"b": .75, "c": .25})
			})
		})
	}
}

// A trickle of jobs of a light queue neither waits for its share to come around
// nor gets more than that.
func TestTrickleInALightQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, bare)
		f.enqueueMany("a", 10_000)
		late := make(chan time.Duration, 100)
		h := worker.Func(func(_ context.Context, j *pawl.Job) error {
			if j.Queue == "b" {
				late <- time.Since(j.CreatedAt)
			}
			time.Sleep(10 * time.Millisecond)
			return nil
		})
		f.start(h, &worker.Options{Queues: weighted(map[string]int{"a": 20, "b": 1}), Concurrency: 10, Poll: time.Hour})
		for range 50 {
			f.enqueue(&pawl.Request{Queue: "b"})
			rest(100 * time.Millisecond) // in which 100 others start
		}
		f.stop()
		if len(late) != 50 {
			t.Errorf("%d of 50 jobs ran", len(late))
		}
		for len(late) > 0 {
			if d := <-late; d > 30*time.Millisecond {
				t.Errorf("a job waited %v", d)
			}
		}
	})
}

// What some queues lack, others give in the same claim, those drawn for it and
// those that were not, when there are more queues than slots.
func TestOneClaimFillsTheSlots(t *testing.T) {
	for name, c := range map[string]struct {
		slots int
		full  string
	}{"drawn": {9, "a"}, "not drawn": {2, "c"}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, bare)
				f.enqueueMany(c.full, 100)
				f.start(&starts{takes: time.Second}, &worker.Options{
					Queues: weighted(map[string]int{"a": 2, "b": 1, "c": 1}), Concurrency: c.slots,
				})
				if s := f.p.Stats(); s.Running != c.slots || s.Claims != 1 {
					t.Errorf("stats %+v", s)
				}
				rest(2 * time.Minute)
				f.stop()
			})
		})
	}
}

// Jobs that come to one queue of an idle pool take one claim.
func TestWeightsOfAnIdlePool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := start(t, watched, &starts{takes: time.Second}, &worker.Options{Queues: weighted(sixThreeOne), Concurrency: 10})
		rest(time.Minute)
		for range 3 {
			before := f.p.Stats().Claims
			f.enqueueMany("c", 10)
			synctest.Wait()
			if s := f.p.Stats(); s.Running != 10 || s.Claims != before+1 {
				t.Errorf("%d claims, stats %+v", s.Claims-before, s)
			}
			rest(time.Minute)
		}
		f.stop()
	})
}

// Queues with a weight share slots, others have their own.
func TestWeightsBesideOwnSlots(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		queues := append(weighted(sixThreeOne), worker.Queue{Name: "own", Concurrency: 3})
		for _, q := range queues {
			f.enqueueMany(q.Name, 100)
		}
		h := &starts{takes: time.Second}
		f.start(h, &worker.Options{Queues: queues, Concurrency: 10})
		if s := f.p.Stats(); s.Slots != 13 || s.Running != 13 {
			t.Errorf("stats %+v", s)
		}
		if got, want := h.share("own", 0, 13), 3./13; got != want {
			t.Errorf("%v of the starts had slots of their own, want %v", got, want)
		}
		rest(100 * time.Second)
		f.stop()
		if s := f.p.Stats(); s.Completed != 400 {
			t.Errorf("stats %+v", s)
		}
	})
}

// Shares are of jobs that start: those of kinds that the pool does not run take
// nothing from their queue's.
func TestForeignKindsTakeNoShare(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		f.enqueueMany("b", 8000)
		for i := range 8000 {
			f.enqueue(&pawl.Request{Queue: "a", Kind: []string{"k", "foreign"}[i%2]})
		}
		h := &starts{takes: 10 * time.Millisecond}
		run := h.Kinds()
		run[0].Name = "k"
		f.start(kinds(run), &worker.Options{Queues: weighted(map[string]int{"a": 1, "b": 1}), Concurrency: 10})
		rest(4 * time.Second)
		h.wantShares(t, 0, 3000, 1000, 0.02, map[string]float64{"a": .5, "b": .5})
		f.stop()
	})
}

// Nor do jobs that were claimed and then canceled before they started.
func TestCanceledJobsTakeNoShare(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, watched)
		f.enqueueMany("a", 1000)
		f.enqueueMany("b", 1000)
		h := &starts{takes: 100 * time.Millisecond}
		f.start(h, &worker.Options{Queues: weighted(map[string]int{"a": 1, "b": 1}), Concurrency: 10, Prefetch: 200})
		claimed := pawl.Filter{Queue: "a", States: []pawl.State{pawl.Running}}
		if n, err := f.q.CancelAll(t.Context(), claimed, 1000); err != nil || n < 90 {
			t.Fatalf("canceled %d, error %v", n, err)
		}
		rest(4 * time.Second)
		h.wantShares(t, 0, 400, 400, 0.02, map[string]float64{"a": .5, "b": .5})
		f.stop()
	})
}

// Shares on a storage that takes its time, in real time.
func TestWeightsOnSQLite(t *testing.T) {
	const each = 4000
	f := &fixture{t: t, q: pawl.New(openSQLite(t), nil)}
	for queue := range sixThreeOne {
		f.enqueueMany(queue, each)
	}
	h := &starts{}
	var ran atomic.Int64
	all := make(chan struct{})
	k := h.Kinds()
	note := k[0].Run
	k[0].Run = func(ctx context.Context, j *pawl.Job) ([]byte, error) {
		defer func() {
			if ran.Add(1) == 3*each {
				close(all)
			}
		}()
		return note(ctx, j)
	}
	run(t, worker.New(f.q, kinds(k), &worker.Options{Queues: weighted(sixThreeOne), Concurrency: 10}), func() { <-all })
	const loaded = each * 10 / 6 * 95 / 100 // starts while a has jobs
	h.wantShares(t, 0, loaded, loaded, 0.02, map[string]float64{"a": .6, "b": .3, "c": .1})
	h.wantShares(t, 0, loaded, 1000, 0.02, map[string]float64{"a": .6, "b": .3, "c": .1})
}

// Shares hold when claims fail, before their effect and after it.
func TestWeightsWhileClaimsFail(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("after=%v", after), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, bare)
				for queue := range sixThreeOne {
					f.enqueueMany(queue, 4000)
				}
				n := 0 // calls come one after the other
				f.storage.disturb(func(_ context.Context, op string, call func() error) error {
					if op != "claim" {
						return call()
					}
					if n++; n%3 != 0 {
						return call()
					}
					if after {
						_ = call()
					}
					return errStorage
				})
				h := &starts{takes: 5 * time.Millisecond}
				f.start(h, &worker.Options{Queues: weighted(sixThreeOne), Concurrency: 10})
				rest(2 * time.Minute)
				f.stop()
				h.wantShares(t, 0, 6000, 1000, 0.02, map[string]float64{"a": .6, "b": .3, "c": .1})
				if s := f.p.Stats(); s.Completed != 12_000 || s.Lost != 0 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}
