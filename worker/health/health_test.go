package health_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/worker"
	"github.com/pawlq/pawl/worker/health"
)

// A storage whose claims fail, or of which one sort of call hangs whatever its
// context says.
type ill struct {
	pawl.Storage
	fails atomic.Bool
	hangs atomic.Value // a string
	since atomic.Value // when the first of those calls came
}

func (s *ill) hang(what string) {
	if s.hangs.Load() == what {
		s.since.CompareAndSwap(nil, time.Now())
	}
	for s.hangs.Load() == what {
		time.Sleep(time.Second / 10) // of the bubble's time
	}
}

func (s *ill) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	s.hang("claim")
	if s.fails.Load() {
		return pawl.Claimed{}, errors.New("out of order")
	}
	return s.Storage.Claim(ctx, spec)
}

func (s *ill) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	s.hang("settle")
	return s.Storage.Settle(ctx, outcomes)
}

func (s *ill) Extend(ctx context.Context, renewals []pawl.Renewal) ([]pawl.Ref, error) {
	s.hang("extend")
	return s.Storage.Extend(ctx, renewals)
}

func (s *ill) Sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	s.hang("sweep")
	return s.Storage.Sweep(ctx, spec)
}

func (s *ill) Count(ctx context.Context, queues ...string) ([]pawl.QueueStats, error) {
	s.hang("count")
	return s.Storage.Count(ctx, queues...)
}

func (s *ill) Watch(ctx context.Context, f func(pawl.Event)) error {
	return s.Storage.(pawl.Watcher).Watch(ctx, f)
}

// A fixture is a pool of two slots and its handler of health.
type fixture struct {
	t       *testing.T
	storage *ill
	q       *pawl.Queue
	p       *worker.Pool
	h       http.Handler
	ended   chan error
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, storage: &ill{Storage: memory.New(nil)}, ended: make(chan error, 1)}
	f.q = pawl.New(f.storage, &pawl.Options{Logger: slog.New(slog.DiscardHandler)})
	long := worker.Func(func(ctx context.Context, j *pawl.Job) error {
		if j.Kind == "short" {
			return nil
		}
		select {
		case <-time.After(10 * time.Minute):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	f.p = worker.New(f.q, long, &worker.Options{Concurrency: 2, Poll: time.Hour, CountEvery: time.Minute})
	f.h = health.Handler(f.p)
	return f
}

func (f *fixture) run() {
	go func() { f.ended <- f.p.Run(context.Background()) }()
	synctest.Wait()
}

func (f *fixture) stop() {
	f.t.Helper()
	if err := errors.Join(f.p.Stop(context.Background()), <-f.ended); err != nil {
		f.t.Error(err)
	}
}

// want checks both answers; an empty one is "ok".
func (f *fixture) want(live, ready string) {
	f.t.Helper()
	for path, want := range map[string]string{"/live": live, "/ready": ready} {
		w := httptest.NewRecorder()
		f.h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		code := http.StatusOK
		if want != "" {
			code = http.StatusServiceUnavailable
		} else {
			want = "ok"
		}
		if got := strings.TrimSpace(w.Body.String()); w.Code != code || got != want {
			f.t.Errorf("%s: %d %q, want %d %q", path, w.Code, got, code, want)
		}
	}
}

func (f *fixture) enqueue(kind string) {
	f.t.Helper()
	if _, err := f.q.Enqueue(context.Background(), &pawl.Request{Kind: kind}); err != nil {
		f.t.Fatal(err)
	}
}

func rest(d time.Duration) {
	time.Sleep(d) // of the bubble's time
	synctest.Wait()
}

// bubble runs f in a bubble of its own time and checks that it leaves nothing.
func bubble(t *testing.T, f func(*fixture)) {
	t.Helper()
	defer goleak.VerifyNone(t)
	synctest.Test(t, func(t *testing.T) { f(newFixture(t)) })
}

// A pool is live while it does nothing for long, and while it does the same for
// long, and ready from start to stop.
func TestIdleAndBusy(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.want("", "not running")
		f.run()
		f.want("", "")
		rest(2 * time.Hour)
		f.want("", "") // idle
		for range 10 {
			f.enqueue("long")
		}
		rest(9 * time.Minute)
		if s := f.p.Stats(); s.Running != 2 || s.Completed != 0 {
			f.t.Errorf("stats %+v", s)
		}
		f.want("", "") // busy
		f.stop()
		f.want("", "stopping")
	})
}

// A storage that fails makes a pool unready; to start anew would not help.
func TestFailingStorage(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.storage.fails.Store(true)
		f.run()
		rest(5 * time.Second)
		f.want("", "storage has not answered yet")
		rest(10 * time.Minute)
		f.want("", "storage has not answered yet; storage fails to claim for 10m5s")
		f.storage.fails.Store(false)
		rest(10 * time.Second)
		f.want("", "")
		f.storage.fails.Store(true)
		f.enqueue("short")
		rest(5 * time.Second)
		f.want("", "")
		rest(5 * time.Second)
		f.want("", "storage fails to claim for 10s")
		f.storage.fails.Store(false)
		rest(10 * time.Second)
		f.want("", "")
		f.stop()
	})
}

// A call that never returns makes a pool unready, and dead in the end, unless
// it goes on as well without.
func TestHangingStorage(t *testing.T) {
	for _, what := range []string{"claim", "settle", "extend", "sweep"} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(f *fixture) {
				f.run()
				f.enqueue("long")
				rest(time.Second)
				f.storage.hangs.Store(what)
				f.enqueue("short")
				var unready, dead time.Duration // after the call
				var last string
				for range 100 {
					rest(time.Second)
					h := f.p.Health()
					since, called := f.storage.since.Load().(time.Time)
					if !called {
						continue
					}
					if !h.Ready && unready == 0 {
						unready = time.Since(since)
					}
					if !h.Live && dead == 0 {
						dead = time.Since(since)
					}
					last = h.Reason
				}
				if unready.Truncate(time.Second) != 20*time.Second || dead.Truncate(time.Second) != time.Minute {
					f.t.Errorf("unready after %v, dead after %v", unready, dead)
				}
				if !strings.Contains(last, "a call to "+what+" does not return for 1m") {
					f.t.Errorf("reason %q", last)
				}
				f.storage.hangs.Store("nothing")
				rest(time.Minute)
				f.want("", "")
				f.stop()
			})
		})
	}
	t.Run("count", func(t *testing.T) {
		bubble(t, func(f *fixture) {
			f.storage.hangs.Store("count")
			f.run()
			rest(time.Hour)
			f.want("", "")
			f.storage.hangs.Store("nothing")
			f.stop()
		})
	})
}

func TestOtherRequests(t *testing.T) {
	bubble(t, func(f *fixture) {
		for _, r := range []struct {
			method, path string
			code         int
		}{{"POST", "/live", 405}, {"GET", "/", 404}, {"HEAD", "/live", 200}} {
			w := httptest.NewRecorder()
			f.h.ServeHTTP(w, httptest.NewRequest(r.method, r.path, nil))
			if w.Code != r.code {
				f.t.Errorf("%s %s: %d, want %d", r.method, r.path, w.Code, r.code)
			}
		}
	})
}
