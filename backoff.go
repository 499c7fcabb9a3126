package pawl

import (
	"math"
	"math/rand/v2"
	"time"
)

// Backoff says how long a failed job waits before its next attempt. attempt is
// the number of the attempt that failed, from 1; err is its failure.
// Implementations must be safe for concurrent use.
type Backoff interface {
	Delay(attempt int, err error) time.Duration
}

// BackoffFunc is a function as a [Backoff]. A negative delay counts as 0.
type BackoffFunc func(attempt int, err error) time.Duration

// Delay calls f.
func (f BackoffFunc) Delay(attempt int, err error) time.Duration { return max(f(attempt, err), 0) }

// Constant waits the same time after every attempt.
type Constant time.Duration

// Delay returns c.
func (c Constant) Delay(int, error) time.Duration { return max(time.Duration(c), 0) }

// Schedule lists the delay after each attempt; the last repeats. An empty one
// does not wait.
type Schedule []time.Duration

// Delay returns the entry of the attempt.
func (s Schedule) Delay(attempt int, _ error) time.Duration {
	if len(s) == 0 {
		return 0
	}
	return max(s[min(max(attempt, 1), len(s))-1], 0)
}

// Exponential doubles the delay with every attempt, up to a cap, with jitter so
// that jobs that failed together do not come back together.
//
// With n = attempt − 1, so that the first retry is scaled by 2⁰, the delay is
//
//	min(Base·2ⁿ + random(0, Base), Max)
//
// which is the truncated exponential backoff of the textbooks; with FullJitter
// it is
//
//	random(0, min(Base·2ⁿ, Max))
//
// after Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog,
// 2015). The arithmetic saturates at Max.
type Exponential struct {
	Base       time.Duration // 0 means 1 s
	Max        time.Duration // 0 means 1 h
	FullJitter bool
}

// Delay returns the delay after the attempt.
func (e Exponential) Delay(attempt int, _ error) time.Duration {
	base, limit := e.Base, e.Max
	if base <= 0 {
		base = time.Second
	}
	if limit <= 0 {
		limit = time.Hour
	}
	d := doubled(base, attempt-1, limit)
	if e.FullJitter {
		return rand.N(min(d, math.MaxInt64-1) + 1)
	}
	jitter := rand.N(base)
	if jitter > limit-d {
		return limit
	}
	return d + jitter
}

// doubled returns min(base·2ⁿ, limit) without overflow.
func doubled(base time.Duration, n int, limit time.Duration) time.Duration {
	if n < 0 {
		n = 0
	}
	if n >= 63 || base > limit>>n {
		return limit
	}
	return base << n
}
