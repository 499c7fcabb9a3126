package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
)

func wantInvalid(t *testing.T, err error, field string) {
	t.Helper()
	var invalid *pawl.InvalidError
	if !errors.As(err, &invalid) || invalid.Field != field {
		t.Errorf("error %v, want one of %s", err, field)
	}
}

func TestMaxWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{MaxWaiters: 3})
		got := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := q.Claim(t.Context(), nil)
				got <- err
			}()
		}
		synctest.Wait()
		if _, err := q.Claim(t.Context(), nil); !errors.Is(err, pawl.ErrTooManyWaiters) {
			t.Errorf("error %v", err)
		}
		enqueue(t, q, &pawl.Request{})
		if err := <-got; err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := q.Claim(ctx, nil); !errors.Is(err, context.DeadlineExceeded) { // in the place that is free
			t.Errorf("error %v", err)
		}
		for range 2 {
			enqueue(t, q, &pawl.Request{})
			if err := <-got; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestMaxQueues(t *testing.T) {
	q := open(t, &pawl.Options{MaxQueues: 2})
	enqueue(t, q, &pawl.Request{Queue: "a"})
	_, err := q.EnqueueMany(t.Context(), []*pawl.Request{{Kind: "test", Queue: "b"}, {Kind: "test", Queue: "c"}})
	wantInvalid(t, err, "Queue")
	if !strings.Contains(err.Error(), `of the 2 that Options.MaxQueues lets this Queue enqueue to, and "c" is one more`) {
		t.Errorf("error %v", err)
	}
	_, err = q.Enqueue(t.Context(), &pawl.Request{Queue: "d"}) // invalid anyhow, and no queue
	wantInvalid(t, err, "Kind")
	enqueue(t, q, &pawl.Request{Queue: "c"})
	_, err = q.WithTx(q.Storage()).Enqueue(t.Context(), &pawl.Request{Kind: "test", Queue: "b"})
	wantInvalid(t, err, "Queue")
	enqueue(t, q, &pawl.Request{Queue: "a"})
	if names, err := q.Queues(t.Context()); fmt.Sprint(names) != "[a c]" || err != nil {
		t.Errorf("queues %v, error %v", names, err)
	}
}

// failing is a storage that is down.
type failing struct{ pawl.Storage }

func (failing) Enqueue(context.Context, []*pawl.Request) ([]pawl.Receipt, error) {
	return nil, errors.New("down")
}

// A queue that no enqueue has reached takes no place, unless others try to.
func TestMaxQueuesAfterFailures(t *testing.T) {
	q := open(t, &pawl.Options{MaxQueues: 1})
	var inside error
	tx := q.WithTx(during{failing{q.Storage()}, func() {
		_, inside = q.Enqueue(t.Context(), &pawl.Request{Queue: "other", Kind: "test"})
	}})
	if _, err := tx.Enqueue(t.Context(), &pawl.Request{Queue: "typo", Kind: "test"}); err == nil || errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("error %v", err)
	}
	wantInvalid(t, inside, "Queue")
	enqueue(t, q, &pawl.Request{Queue: "mail"})
	if _, err := q.WithTx(failing{q.Storage()}).Enqueue(t.Context(), &pawl.Request{Queue: "mail", Kind: "test"}); errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("error %v", err)
	}
	_, err := q.Enqueue(t.Context(), &pawl.Request{Queue: "typo", Kind: "test"})
	wantInvalid(t, err, "Queue") // mail has its place still
}

// Nor does one at which the storage has panicked.
func TestMaxQueuesAfterAPanic(t *testing.T) {
	q := open(t, &pawl.Options{MaxQueues: 1})
	tx := q.WithTx(during{q.Storage(), func() { panic("bug") }})
	func() {
		defer func() {
			if v := recover(); v != "bug" {
				t.Errorf("recovered %v", v)
			}
		}()
		_, err := tx.Enqueue(t.Context(), &pawl.Request{Queue: "typo", Kind: "test"})
		t.Errorf("no panic, error %v", err)
	}()
	enqueue(t, q, &pawl.Request{Queue: "mail"})
}

// during calls f before each Enqueue.
type during struct {
	pawl.Writer
	f func()
}

func (d during) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	d.f()
	return d.Writer.Enqueue(ctx, reqs)
}

func TestQueuesOfAClaim(t *testing.T) {
	q := open(t, nil)
	spec := pawl.ClaimSpec{Max: 1, Lease: time.Minute}
	for i := range pawl.MaxQueues + 1 {
		spec.Queues = append(spec.Queues, pawl.QueueAsk{Queue: fmt.Sprint("q", i), Max: 1})
	}
	_, err := q.ClaimBatch(t.Context(), spec)
	wantInvalid(t, err, "Queues")
	spec.Queues = spec.Queues[1:]
	if _, err := q.ClaimBatch(t.Context(), spec); err != nil {
		t.Error(err)
	}
}

// Extends are bounded in number, total time and pace, each claim anew.
func TestExtendLimits(t *testing.T) {
	cases := map[string]struct {
		limits pawl.ExtendLimits
		every  time.Duration
		want   int // of ten
		field  string
	}{
		"none":  {pawl.ExtendLimits{}, 0, 10, ""},
		"count": {pawl.ExtendLimits{Count: 3}, time.Second, 3, "ExtendLimits.Count"},
		"total": {pawl.ExtendLimits{Total: 6 * time.Second}, time.Second, 5, "ExtendLimits.Total"},
		"pace":  {pawl.ExtendLimits{Every: 2 * time.Second}, time.Second, 5, "ExtendLimits.Every"},
		"all":   {pawl.ExtendLimits{Count: 3, Total: 4 * time.Second, Every: 2 * time.Second}, time.Second, 2, "ExtendLimits.Total"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := open(t, &pawl.Options{ExtendLimits: c.limits})
				enqueue(t, q, &pawl.Request{})
				for _, again := range []bool{false, true} {
					j, err := q.Claim(t.Context(), nil)
					if err != nil {
						t.Fatal(err)
					}
					job := func() *pawl.Job { return j }
					if again { // as a server does that keeps nothing between two requests
						job = func() *pawl.Job { return get(t, q, j.ID) }
					}
					n, last := extends(t, q, job, c.every)
					if n != c.want {
						t.Errorf("%d extends, want %d", n, c.want)
					}
					if last != nil {
						wantInvalid(t, last, c.field)
					}
					if err := q.Release(t.Context(), j, nil); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

// extends tries to extend ten times and returns how often it could, and the last
// error.
func extends(t *testing.T, q *pawl.Queue, job func() *pawl.Job, every time.Duration) (n int, last error) {
	t.Helper()
	for range 10 {
		time.Sleep(every) // of the bubble's time
		err := q.Extend(t.Context(), job(), nil)
		if err == nil {
			n++
			continue
		}
		if last = err; !errors.Is(err, pawl.ErrInvalid) {
			t.Error(err)
		}
	}
	return n, last
}

// A claim that another process made is bounded, too.
func TestExtendLimitsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{ExtendLimits: pawl.ExtendLimits{Total: 24 * time.Second}})
		enqueue(t, q, &pawl.Request{})
		claimed, err := pawl.New(q.Storage(), nil).Claim(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // of the bubble's time
		if n, _ := extends(t, q, func() *pawl.Job { return get(t, q, claimed.ID) }, time.Second); n != 3 {
			t.Errorf("%d extends, want 3", n)
		}
		// Of a claim that is known by its Ref alone, the first Extend is the beginning.
		bare := &pawl.Job{Ref: claimed.Ref}
		bare.Fence++
		if err := q.Extend(t.Context(), bare, nil); !errors.Is(err, pawl.ErrLost) {
			t.Errorf("error %v", err)
		}
	})
}

// The last Extend takes no more than Total leaves.
func TestExtendLimitsShortenTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{ExtendLimits: pawl.ExtendLimits{Total: time.Minute}})
		enqueue(t, q, &pawl.Request{})
		j, err := q.Claim(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // of the bubble's time
		if err := q.Extend(t.Context(), j, &pawl.ExtendOptions{Lease: 24 * time.Hour}); err != nil {
			t.Error(err)
		}
		if got := get(t, q, j.ID); got.LeaseUntil.Sub(got.ClaimedAt) != time.Minute {
			t.Errorf("the lease ends %v after the claim", got.LeaseUntil.Sub(got.ClaimedAt))
		}
	})
}

// A Job that was read has the LeaseUntil of the last Extend, which says nothing
// about the length of a lease.
func TestExtendOfAJobThatWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, nil)
		enqueue(t, q, &pawl.Request{})
		j, err := q.Claim(t.Context(), &pawl.ClaimOptions{Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // of the bubble's time
		for range 5 {
			if err := q.Extend(t.Context(), get(t, q, j.ID), nil); err != nil {
				t.Fatal(err)
			}
			if left := time.Until(get(t, q, j.ID).LeaseUntil); left != q.Options().Lease {
				t.Errorf("the lease is %v", left)
			}
		}
		if err := q.Extend(t.Context(), j, nil); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(get(t, q, j.ID).LeaseUntil); left != time.Minute {
			t.Errorf("the lease is %v", left)
		}
	})
}

// What is remembered of claims is bounded; those whose leases end first go.
func TestExtendLimitsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{ExtendLimits: pawl.ExtendLimits{Count: 1}})
		const n = 10_001
		for i := range int64(n) {
			enqueue(t, q, &pawl.Request{Lease: time.Minute + time.Duration(i)*time.Millisecond})
		}
		var jobs []*pawl.Job
		for range n {
			j, err := q.Claim(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := q.Extend(t.Context(), j, nil); err != nil {
				t.Fatal(err)
			}
			jobs = append(jobs, j)
		}
		for i, allowed := range map[int]bool{0: true, n / 2: false, n - 1: false} {
			if err := q.Extend(t.Context(), jobs[i], nil); (err == nil) != allowed {
				t.Errorf("job %d: error %v", i, err)
			}
		}
	})
}
