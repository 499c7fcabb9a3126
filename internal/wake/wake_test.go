package wake

import (
	"sync"
	"testing"
)

func woken[K comparable](w *Waiter[K]) bool {
	select {
	case <-w.C:
		return true
	default:
		return false
	}
}

func TestWakeOneTakesTurns(t *testing.T) {
	var s Set[string]
	a, b := s.Join([]string{"q"}), s.Join([]string{"q", "r"})
	s.WakeOne("q")
	s.WakeOne("q")
	if !woken(a) || !woken(b) {
		t.Error("two wake-ups did not reach two waiters")
	}
	s.WakeOne("r")
	if woken(a) || !woken(b) {
		t.Error("a wake-up reached the wrong key")
	}
	s.WakeOne("none")
	if woken(a) || woken(b) {
		t.Error("a wake-up without waiters reached someone")
	}
}

func TestLeavePassesAnUnseenWakeUpOn(t *testing.T) {
	var s Set[string]
	a, b := s.Join([]string{"q"}), s.Join([]string{"q"})
	s.WakeOne("q")
	s.Leave(a)
	if !woken(b) {
		t.Error("the wake-up left with its waiter")
	}
	if n := s.Count("q"); n != 1 {
		t.Errorf("%d waiters left, want 1", n)
	}
	s.Leave(b)
	if !s.Empty() || len(s.m) != 0 {
		t.Error("the set is not empty")
	}
}

func TestWakeEachAndAll(t *testing.T) {
	var s Set[int]
	a, b, c := s.Join([]int{1}), s.Join([]int{1}), s.Join([]int{2})
	s.WakeEach(1)
	if !woken(a) || !woken(b) || woken(c) {
		t.Error("WakeEach(1) did not reach just the waiters for 1")
	}
	s.WakeAll()
	if !woken(a) || !woken(b) || !woken(c) {
		t.Error("WakeAll did not reach all")
	}
}

// Each of many wake-ups sent while waiters come and go is seen by a waiter, as
// long as one stays.
func TestNoWakeUpIsLost(t *testing.T) {
	var s Set[string]
	stay := s.Join([]string{"q"})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				w := s.Join([]string{"q"})
				s.WakeOne("q")
				s.Leave(w)
			}
		})
	}
	wg.Wait()
	if !woken(stay) {
		t.Error("all wake-ups were lost")
	}
}
