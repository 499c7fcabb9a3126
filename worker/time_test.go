package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

// ending is a handler that waits for the end of its context and returns what
// that is; the cause and the time it took are left in its channels.
type ending struct {
	causes chan error
	after  chan time.Duration
}

func newEnding() *ending {
	return &ending{make(chan error, 100), make(chan time.Duration, 100)}
}

func (e *ending) Kinds() []pawl.Kind {
	return worker.Func(func(ctx context.Context, _ *pawl.Job) error {
		began := time.Now()
		<-ctx.Done()
		e.causes <- context.Cause(ctx)
		e.after <- time.Since(began)
		return ctx.Err()
	}).Kinds()
}

func TestTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
			if at, ok := ctx.Deadline(); !ok || time.Until(at) != 5*time.Second {
				t.Errorf("deadline in %v, %v", time.Until(at), ok)
			}
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			<-child.Done()
			if cause := context.Cause(child); cause != worker.ErrTimeout || !errors.Is(cause, context.DeadlineExceeded) {
				t.Errorf("cause %v", cause)
			}
			if ctx.Err() != context.Canceled || child.Err() != ctx.Err() {
				t.Errorf("errors %v and %v", ctx.Err(), child.Err())
			}
			return child.Err()
		})
		f := start(t, cycling, h, nil)
		id := f.enqueue(&pawl.Request{Timeout: 5 * time.Second})
		rest(5 * time.Second)
		j := f.wantState(id, pawl.Scheduled, pawl.ReasonRetry)
		if len(j.Failures) != 1 || !strings.Contains(j.Failures[0].Error, "timed out after 5s") {
			t.Errorf("failures %v", j.Failures)
		}
		f.stop()
	})
}

func TestTimeoutOfKindAndQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := newEnding()
		k := kinds{{Name: "own", Timeout: time.Minute, Run: e.Kinds()[0].Run}, {Name: "default", Run: e.Kinds()[0].Run}}
		f := start(t, cycling, k, nil)
		f.enqueue(&pawl.Request{Kind: "own"})
		f.enqueue(&pawl.Request{Kind: "default"})
		rest(time.Hour)
		if a, b := <-e.after, <-e.after; a != time.Minute || b != 30*time.Minute {
			t.Errorf("timed out after %v and %v", a, b)
		}
		f.stop()
	})
}

func TestNoTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
			if _, ok := ctx.Deadline(); ok {
				t.Error("there is a deadline")
			}
			time.Sleep(3 * time.Hour)
			return ctx.Err()
		})
		f := start(t, cycling, h, nil)
		id := f.enqueue(&pawl.Request{Timeout: pawl.NoTimeout})
		rest(3*time.Hour + time.Second)
		j := f.wantState(id, pawl.Completed, "")
		if j.Counts.Rescues != 0 || j.Counts.Extends < 1000 {
			t.Errorf("counts %+v", j.Counts)
		}
		f.stop()
	})
}

func TestHandlerThatEndsWellAfterItsTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
			<-ctx.Done()
			return nil
		})
		f := start(t, cycling, h, nil)
		id := f.enqueue(&pawl.Request{Timeout: time.Second})
		rest(time.Minute)
		f.wantState(id, pawl.Completed, "")
		f.stop()
	})
}

// A handler that ignores its timeout is failed, its slot replaced, and what it
// returns later refused.
func TestStuckHandler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		var runs atomic.Int64
		h := worker.Func(func(_ context.Context, j *pawl.Job) error {
			if string(j.Payload) == "stuck" && runs.Add(1) == 1 {
				<-release
			}
			return nil
		})
		f := start(t, cycling, h, &worker.Options{Concurrency: 1})
		id := f.enqueue(&pawl.Request{Payload: []byte("stuck"), Timeout: time.Second})
		rest(3 * time.Second)
		j := f.wantState(id, pawl.Scheduled, pawl.ReasonRetry)
		if len(j.Failures) != 1 || !strings.Contains(j.Failures[0].Error, "timed out after 1s and ignored it") {
			t.Errorf("failures %v", j.Failures)
		}
		if s := f.p.Stats(); s.Stuck != 1 || s.Running != 0 || s.Slots != 1 {
			t.Errorf("stats %+v", s)
		}
		if h := f.p.Health(); !h.Live || !h.Ready {
			t.Errorf("health %+v", h)
		}
		other := f.enqueue(&pawl.Request{})
		rest(time.Second)
		f.wantState(other, pawl.Completed, "") // by the replacement
		close(release)
		rest(time.Second)
		f.wantState(id, pawl.Scheduled, pawl.ReasonRetry)
		if s := f.p.Stats(); s.Stuck != 0 || s.Slots != 1 || s.Completed != 1 || s.Failed != 1 {
			t.Errorf("stats %+v", s)
		}
		rest(2 * time.Hour)
		f.wantState(id, pawl.Completed, "")
		f.stop()
	})
}

func TestStuckWithoutReplacement(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		h := worker.Func(func(_ context.Context, j *pawl.Job) error {
			if string(j.Payload) == "stuck" {
				<-release
			}
			return nil
		})
		f := start(t, cycling, h, &worker.Options{Concurrency: 1, MaxStuck: worker.NoReplacements})
		f.enqueue(&pawl.Request{Payload: []byte("stuck"), Timeout: time.Second})
		rest(3 * time.Second)
		if s := f.p.Stats(); s.Stuck != 1 || s.Slots != 0 {
			t.Errorf("stats %+v", s)
		}
		if h := f.p.Health(); h.Live || h.Ready || !strings.Contains(h.Reason, "all slots of default are stuck") {
			t.Errorf("health %+v", h)
		}
		other := f.enqueue(&pawl.Request{})
		rest(time.Minute)
		f.wantState(other, pawl.Ready, "")
		close(release)
		rest(2 * time.Second)
		f.wantState(other, pawl.Completed, "") // by the slot that came back
		if h := f.p.Health(); !h.Live || !h.Ready || h.Reason != "" {
			t.Errorf("health %+v", h)
		}
		f.stop()
	})
}

func TestReplacementsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		h := worker.Func(func(context.Context, *pawl.Job) error { <-release; return nil })
		f := start(t, cycling, h, &worker.Options{Concurrency: 2, MaxStuck: 3})
		for range 20 {
			f.enqueue(&pawl.Request{Timeout: time.Second, MaxAttempts: 1})
		}
		rest(time.Hour)
		if s := f.p.Stats(); s.Stuck != 5 || s.Started != 5 || s.Slots != 0 || s.Buried != 5 {
			t.Errorf("stats %+v", s)
		}
		close(release)
		rest(time.Minute)
		if s := f.p.Stats(); s.Stuck != 0 || s.Slots != 2 || s.Completed != 15 {
			t.Errorf("stats %+v", s)
		}
		f.stop()
	})
}

// Jobs with a lease of their own are extended in its rhythm.
func TestOwnLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := worker.Func(func(ctx context.Context, _ *pawl.Job) error {
			time.Sleep(time.Minute)
			return ctx.Err()
		})
		f := start(t, cycling, h, nil)
		short := f.enqueue(&pawl.Request{Lease: time.Second})
		long := f.enqueue(&pawl.Request{})
		rest(61 * time.Second)
		j := f.wantState(short, pawl.Completed, "")
		if n := j.Counts.Extends; n < 170 || n > 200 || j.Counts.Rescues > 0 {
			t.Errorf("counts %+v", j.Counts)
		}
		j = f.wantState(long, pawl.Completed, "")
		if n := j.Counts.Extends; n < 5 || n > 7 {
			t.Errorf("%d extends", n)
		}
		f.stop()
	})
}

func TestHeartbeatOption(t *testing.T) {
	for every, want := range map[time.Duration][2]int{
		time.Second: {55, 61},
		time.Hour:   {5, 7}, // cut to a third of the lease
	} {
		bubble(t, func(t *testing.T) {
			h := worker.Func(func(context.Context, *pawl.Job) error { time.Sleep(time.Minute); return nil })
			f := start(t, cycling, h, &worker.Options{Heartbeat: every})
			id := f.enqueue(&pawl.Request{})
			rest(61 * time.Second)
			n := f.wantState(id, pawl.Completed, "").Counts.Extends
			if n < want[0] || n > want[1] {
				t.Errorf("%v: %d extends, want %v", every, n, want)
			}
			f.stop()
		})
	}
}

// When renewals fail, the handler's context ends before the lease does.
func TestLeaseThatCanNotBeExtended(t *testing.T) {
	for _, hang := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			e := newEnding()
			f := start(t, cycling, e, nil)
			f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
				switch {
				case op != "extend":
					return call()
				case hang:
					<-ctx.Done()
				}
				return errStorage
			})
			id := f.enqueue(&pawl.Request{})
			synctest.Wait()
			until := f.get(id).LeaseUntil
			cause := <-e.causes
			if !errors.Is(cause, pawl.ErrLost) || errors.Is(cause, worker.ErrCanceled) {
				t.Errorf("cause %v", cause)
			}
			if left := time.Until(until); left <= 0 || left > 3*time.Second {
				t.Errorf("context ended %v before the lease", left)
			}
			f.storage.heal()
			rest(20 * time.Second)
			j := f.wantState(id, pawl.Running, "") // rescued and claimed again
			if j.Counts.Rescues != 1 || j.Counts.Retries != 0 {
				t.Errorf("counts %+v", j.Counts)
			}
			if n := f.log.count("storage fails to extend"); n != 1 {
				t.Errorf("outage logged %d times", n)
			}
			if err := f.q.Cancel(context.Background(), "", id); err != nil {
				t.Error(err)
			}
			f.stop()
			if s := f.p.Stats(); s.Lost != 2 || s.Completed != 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// If the handler ends well all the same, the storage decides.
func TestAckAfterTheLocalDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := worker.Func(func(ctx context.Context, _ *pawl.Job) error { <-ctx.Done(); return nil })
		f := start(t, cycling, h, nil)
		f.storage.fail(false, "extend")
		id := f.enqueue(&pawl.Request{})
		rest(time.Minute)
		if j := f.wantState(id, pawl.Completed, ""); j.Counts.Rescues != 0 {
			t.Errorf("counts %+v", j.Counts)
		}
		f.stop()
	})
}

// A claim found lost by the heartbeat, where no events tell.
func TestLostClaimIsFoundByTheHeartbeat(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := newEnding()
		f := start(t, bare, e, nil)
		id := f.enqueue(&pawl.Request{})
		rest(2 * time.Second)
		f.wantState(id, pawl.Running, "")
		began := time.Now()
		if err := f.q.Cancel(context.Background(), "", id); err != nil {
			t.Fatal(err)
		}
		if cause := <-e.causes; !errors.Is(cause, pawl.ErrLost) {
			t.Errorf("cause %v", cause)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v, more than a heartbeat", took)
		}
		rest(time.Second)
		f.wantState(id, pawl.Canceled, pawl.ReasonCancel)
		f.stop()
	})
}

func TestCancelReachesTheHandlerAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := newEnding()
		f := start(t, watched, e, nil)
		id := f.enqueue(&pawl.Request{})
		synctest.Wait()
		if err := f.q.Cancel(context.Background(), "", id); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if cause := <-e.causes; !errors.Is(cause, worker.ErrCanceled) || !errors.Is(cause, pawl.ErrLost) {
			t.Errorf("cause %v", cause)
		}
		if took := <-e.after; took > 0 {
			t.Errorf("it took %v", took)
		}
		f.wantState(id, pawl.Canceled, pawl.ReasonCancel)
		f.stop()
		if s := f.p.Stats(); s.Lost != 1 || s.Failed != 0 {
			t.Errorf("stats %+v", s)
		}
		if n := f.log.count(`level=INFO msg="worker: job was canceled while it ran"`); n != 1 || f.log.count("level=WARN") > 0 {
			t.Errorf("logged %d times as canceled", n)
		}
	})
}

// A handler that ignores that its claim was lost is given up without settling.
func TestStuckAfterLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		f := start(t, watched, worker.Func(func(context.Context, *pawl.Job) error { <-release; return nil }), nil)
		id := f.enqueue(&pawl.Request{})
		synctest.Wait()
		if err := f.q.Delete(context.Background(), "", id); err != nil {
			t.Fatal(err)
		}
		rest(2 * time.Second)
		if s := f.p.Stats(); s.Stuck != 1 || s.Lost != 1 || s.Slots != 10 {
			t.Errorf("stats %+v", s)
		}
		close(release)
		synctest.Wait()
		f.stop()
		if s := f.p.Stats(); s.Stuck != 0 || s.Lost != 1 || s.Completed != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestWakeUpsAndExactSleep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		started := make(chan time.Time, 1)
		h := worker.Func(func(context.Context, *pawl.Job) error { started <- time.Now(); return nil })
		f := start(t, cycling, h, &worker.Options{Poll: time.Hour})
		rest(time.Minute)
		began := time.Now()
		f.enqueue(&pawl.Request{})
		if d := (<-started).Sub(began); d > time.Millisecond {
			t.Errorf("started after %v", d)
		}
		rest(time.Minute)
		for _, delay := range []time.Duration{1700 * time.Millisecond, 5 * time.Hour, time.Second} {
			began = time.Now()
			f.enqueue(&pawl.Request{Delay: delay})
			if d := (<-started).Sub(began); d < delay-time.Microsecond || d > delay+3*time.Millisecond {
				t.Errorf("started after %v, want %v", d, delay)
			}
		}
		f.stop()
	})
}

// Without events jobs are found by polling, scheduled ones known still on time.
func TestPolling(t *testing.T) {
	bubble(t, func(t *testing.T) {
		started := make(chan time.Time, 1)
		h := worker.Func(func(context.Context, *pawl.Job) error { started <- time.Now(); return nil })
		f := start(t, bare, h, nil)
		rest(time.Minute)
		for range 20 {
			began := time.Now()
			f.enqueue(&pawl.Request{})
			if d := (<-started).Sub(began); d > 1300*time.Millisecond {
				t.Errorf("started after %v", d)
			}
			rest(10 * time.Second)
		}
		began := time.Now()
		f.enqueue(&pawl.Request{Delay: 90 * time.Second})
		// The storage's clock ticks in microseconds.
		if d := (<-started).Sub(began); d < 90*time.Second-time.Microsecond || d > 90*time.Second+3*time.Millisecond {
			t.Errorf("started after %v", d)
		}
		f.stop()
	})
}

func TestIdlePoolHardlyCalls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var calls atomic.Int64
		f := start(t, cycling, returning(nil), &worker.Options{
			Queues: []worker.Queue{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}},
		})
		f.storage.disturb(func(_ context.Context, op string, call func() error) error {
			calls.Add(1)
			return call()
		})
		rest(time.Hour)
		f.stop()
		if n := calls.Load(); n > 3600*16/10+3600/3 {
			t.Errorf("%d calls in an hour", n)
		}
	})
}

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
