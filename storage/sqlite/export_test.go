package sqlite

import (
	"context"
	"runtime"
)

// Hold makes the writer wait for its turn with a request of no effect in hand,
// so that all that come until release share the next commit.
func Hold(ctx context.Context, s *Store) (release func() error) {
	s.turn <- struct{}{}
	r := &request{ctx: ctx, run: func(*batch) error { return nil }}
	done := make(chan error)
	go func() { done <- s.writer.do(r) }()
	for !r.taken.Load() {
		runtime.Gosched()
	}
	return func() error {
		<-s.turn
		return <-done
	}
}

// Waiting is how many requests wait for the next commit.
func Waiting(s *Store) int {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	return len(s.writer.queue)
}

// InHand reports whether the writer has its turn.
func InHand(s *Store) bool { return len(s.turn) == 1 }
