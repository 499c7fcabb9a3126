package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/worker"
)

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

// A claim that is made long after it was sent, as when the process was paused in
// between, brings jobs that must not start here: they are handed back, and nobody
// waits for their leases.
func TestClaimThatTookLongerThanItsLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const lease, late = 4 * time.Second, 6 * time.Second
		f := prepare(t, cycling)
		first := true
		f.storage.disturb(func(_ context.Context, op string, call func() error) error {
			if op == "claim" && first {
				first = false
				time.Sleep(late)
			}
			return call()
		})
		id := f.enqueue(&pawl.Request{})
		f.start(returning(nil), &worker.Options{Lease: lease})
		rest(late + time.Second)
		j := f.wantState(id, pawl.Completed, "")
		if want := (pawl.Counts{Releases: 1}); j.Counts != want {
			t.Errorf("counts %+v, want %+v", j.Counts, want)
		}
		f.stop()
	})
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

// A storage may have lost what holds some queues alone, as a cluster that has lost a node. The
// calls that name those fail, or hang, and the claims of the others are extended all the same.
func TestLeasesOfSomeQueuesCanNotBeExtended(t *testing.T) {
	for name, test := range map[string]struct {
		hang     bool
		up, down int           // queues
		lease    time.Duration // of jobs in those that are up; the pool's is a minute
	}{
		"refused":          {false, 1, 1, 0},
		"silent":           {true, 1, 1, 0},
		"much longer":      {true, 1, 1, 3 * time.Second},
		"many":             {true, 20, 40, 0},
		"many, for longer": {true, 3, 40, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) { testSomeDown(t, test.hang, test.up, test.down, test.lease) })
		})
	}
}

func testSomeDown(t *testing.T, hang bool, up, down int, lease time.Duration) {
	e := newEnding()
	var queues []worker.Queue
	for i := range up {
		queues = append(queues, worker.Queue{Name: fmt.Sprint("up", i)})
	}
	for i := range down {
		queues = append(queues, worker.Queue{Name: fmt.Sprint("down", i)})
	}
	f := start(t, cycling, e, &worker.Options{Queues: queues, Concurrency: up + down, Lease: time.Minute})
	f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
		isDown := func(r pawl.Renewal) bool { return strings.HasPrefix(r.Ref.Queue, "down") }
		switch {
		case op != "extend" || !slices.ContainsFunc(renewalsOf(ctx), isDown):
			return call()
		case hang:
			<-ctx.Done()
		}
		return errStorage
	})
	ids := make(map[string]pawl.ID)
	for _, q := range queues {
		r := &pawl.Request{Queue: q.Name, Timeout: time.Hour, MaxRescues: pawl.NoRescues}
		if strings.HasPrefix(q.Name, "up") {
			r.Lease = lease
		}
		ids[q.Name] = f.enqueue(r)
	}
	rest(10 * time.Minute)
	for queue, id := range ids {
		if strings.HasPrefix(queue, "down") {
			f.wantState(id, pawl.Buried, pawl.ReasonRescues)
		} else {
			f.wantState(id, pawl.Running, "")
		}
	}
	if n := len(e.causes); n != down {
		t.Errorf("%d handlers have ended, want the %d of queues that are not there", n, down)
	}
	if n := f.log.count("storage fails to extend"); n != 1 {
		t.Errorf("outage logged %d times", n)
	}
	f.storage.heal()
	for queue, id := range ids {
		if strings.HasPrefix(queue, "up") {
			if err := f.q.Cancel(context.Background(), queue, id); err != nil {
				t.Error(err)
			}
		}
	}
	f.stop()
}

// TestLeasesOfASlowStorage: an extension, of however many claims, takes longer than it may
// if each queue has a call of its own. After one that fails the claims are extended all the
// same.
func TestLeasesOfASlowStorage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := newEnding()
		var queues []worker.Queue
		for i := range 100 {
			queues = append(queues, worker.Queue{Name: fmt.Sprint("queue", i)})
		}
		f := start(t, cycling, e, &worker.Options{Queues: queues, Concurrency: len(queues), Lease: 30 * time.Second})
		var failed atomic.Bool
		f.storage.disturb(func(ctx context.Context, op string, call func() error) error {
			switch {
			case op != "extend":
				return call()
			case failed.CompareAndSwap(false, true):
				return errStorage
			case !sleepUntil(ctx, 2*time.Second):
				return ctx.Err()
			}
			return call()
		})
		for _, q := range queues {
			f.enqueue(&pawl.Request{Queue: q.Name, Timeout: time.Hour, MaxRescues: pawl.NoRescues})
		}
		rest(10 * time.Minute)
		if n := len(e.causes); n > 0 {
			t.Errorf("%d handlers have ended", n)
		}
		f.storage.heal()
		f.stop()
	})
}

// sleepUntil reports whether the time was over before the context.
func sleepUntil(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
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
		if s := f.p.Stats(); s.Lost != 1 || s.Canceled != 1 || s.Failed != 0 || s.Slots != 0 {
			t.Errorf("stats %+v", s)
		}
		if n := f.log.count(`level=INFO msg="worker: job was canceled while it ran"`); n != 1 || f.log.count("level=WARN") > 0 {
			t.Errorf("logged %d times as canceled", n)
		}
	})
}
