package sqlite

import (
	"context"
	"time"
)

// Hold takes the turn, so that all that come until release share the next
// commit.
func Hold(ctx context.Context, s *Store) (release func() error) {
	err := s.turn.take(ctx)
	return func() error {
		s.turn.give()
		return err
	}
}

// Waiting is how many requests wait for the next commit.
func Waiting(s *Store) int {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	return s.writer.queue.Len()
}

// InLine is how many wait for their turn to write.
func InLine(s *Store) int {
	s.turn.mu.Lock()
	defer s.turn.mu.Unlock()
	return s.turn.line.Len()
}

// InHand reports whether someone has the turn.
func InHand(s *Store) bool {
	s.turn.mu.Lock()
	defer s.turn.mu.Unlock()
	return s.turn.taken
}

// Connections is how many the Store and the program have to the file.
func Connections(s *Store) int {
	n := s.writes.Stats().OpenConnections + s.reads.Stats().OpenConnections
	return n + int(s.opened.Load())
}

// Steady gives a store with a clock of the test a steady one to compare it
// with. It is to be called before any other.
func Steady(s *Store, clock func() time.Duration) { s.steady = clock }

// LongTx sets after which time others are told of. It is to be called before any
// other.
func LongTx(s *Store, d time.Duration) { s.turn.long = d }

// Refused reports whether the file has been out of reach since the last commit.
func Refused(s *Store) bool {
	s.writer.delays.mu.Lock()
	defer s.writer.delays.mu.Unlock()
	return !s.writer.delays.from.IsZero()
}

// LayWireAtOnce makes the first look of a Watch lay the wire, and reports
// whether that can be. It is to be called before any Watch.
func LayWireAtOnce(s *Store) bool {
	w, err := newWire(func() {})
	if err != nil {
		return false
	}
	w.close()
	s.writer.quiet = wirePolls
	return true
}
