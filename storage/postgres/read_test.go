package postgres_test

import (
	"errors"
	"testing"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
)

// TestCursorOfAnotherQueue is refused, since it says nothing about this one.
func TestCursorOfAnotherQueue(t *testing.T) {
	s := fresh(t, postgres.Options{})
	for range 2 {
		enqueue(t, s, pawl.Request{Queue: "a"})
	}
	list := pawl.ListSpec{Filter: pawl.Filter{Queue: "a"}, Limit: 1}
	page, err := s.List(t.Context(), list)
	if err != nil || page.Next == "" {
		t.Fatal(page, err)
	}
	list.Queue, list.Cursor = "b", page.Next
	if page, err := s.List(t.Context(), list); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("got %+v and error %v, want ErrInvalid", page, err)
	}
}
