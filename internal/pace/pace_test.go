package pace

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// records are deleted, each step taking some time.
type records struct {
	left  int
	takes time.Duration
	steps []int
}

func (r *records) step(limit int) (int, error) {
	time.Sleep(r.takes)
	n := min(limit, r.left)
	r.left -= n
	r.steps = append(r.steps, n)
	return n, nil
}

func TestSteps(t *testing.T) {
	for _, c := range []struct {
		left, limit int
		takes       time.Duration
		steps       []int
		took        time.Duration
	}{
		{0, 1000, time.Millisecond, []int{0}, time.Millisecond},
		{250, 1000, time.Millisecond, []int{100, 100, 50}, 5 * time.Millisecond},
		{200, 1000, time.Millisecond, []int{100, 100, 0}, 5 * time.Millisecond},
		{1000, 200, time.Millisecond, []int{100, 100}, 3 * time.Millisecond},
		{1000, 30, time.Millisecond, []int{30}, time.Millisecond},
		{1000, 0, time.Millisecond, nil, 0},
		{300, 300, time.Second, []int{100, 100, 100}, 3*time.Second + 2*maxPause},
	} {
		synctest.Test(t, func(t *testing.T) {
			var p Pace
			r, begun := &records{left: c.left, takes: c.takes}, time.Now()
			n, err := p.Delete(t.Context(), c.limit, r.step)
			if err != nil || n != min(c.left, c.limit) || !slices.Equal(r.steps, c.steps) || time.Since(begun) != c.took {
				t.Errorf("%d of %d: deleted %d in steps %v in %v, error %v", c.limit, c.left, n, r.steps, time.Since(begun), err)
			}
		})
	}
}

// TestApart: there are rests between the steps of several deletions, none after one that
// found nothing, and no longer ones than are left.
func TestApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Pace
		for _, c := range []struct {
			left       int
			wait, took time.Duration
		}{
			{99, 0, 10 * time.Millisecond},
			{99, 0, 20 * time.Millisecond},
			{0, 0, 20 * time.Millisecond},
			{99, 0, 10 * time.Millisecond},
			{99, 7 * time.Millisecond, 13 * time.Millisecond},
			{99, time.Hour, 10 * time.Millisecond},
		} {
			time.Sleep(c.wait)
			r, begun := &records{left: c.left, takes: 10 * time.Millisecond}, time.Now()
			if n, err := p.Delete(t.Context(), 1000, r.step); n != c.left || err != nil || time.Since(begun) != c.took {
				t.Errorf("%+v: deleted %d in %v, error %v", c, n, time.Since(begun), err)
			}
		}
	})
}

// TestHurry: sweeps that have not come to an end for long make no pauses until one
// has.
func TestHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Pace
		took := func() time.Duration {
			r, begun := &records{left: 1000, takes: time.Millisecond}, time.Now()
			if n, err := p.Delete(t.Context(), 200, r.step); n != 200 || err != nil {
				t.Fatalf("deleted %d, error %v", n, err)
			}
			return time.Since(begun)
		}
		for _, c := range []struct {
			left bool
			wait time.Duration
			took time.Duration
		}{
			{true, patience - 10*time.Millisecond, 3 * time.Millisecond},
			{true, time.Second, 2 * time.Millisecond},
			{true, time.Hour, 2 * time.Millisecond},
			{false, time.Hour, 3 * time.Millisecond},
			{true, 0, 4 * time.Millisecond}, // it rests from the last step before
		} {
			p.Swept(c.left)
			time.Sleep(c.wait)
			if d := took(); d != c.took {
				t.Errorf("%+v: took %v", c, d)
			}
		}
	})
}

// TestEnd: an error, and the end of the context in a pause, tell what was deleted.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Pace
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Microsecond)
		defer cancel()
		r := &records{left: 1000, takes: time.Millisecond}
		if n, err := p.Delete(ctx, 1000, r.step); n != 100 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("deleted %d, error %v", n, err)
		}
		failure := errors.New("failure")
		n, err := p.Delete(t.Context(), 1000, func(limit int) (int, error) {
			if r.left < 800 {
				return 0, failure
			}
			return r.step(limit)
		})
		if n != 200 || !errors.Is(err, failure) {
			t.Errorf("deleted %d, error %v", n, err)
		}
	})
}
