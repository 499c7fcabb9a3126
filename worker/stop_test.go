package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// A soft stop leaves handlers alone, claims nothing and waits.
func TestSoftStop(t *testing.T) {
	for _, sort := range sorts {
		t.Run(sort.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, sort.make)
				ids := []pawl.ID{f.enqueue(&pawl.Request{}), f.enqueue(&pawl.Request{})}
				h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
					time.Sleep(15 * time.Second)
					return ctx.Err()
				})
				f.start(h, &worker.Options{Concurrency: 2})
				synctest.Wait()
				began := time.Now()
				stopped := make(chan error)
				go func() { stopped <- f.p.Stop(context.Background()) }()
				synctest.Wait()
				if h := f.p.Health(); !h.Live || h.Ready || h.Reason != "stopping" {
					t.Errorf("health %+v", h)
				}
				late := f.enqueue(&pawl.Request{})
				f.stop()
				if err := <-stopped; err != nil {
					t.Error(err)
				}
				if d := time.Since(began); d != 15*time.Second {
					t.Errorf("stopped after %v", d)
				}
				for _, id := range ids {
					f.wantState(id, pawl.Completed, "")
				}
				f.wantState(late, pawl.Ready, "")
			})
		})
	}
}

// After StopTimeout handlers' contexts end; those that heed it give their jobs
// back unspent, those that don't are listed.
func TestHardStop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		release := make(chan struct{})
		h := worker.Func(func(ctx context.Context, j *pawl.Job) error {
			<-ctx.Done()
			if cause := context.Cause(ctx); cause != worker.ErrStopping {
				t.Errorf("cause %v", cause)
			}
			switch string(j.Payload) {
			case "stubborn":
				<-release
			case "finishes":
				return nil
			case "fails":
				return errors.New("own error")
			}
			return ctx.Err()
		})
		stubborn := f.enqueue(&pawl.Request{Payload: []byte("stubborn"), Timeout: pawl.NoTimeout})
		heeds := f.enqueue(&pawl.Request{})
		finishes := f.enqueue(&pawl.Request{Payload: []byte("finishes")})
		fails := f.enqueue(&pawl.Request{Payload: []byte("fails")})
		f.start(h, &worker.Options{StopTimeout: 5 * time.Second})
		began := time.Now()
		if err := f.p.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d != 6*time.Second {
			t.Errorf("stopped after %v", d)
		}
		var left *worker.StopError
		if err := <-f.result; !errors.As(err, &left) {
			t.Fatalf("Run: %v", err)
		}
		if len(left.Running) != 1 || len(left.Unsettled) != 0 || left.Running[0].Ref.ID != stubborn || left.Running[0].Kind != "k" {
			t.Errorf("left %+v", left)
		}
		if text := left.Error(); !strings.Contains(text, "1 handlers running") || !strings.Contains(text, stubborn.String()) {
			t.Error(text)
		}
		if j := f.wantState(heeds, pawl.Ready, pawl.ReasonRelease); j.Attempt != 0 || j.Counts.Releases != 1 {
			t.Errorf("attempt %d, counts %+v", j.Attempt, j.Counts)
		}
		f.wantState(finishes, pawl.Completed, "")
		f.wantState(fails, pawl.Scheduled, pawl.ReasonRetry)
		f.wantState(stubborn, pawl.Running, "")
		rest(time.Hour)
		if j := f.wantState(stubborn, pawl.Running, ""); time.Until(j.LeaseUntil) > 0 {
			t.Error("the lease of a leftover is extended")
		}
		close(release)
	})
}

func TestStopWithoutStorage(t *testing.T) {
	for _, sort := range sorts {
		t.Run(sort.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var c counting
				f := prepare(t, sort.make)
				ids := make([]pawl.ID, 12)
				for i := range ids {
					ids[i] = f.enqueue(&pawl.Request{})
				}
				f.storage.fail(false, "settle", "cycle")
				f.start(&c, &worker.Options{Concurrency: len(ids)})
				rest(time.Minute)
				began := time.Now()
				f.p.Stop(context.Background())
				var left *worker.StopError
				if err := <-f.result; !errors.As(err, &left) || len(left.Unsettled) != len(ids) || len(left.Running) != 0 {
					t.Errorf("Run: %v", err)
				} else if !strings.HasSuffix(err.Error(), "...") {
					t.Error(err)
				}
				if d := time.Since(began); d > 22*time.Second {
					t.Errorf("stopped after %v", d)
				}
				c.want(t, len(ids))
			})
		})
	}
}

func TestStopWhileClaimsHang(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
			if op == "claim" {
				<-ctx.Done()
				return ctx.Err()
			}
			return call()
		})
		f.start(returning(nil), nil)
		began := time.Now()
		f.stop()
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("stopped after %v", d)
		}
	})
}

func TestStopByHandler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		id := f.enqueue(&pawl.Request{})
		h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			return f.p.Stop(ctx)
		})
		f.p = worker.New(f.q, h, nil)
		began := time.Now()
		if err := f.p.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("stopped after %v", d)
		}
		f.wantState(id, pawl.Completed, "")
	})
}

// A handler that stops the pool by another context waits for itself, but not
// for ever.
func TestStopByHandlerWithForeignContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		f.enqueue(&pawl.Request{})
		f.p = worker.New(f.q, worker.Func(func(context.Context, *pawl.Job) error { return f.p.Stop(context.Background()) }), nil)
		began := time.Now()
		var left *worker.StopError
		if err := f.p.Run(t.Context()); !errors.As(err, &left) {
			t.Errorf("Run: %v", err)
		}
		if d := time.Since(began); d != 21*time.Second {
			t.Errorf("stopped after %v", d)
		}
	})
}

func TestStopKeepsItsDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		f.enqueue(&pawl.Request{})
		f.start(worker.Func(func(context.Context, *pawl.Job) error { time.Sleep(10 * time.Second); return nil }), nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := f.p.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Stop: %v", err)
		}
		f.stop()
		f.p.Stop(context.Background()) // again, after the end
	})
}

func TestStopBeforeRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		id := f.enqueue(&pawl.Request{})
		p := worker.New(f.q, returning(nil), nil)
		if h := p.Health(); h.Ready || h.Reason != "not running" {
			t.Errorf("health %+v", h)
		}
		for range 2 {
			if err := p.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if err := p.Run(t.Context()); err != nil {
			t.Errorf("Run: %v", err)
		}
		f.wantState(id, pawl.Ready, "")
	})
}

// Prefetched jobs go back when the pool stops.
func TestStopHandsBackPrefetched(t *testing.T) {
	for _, sort := range sorts {
		t.Run(sort.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, sort.make)
				ids := make([]pawl.ID, 10)
				for i := range ids {
					ids[i] = f.enqueue(&pawl.Request{})
				}
				h := worker.Func(func(context.Context, *pawl.Job) error { time.Sleep(10 * time.Second); return nil })
				f.start(h, &worker.Options{Concurrency: 1, Prefetch: 5})
				if s := f.p.Stats(); s.Running != 1 || s.Prefetched != 5 {
					t.Errorf("stats %+v", s)
				}
				f.stop()
				f.wantState(ids[0], pawl.Completed, "")
				for i, id := range ids[1:] {
					if i < 5 {
						f.wantState(id, pawl.Ready, pawl.ReasonRelease)
					} else {
						f.wantState(id, pawl.Ready, "")
					}
				}
				if s := f.p.Stats(); s.Released != 5 || s.Prefetched != 0 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

// Prefetched jobs of a paused queue go back: at once where events tell, within
// a heartbeat where not.
func TestPauseHandsBackPrefetched(t *testing.T) {
	for _, sort := range sorts {
		t.Run(sort.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, sort.make)
				for range 6 {
					f.enqueue(&pawl.Request{})
				}
				h := worker.Func(func(context.Context, *pawl.Job) error { time.Sleep(25 * time.Second); return nil })
				f.start(h, &worker.Options{Concurrency: 1, Prefetch: 5})
				if s := f.p.Stats(); s.Prefetched != 5 {
					t.Errorf("stats %+v", s)
				}
				if err := f.q.Pause(context.Background(), pawl.DefaultQueue); err != nil {
					t.Fatal(err)
				}
				if sort.name == "bare" {
					rest(10 * time.Second)
				}
				synctest.Wait()
				if s := f.p.Stats(); s.Prefetched != 0 || s.Released != 5 || s.Running != 1 {
					t.Errorf("stats %+v", s)
				}
				rest(10 * time.Minute)
				if s := f.p.Stats(); s.Started != 1 {
					t.Errorf("stats %+v", s)
				}
				if err := f.q.Resume(context.Background(), pawl.DefaultQueue); err != nil {
					t.Fatal(err)
				}
				rest(5 * time.Minute)
				f.stop()
				if s := f.p.Stats(); s.Completed != 6 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

// Stop of a pool that has ended succeeds, also when ctx has ended.
func TestStopAfterTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := start(t, cycling, returning(nil), nil)
		f.stop()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 { // what is chosen is left to chance
			if err := f.p.Stop(ctx); err != nil {
				t.Fatal(err)
			}
		}
	})
}
