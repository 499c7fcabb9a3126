package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// Jobs that the pool has prefetched by its own judgement, which was wrong, go
// back to those who may have a free slot.
func TestWrongPrefetchIsHandedBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		h := worker.Func(func(ctx context.Context, j *pawl.Job) error {
			if string(j.Payload) == "slow" {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		for range 100 {
			f.enqueue(&pawl.Request{})
		}
		f.start(h, &worker.Options{Concurrency: 2})
		rest(time.Second)
		for range 100 {
			f.enqueue(&pawl.Request{Payload: []byte("slow"), Priority: 1})
		}
		synctest.Wait()
		before := f.p.Stats()
		if before.Prefetched == 0 {
			t.Errorf("stats %+v", before)
		}
		rest(1100 * time.Millisecond)
		if s := f.p.Stats(); s.Running != 2 || s.Released != int64(before.Prefetched) {
			t.Errorf("stats %+v", s)
		}
		f.stop()
	})
}

// However fast the jobs were until now: while all slots are busy with slow ones,
// nothing is claimed only to be handed back, again and again.
func TestNoPrefetchBehindSlowJobs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		h := worker.Func(func(ctx context.Context, j *pawl.Job) error {
			if string(j.Payload) == "slow" {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		for range 100 {
			f.enqueue(&pawl.Request{Retention: pawl.DeleteNow})
		}
		f.start(h, &worker.Options{Concurrency: 2})
		rest(time.Second)
		for range 2 {
			f.enqueue(&pawl.Request{Payload: []byte("slow")})
		}
		rest(100 * time.Millisecond)
		for range 100 {
			for range 3 {
				f.enqueue(&pawl.Request{})
			}
			rest(100 * time.Millisecond)
		}
		if s := f.p.Stats(); s.Running != 2 || s.Prefetched != 0 || s.Released != 0 || s.Claimed != 102 {
			t.Errorf("stats %+v", s)
		}
		f.stop()
	})
}

// Fast jobs are prefetched, slow and big ones are not.
func TestAdaptivePrefetch(t *testing.T) {
	cases := []struct {
		name     string
		duration time.Duration
		size     int
		min, max int
	}{
		{"1 µs", time.Microsecond, 10, 400, 500},
		{"1 ms", time.Millisecond, 10, 400, 500},
		{"5 ms", 5 * time.Millisecond, 10, 80, 100},
		{"10 ms", 10 * time.Millisecond, 10, 5, 10},
		{"40 ms", 40 * time.Millisecond, 10, 3, 10},
		{"60 ms", 60 * time.Millisecond, 10, 0, 0},
		{"big", time.Microsecond, 1 << 20, 10, 16},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, cycling)
				payload := make([]byte, c.size)
				for range min(1200, 100<<20/c.size) {
					f.enqueue(&pawl.Request{Payload: payload, Retention: pawl.DeleteNow})
				}
				most := make(chan int, 10_000)
				h := worker.Func(func(context.Context, *pawl.Job) error {
					time.Sleep(c.duration)
					s := f.p.Stats()
					most <- s.Running + s.Prefetched - s.Slots
					return nil
				})
				f.start(h, nil)
				rest(20 * time.Second)
				f.stop()
				n := 0
				for len(most) > 0 {
					n = max(n, <-most)
				}
				if n < c.min || n > c.max {
					t.Errorf("prefetched %d, want %d to %d", n, c.min, c.max)
				}
			})
		})
	}
}

// However many are asked for, big jobs are not prefetched without bound.
func TestFixedPrefetchOfBigJobs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		most := 0
		h := worker.Func(func(context.Context, *pawl.Job) error {
			most = max(most, f.p.Stats().Prefetched)
			return nil
		})
		f.start(h, &worker.Options{Concurrency: 1, Prefetch: 100})
		for _, n := range []int{1, 60} {
			reqs := make([]*pawl.Request, n)
			for i := range reqs {
				reqs[i] = &pawl.Request{Kind: "k", Payload: make([]byte, 1<<20)}
			}
			if _, err := f.q.EnqueueMany(t.Context(), reqs); err != nil {
				t.Fatal(err)
			}
			rest(time.Second)
		}
		f.stop()
		if s := f.p.Stats(); most < 10 || most > 16 || s.Completed != 61 {
			t.Errorf("prefetched %d; stats %+v", most, s)
		}
	})
}

func TestNoPrefetch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		for range 100 {
			f.enqueue(&pawl.Request{})
		}
		h := worker.Func(func(context.Context, *pawl.Job) error {
			if n := f.p.Stats().Prefetched; n > 3 {
				t.Errorf("%d jobs prefetched", n)
			}
			time.Sleep(time.Millisecond)
			return nil
		})
		f.p = worker.New(f.q, h, &worker.Options{Concurrency: 4, Prefetch: worker.NoPrefetch})
		go func() { f.result <- f.p.Run(t.Context()) }()
		rest(5 * time.Second)
		f.stop()
	})
}

// A prefetched job that is canceled while it waits does not start.
func TestCancelOfPrefetched(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, watched)
		ran := make(chan string, 10)
		h := worker.Func(func(_ context.Context, j *pawl.Job) error {
			ran <- string(j.Payload)
			time.Sleep(time.Second)
			return nil
		})
		f.enqueue(&pawl.Request{Payload: []byte("first")})
		id := f.enqueue(&pawl.Request{Payload: []byte("canceled")})
		f.enqueue(&pawl.Request{Payload: []byte("last")})
		f.start(h, &worker.Options{Concurrency: 1, Prefetch: 5})
		if err := f.q.Cancel(context.Background(), "", id); err != nil {
			t.Fatal(err)
		}
		rest(10 * time.Second)
		f.stop()
		if a, b := <-ran, <-ran; a != "first" || b != "last" || len(ran) > 0 {
			t.Errorf("ran %s, %s", a, b)
		}
		if s := f.p.Stats(); s.Lost != 1 || s.Completed != 2 {
			t.Errorf("stats %+v", s)
		}
	})
}

// A job that would be buried by its next rescue is claimed only to start: beside
// others that wait it could die of what they do.
func TestLastRescueIsNotPrefetched(t *testing.T) {
	for name, sort := range map[string]func(*disturbed) pawl.Storage{"claims": bare, "cycles": cycling} {
		for prefetch, o := range map[string]worker.Options{"fixed": {Concurrency: 2, Prefetch: 50}, "adaptive": {Concurrency: 2}} {
			t.Run(name+"/"+prefetch, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := prepare(t, sort)
					id := f.rescued(&pawl.Request{MaxRescues: 1})
					wait := make(chan struct{}, 100)
					h := worker.Func(func(ctx context.Context, j *pawl.Job) error {
						if string(j.Payload) == "waits" {
							<-wait
						}
						return nil
					})
					for range 100 {
						f.enqueue(&pawl.Request{Priority: -2}) // the pool learns that jobs are fast
					}
					for range 2 {
						f.enqueue(&pawl.Request{Priority: -1, Payload: []byte("waits")})
					}
					f.start(h, &o)
					rest(time.Minute)
					if s := f.p.Stats(); s.Running != 2 {
						t.Errorf("stats %+v", s)
					}
					if j := f.wantState(id, pawl.Ready, pawl.ReasonRelease); j.Counts.Releases != 1 {
						t.Errorf("counts %+v", j.Counts)
					}
					wait <- struct{}{}
					rest(time.Millisecond)
					f.wantState(id, pawl.Completed, "")
					wait <- struct{}{}
					f.stop()
				})
			})
		}
	}
}

// Nor does it wait for long while all slots are always busy: it is handed back once,
// and then comes first.
func TestLastRescueInSteadyWork(t *testing.T) {
	cases := []struct {
		name string
		opts worker.Options
		runs time.Duration
	}{
		{"adaptive", worker.Options{Concurrency: 2}, time.Millisecond},
		{"fixed", worker.Options{Concurrency: 2, Prefetch: 50}, 50 * time.Millisecond},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, bare)
				id := f.rescued(&pawl.Request{MaxRescues: 1, Priority: -1})
				for range 80 {
					f.enqueue(&pawl.Request{Priority: -2})
				}
				f.enqueueMany(pawl.DefaultQueue, 20_000)
				h := worker.Func(func(context.Context, *pawl.Job) error {
					time.Sleep(c.runs)
					return nil
				})
				f.start(h, &c.opts)
				rest(5 * time.Second)
				if j := f.wantState(id, pawl.Completed, ""); j.Counts.Releases != 1 {
					t.Errorf("counts %+v", j.Counts)
				}
				f.stop()
			})
		})
	}
}

// rescued enqueues a job that was taken back from a worker.
func (f *fixture) rescued(r *pawl.Request) pawl.ID {
	f.t.Helper()
	id := f.enqueue(r)
	spec := pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: pawl.DefaultQueue, Max: 1}}, Max: 1, Lease: time.Second, Worker: "dead"}
	if c, err := f.q.ClaimBatch(f.t.Context(), spec); err != nil || len(c.Jobs) != 1 {
		f.t.Fatalf("claimed %v, error %v", c.Jobs, err)
	}
	rest(time.Minute)
	if _, err := f.q.Sweep(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	f.wantState(id, pawl.Ready, pawl.ReasonRescue)
	return id
}
