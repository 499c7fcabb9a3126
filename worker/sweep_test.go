package worker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// The job of a worker that died is taken back by the sweeps of others.
func TestRescue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		id := f.enqueue(&pawl.Request{})
		f.enqueue(&pawl.Request{})
		for range 2 {
			if _, err := f.q.Claim(context.Background(), nil); err != nil { // and dies
				t.Fatal(err)
			}
		}
		f.start(returning(nil), nil)
		rest(37 * time.Second) // lease 30 s, sweep 5 s and its jitter
		if j := f.wantState(id, pawl.Completed, ""); j.Counts.Rescues != 1 {
			t.Errorf("counts %+v", j.Counts)
		}
		f.stop()
		if s := f.p.Stats(); s.Rescued != 2 {
			t.Errorf("stats %+v", s)
		}
		if n := f.log.count(`level=WARN msg="worker: jobs taken back from workers that are gone" jobs=2`); n != 1 {
			t.Errorf("logged %d times", n)
		}
		if n := f.log.count("level=DEBUG"); n != 2 {
			t.Errorf("logged %d details", n)
		}
	})
}

func TestBurialByRescue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, cycling)
		var told []error
		h := kinds{{
			Name:   "k",
			Run:    func(context.Context, *pawl.Job) ([]byte, error) { return nil, nil },
			OnBury: func(_ context.Context, _ *pawl.Job, err error) { told = append(told, err) },
		}}
		id := f.enqueue(&pawl.Request{MaxRescues: pawl.NoRescues})
		f.enqueue(&pawl.Request{MaxRescues: pawl.NoRescues, Kind: "foreign"})
		for range 2 {
			if _, err := f.q.Claim(context.Background(), nil); err != nil {
				t.Fatal(err)
			}
		}
		f.start(h, nil)
		rest(time.Minute)
		f.wantState(id, pawl.Buried, pawl.ReasonRescues)
		f.stop()
		if len(told) != 1 || told[0].Error() != "lease expired" {
			t.Errorf("OnBury told %v", told)
		}
		if s := f.p.Stats(); s.RescueBuried != 2 {
			t.Errorf("stats %+v", s)
		}
	})
}

// To tell of burials takes few calls, and one that hangs holds up no rescues.
func TestManyBurialsByRescue(t *testing.T) {
	for _, hang := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			f := prepare(t, cycling)
			var told atomic.Int64
			h := kinds{{
				Run:    func(context.Context, *pawl.Job) ([]byte, error) { return nil, nil },
				OnBury: func(context.Context, *pawl.Job, error) { told.Add(1) },
			}}
			for range 40 {
				f.enqueue(&pawl.Request{Queue: "a", MaxRescues: pawl.NoRescues})
				f.enqueue(&pawl.Request{Queue: "b", MaxRescues: pawl.NoRescues})
			}
			other := f.enqueue(&pawl.Request{Queue: "a", Lease: 40 * time.Second})
			for range 81 {
				if _, err := f.q.Claim(context.Background(), &pawl.ClaimOptions{Queues: []string{"a", "b"}}); err != nil {
					t.Fatal(err)
				}
			}
			var gets atomic.Int64
			f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
				if op != "get" {
					return call()
				}
				gets.Add(1)
				if hang {
					<-ctx.Done()
					return ctx.Err()
				}
				return call()
			})
			f.start(h, &worker.Options{Queues: []worker.Queue{{Name: "a"}, {Name: "b"}}})
			rest(57 * time.Second) // lease 40 s, a call 10 s, sweep 5 s and its jitter
			f.stop()
			if s := f.p.Stats(); s.Rescued != 1 || s.RescueBuried != 80 || s.Completed != 1 {
				t.Errorf("hang %v: stats %+v", hang, s)
			}
			f.storage.heal()
			f.wantState(other, pawl.Completed, "")
			if want := int64(80); !hang && told.Load() != want || hang && told.Load() != 0 {
				t.Errorf("hang %v: OnBury told of %d", hang, told.Load())
			}
			if n := gets.Load(); n > 6 {
				t.Errorf("hang %v: %d calls", hang, n)
			}
			if n := f.log.count("could not be told"); (n == 1) != hang {
				t.Errorf("hang %v: logged %d times", hang, n)
			}
		})
	}
}

// What a sweep did before it failed counts, and is told.
func TestSweepThatFailsInTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, func(d *disturbed) pawl.Storage { return &halfSweeping{d} })
		var told atomic.Int64
		h := kinds{{
			Name:   "k",
			Run:    func(context.Context, *pawl.Job) ([]byte, error) { return nil, nil },
			OnBury: func(context.Context, *pawl.Job, error) { told.Add(1) },
		}}
		f.enqueue(&pawl.Request{MaxRescues: pawl.NoRescues})
		f.enqueue(&pawl.Request{Priority: 1})
		for range 2 {
			if _, err := f.q.Claim(context.Background(), nil); err != nil {
				t.Fatal(err)
			}
		}
		f.start(h, nil)
		rest(time.Minute)
		f.stop()
		if s := f.p.Stats(); s.Rescued != 1 || s.RescueBuried != 1 || told.Load() != 1 {
			t.Errorf("stats %+v, told %d", s, told.Load())
		}
	})
}

// halfSweeping has a last step of Sweep that always fails.
type halfSweeping struct{ *disturbed }

func (s *halfSweeping) Sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	swept, err := s.disturbed.Sweep(ctx, spec)
	return swept, errors.Join(err, errors.New("the last step failed"))
}
