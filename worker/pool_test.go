package worker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

func TestManyJobsOnce(t *testing.T) {
	for _, sort := range sorts {
		for _, settleNow := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/now=%v", sort.name, settleNow), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					const n = 2000
					runs := make(chan pawl.ID, 2*n)
					f := prepare(t, sort.make)
					for range n {
						f.enqueue(&pawl.Request{})
					}
					f.start(worker.Func(func(_ context.Context, j *pawl.Job) error { runs <- j.ID; return nil }),
						&worker.Options{SettleNow: settleNow})
					rest(time.Minute)
					f.stop()
					seen := make(map[pawl.ID]bool)
					for len(runs) > 0 {
						seen[<-runs] = true
					}
					s := f.p.Stats()
					want := worker.Stats{Claimed: n, Started: n, Completed: n, Settled: n}
					got := worker.Stats{Claimed: s.Claimed, Started: s.Started, Completed: s.Completed, Settled: s.Settled}
					if diff := cmp.Diff(want, got); diff != "" || len(seen) != n {
						t.Errorf("%d jobs seen; stats (-want +got):\n%s", len(seen), diff)
					}
					if settleNow != (s.SettleBatch() == 1) {
						t.Errorf("%v outcomes a settle", s.SettleBatch())
					}
					if s.ClaimBatch() < 2 {
						t.Errorf("%v jobs a claim", s.ClaimBatch())
					}
				})
			})
		}
	}
}

func TestUnknownKindIsHandedBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		run := func(context.Context, *pawl.Job) ([]byte, error) { return nil, nil }
		f := start(t, cycling, kinds{{Name: "known", Run: run}}, nil)
		id := f.enqueue(&pawl.Request{Kind: "foreign"})
		known := f.enqueue(&pawl.Request{Kind: "known"})
		rest(10 * time.Minute)
		f.wantState(known, pawl.Completed, "")
		j := f.wantState(id, pawl.Scheduled, pawl.ReasonSkip)
		if j.Attempt != 0 || j.Counts.Skips < 10 || j.Counts.Skips > 25 {
			t.Errorf("attempt %d, %d skips in ten minutes", j.Attempt, j.Counts.Skips)
		}
		if n := f.log.count("no handler"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		f.stop()
		if s := f.p.Stats(); s.Skipped != int64(j.Counts.Skips) || s.Started != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestQueuesHaveTheirOwnSlots(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var now, most [2]int
		h := worker.Func(func(_ context.Context, j *pawl.Job) error {
			i := 0
			if j.Queue == "b" {
				i = 1
			}
			mu.Lock()
			now[i]++
			most[i] = max(most[i], now[i])
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			now[i]--
			mu.Unlock()
			return nil
		})
		f := prepare(t, cycling)
		for range 20 {
			f.enqueue(&pawl.Request{Queue: "a"})
			f.enqueue(&pawl.Request{Queue: "b"})
		}
		f.start(h, &worker.Options{Queues: []worker.Queue{{Name: "a", Concurrency: 2}, {Name: "b"}}, Concurrency: 5})
		rest(time.Minute)
		if s := f.p.Stats(); s.Completed != 40 || s.Slots != 7 {
			t.Errorf("stats %+v", s)
		}
		f.stop()
		if most != [2]int{2, 5} {
			t.Errorf("ran %v at the same time, want 2 and 5", most)
		}
	})
}

func TestStrictOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		order := make(chan string, 30)
		f := prepare(t, cycling)
		for range 10 {
			for _, queue := range []string{"low", "mid", "high"} {
				f.enqueue(&pawl.Request{Queue: queue})
			}
		}
		h := worker.Func(func(_ context.Context, j *pawl.Job) error {
			order <- j.Queue
			time.Sleep(time.Second)
			return nil
		})
		f.start(h, &worker.Options{
			Queues: []worker.Queue{{Name: "high"}, {Name: "mid"}, {Name: "low"}}, Strict: true, Concurrency: 2,
		})
		rest(time.Minute)
		f.stop()
		var got []string
		for len(order) > 0 {
			got = append(got, <-order)
		}
		want := strings.Fields(strings.Repeat("high ", 10) + strings.Repeat("mid ", 10) + strings.Repeat("low ", 10))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

func TestRunTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := start(t, bare, returning(nil), nil)
		if err := f.p.Run(t.Context()); err == nil {
			t.Error("second Run returned nil")
		}
		f.stop()
		synctest.Wait()
	})
}
