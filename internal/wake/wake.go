// Package wake lets goroutines wait for things that are told apart by a key.
package wake

import (
	"slices"
	"sync"
	"sync/atomic"
)

// A Set holds waiters by key. The zero value is empty and ready to use.
type Set[K comparable] struct {
	n  atomic.Int64
	mu sync.Mutex
	m  map[K][]*Waiter[K]
}

// A Waiter waits for its keys. A receive from C returns when it was woken since
// the last receive.
type Waiter[K comparable] struct {
	C    <-chan struct{}
	c    chan struct{}
	keys []K
}

// Join adds a waiter for keys, which must not be changed until Leave.
func (s *Set[K]) Join(keys []K) *Waiter[K] {
	c := make(chan struct{}, 1)
	w := &Waiter[K]{C: c, c: c, keys: keys}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = make(map[K][]*Waiter[K])
	}
	for _, k := range keys {
		s.m[k] = append(s.m[k], w)
	}
	s.n.Add(1)
	return w
}

// Leave removes w. A wake-up that w did not see goes to others, since it may
// have been the only one sent.
func (s *Set[K]) Leave(w *Waiter[K]) {
	s.mu.Lock()
	s.n.Add(-1)
	for _, k := range w.keys {
		rest := slices.DeleteFunc(s.m[k], func(o *Waiter[K]) bool { return o == w })
		if len(rest) == 0 {
			delete(s.m, k)
		} else {
			s.m[k] = rest
		}
	}
	s.mu.Unlock()
	select {
	case <-w.c:
		for _, k := range w.keys {
			s.WakeOne(k)
		}
	default:
	}
}

// Empty reports, without locking, whether nobody waits.
func (s *Set[K]) Empty() bool { return s.n.Load() == 0 }

// Count returns how many wait for k.
func (s *Set[K]) Count(k K) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.m[k])
}

// WakeOne wakes a waiter for k that has no wake-up pending, if there is one.
// Successive calls take turns.
func (s *Set[K]) WakeOne(k K) {
	if s.Empty() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	waiters := s.m[k]
	for i, w := range waiters {
		if w.wake() {
			copy(waiters[i:], waiters[i+1:])
			waiters[len(waiters)-1] = w
			return
		}
	}
}

// WakeEach wakes all that wait for k.
func (s *Set[K]) WakeEach(k K) {
	if s.Empty() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.m[k] {
		w.wake()
	}
}

// WakeAll wakes all waiters.
func (s *Set[K]) WakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, waiters := range s.m {
		for _, w := range waiters {
			w.wake()
		}
	}
}

func (w *Waiter[K]) wake() bool {
	select {
	case w.c <- struct{}{}:
		return true
	default:
		return false
	}
}
