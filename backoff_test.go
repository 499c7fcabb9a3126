package pawl_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

func TestExponentialIsTheTextbookForm(t *testing.T) {
	e := pawl.Exponential{Base: 2 * time.Second, Max: time.Minute}
	for attempt := 1; attempt <= 80; attempt++ {
		floor := time.Minute
		if attempt <= 5 {
			floor = 2 * time.Second << (attempt - 1)
		}
		for range 200 {
			d := e.Delay(attempt, nil)
			if d < floor || d > min(floor+2*time.Second, time.Minute) {
				t.Fatalf("attempt %d: %v is outside min(%v + [0, 2s), 1m)", attempt, d, floor)
			}
		}
	}
}

func TestExponentialJitterSpreads(t *testing.T) {
	for _, e := range []pawl.Exponential{{}, {FullJitter: true}} {
		seen := map[time.Duration]bool{}
		for range 100 {
			seen[e.Delay(3, nil)] = true
		}
		if len(seen) < 90 {
			t.Errorf("%+v: only %d different delays in 100", e, len(seen))
		}
	}
}

func TestFullJitterStaysBelowTheCap(t *testing.T) {
	e := pawl.Exponential{Base: time.Second, Max: 10 * time.Second, FullJitter: true}
	low, high := time.Hour, time.Duration(0)
	for range 2000 {
		d := e.Delay(10, nil)
		low, high = min(low, d), max(high, d)
	}
	if low < 0 || low > time.Second || high > 10*time.Second || high < 9*time.Second {
		t.Errorf("delays from %v to %v do not fill [0, 10s]", low, high)
	}
}

func TestBackoffSaturates(t *testing.T) {
	longest := time.Duration(math.MaxInt64)
	for _, e := range []pawl.Exponential{
		{Base: longest, Max: longest},
		{Base: longest / 2, Max: longest, FullJitter: true},
		{Base: longest, Max: longest, FullJitter: true},
		{Base: 1, Max: longest},
		{Base: time.Hour, Max: time.Second},
	} {
		limit := max(e.Max, 0)
		for _, attempt := range []int{math.MinInt, -1, 0, 1, 62, 63, 64, 1000, math.MaxInt} {
			if d := e.Delay(attempt, nil); d < 0 || d > limit {
				t.Errorf("%+v after attempt %d: %v is outside [0, %v]", e, attempt, d, limit)
			}
		}
	}
}

func TestSchedule(t *testing.T) {
	s := pawl.Schedule{time.Second, time.Minute, -5}
	for attempt, want := range map[int]time.Duration{
		math.MinInt: time.Second, 0: time.Second, 1: time.Second, 2: time.Minute, 3: 0, 4: 0, math.MaxInt: 0,
	} {
		if d := s.Delay(attempt, nil); d != want {
			t.Errorf("after attempt %d: %v, want %v", attempt, d, want)
		}
	}
	if d := pawl.Schedule(nil).Delay(1, nil); d != 0 {
		t.Errorf("empty schedule waits %v", d)
	}
}

func TestConstantAndFunc(t *testing.T) {
	if d := pawl.Constant(3*time.Second).Delay(9, nil); d != 3*time.Second {
		t.Errorf("Constant waits %v", d)
	}
	if d := pawl.Constant(-1).Delay(1, nil); d != 0 {
		t.Errorf("negative Constant waits %v", d)
	}
	slow := errors.New("slow down")
	f := pawl.BackoffFunc(func(attempt int, err error) time.Duration {
		if errors.Is(err, slow) {
			return time.Duration(attempt) * time.Hour
		}
		return -time.Second
	})
	if d := f.Delay(2, slow); d != 2*time.Hour {
		t.Errorf("BackoffFunc did not see the error: %v", d)
	}
	if d := f.Delay(2, nil); d != 0 {
		t.Errorf("negative BackoffFunc waits %v", d)
	}
}

func TestRescueAndSkipDelays(t *testing.T) {
	for n := -1; n < 100; n++ {
		d := pawl.RescueDelay(n)
		want := time.Minute
		if n >= 2 && n-2 < 6 {
			want = time.Second << (n - 2)
		}
		if n <= 1 && d != 0 || n > 1 && (d < want/2 || d > want) {
			t.Errorf("RescueDelay(%d) = %v", n, d)
		}
	}
	for n, want := range map[int]time.Duration{-1: 100 * time.Millisecond, 0: 100 * time.Millisecond, 3: 800 * time.Millisecond, 10: time.Minute, math.MaxInt: time.Minute} {
		if d := pawl.SkipDelay(n); d != want {
			t.Errorf("SkipDelay(%d) = %v, want %v", n, d, want)
		}
	}
}
