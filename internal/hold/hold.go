// Package hold bounds how often and how long claims are extended.
package hold

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Limits are the bounds of one claim; the zero value of each is no bound.
type Limits struct {
	Count int           // of extends
	Total time.Duration // from the claim to the end of the last lease
	Every time.Duration // between two extends
}

// A Bound is one of the Limits that an extend would go beyond.
type Bound int

// Bounds; zero is none.
const (
	Count Bound = 1 + iota
	Total
	Every
)

// most bounds the claims that a Set knows. Beyond that only kept of them are kept, so
// that to choose them costs little for each claim.
const (
	most = 10_000
	kept = most / 4 * 3
)

// A Set holds claims by key. The zero value is empty and ready to use.
type Set[K comparable] struct {
	mu sync.Mutex
	m  map[K]*claim
}

type claim struct {
	count              int
	began, last, until time.Time // of the claim, the last extend, and the lease
}

// Extend counts one more extend of a claim for lease, and returns what the limits leave
// of that, which is at least least, or which of them it is beyond. A claim whose time,
// claimed, is not known begins with its first extend.
func (s *Set[K]) Extend(key K, claimed time.Time, l Limits, least, lease time.Duration) (time.Duration, Bound) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	c := s.of(key, now)
	if !claimed.IsZero() && claimed.Before(c.began) {
		c.began = claimed
	}
	return c.extend(l, now, least, lease)
}

// Forget drops what is known of a claim that is over.
func (s *Set[K]) Forget(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, key)
}

func (s *Set[K]) of(key K, now time.Time) *claim {
	c := s.m[key]
	if c != nil {
		return c
	}
	if s.m == nil {
		s.m = make(map[K]*claim)
	}
	if len(s.m) >= most {
		s.shrink(now)
	}
	c = &claim{began: now}
	s.m[key] = c
	return c
}

// shrink forgets the claims whose leases are over or end first.
func (s *Set[K]) shrink(now time.Time) {
	maps.DeleteFunc(s.m, func(_ K, c *claim) bool { return c.until.Before(now) })
	if len(s.m) <= kept {
		return
	}
	keys := slices.SortedFunc(maps.Keys(s.m), func(a, b K) int { return s.m[a].until.Compare(s.m[b].until) })
	for _, key := range keys[:len(keys)-kept] {
		delete(s.m, key)
	}
}

func (c *claim) extend(l Limits, now time.Time, least, lease time.Duration) (time.Duration, Bound) {
	left := l.Total - now.Sub(c.began)
	switch {
	case l.Count > 0 && c.count >= l.Count:
		return 0, Count
	case l.Total > 0 && left < least:
		return 0, Total
	case l.Every > 0 && c.count > 0 && now.Sub(c.last) < l.Every:
		return 0, Every
	}
	if l.Total > 0 {
		lease = min(lease, left)
	}
	c.count++
	c.last, c.until = now, now.Add(lease)
	return lease, 0
}
