package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// While too many hooks wait the pool claims nothing, and so is not ready; it is
// dead when the hook that runs does not return.
func TestHooksThatDoNotKeepUp(t *testing.T) {
	for name, takes := range map[string]time.Duration{"slow": 30 * time.Second, "hung": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, cycling)
				done := make(chan struct{})
				k := kinds{{
					Name: "k", Run: func(context.Context, *pawl.Job) ([]byte, error) { return nil, errors.New("x") },
					OnError: func(context.Context, *pawl.Job, error) {
						select {
						case <-done:
						case <-time.After(takes):
						}
					},
				}}
				f.enqueueMany("default", 20_000)
				f.start(k, nil)
				rest(9 * time.Second)
				if h := f.p.Health(); !h.Ready || !h.Live {
					t.Errorf("after 9 s: health %+v", h)
				}
				started := f.p.Stats().Started
				rest(time.Second + time.Millisecond)
				if h := f.p.Health(); h.Ready || !h.Live || h.Reason != "hooks do not keep up for 10s" {
					t.Errorf("after 10 s: health %+v", h)
				}
				rest(50 * time.Second)
				if h := f.p.Health(); h.Ready || h.Live != (name == "slow") || h.Reason != "hooks do not keep up for 1m0s" {
					t.Errorf("after 1 m: health %+v", h)
				}
				if n := f.p.Stats().Started - started; n != 0 {
					t.Errorf("%d runs while the hooks do not keep up", n)
				}
				close(done)
				rest(time.Minute)
				if h := f.p.Health(); !h.Ready || !h.Live || f.p.Stats().Failed != 20_000 {
					t.Errorf("in the end: health %+v, stats %+v", h, f.p.Stats())
				}
				f.stop()
			})
		})
	}
}

// Claims that find nothing do not make batches small.
func TestBatchesOfAnIdlePool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := start(t, bare, returning(nil), &worker.Options{Concurrency: 100, Prefetch: worker.NoPrefetch})
		rest(time.Hour)
		if s := f.p.Stats(); s.Claims < 1000 || s.EmptyClaims != s.Claims || s.ClaimBatch() != 0 {
			t.Errorf("stats %+v, %v jobs in a claim", s, s.ClaimBatch())
		}
		f.enqueueMany("default", 100)
		rest(time.Minute)
		if s := f.p.Stats(); s.Claims-s.EmptyClaims != 1 || s.ClaimBatch() != 100 {
			t.Errorf("stats %+v, %v jobs in a claim", s, s.ClaimBatch())
		}
		f.stop()
	})
}
