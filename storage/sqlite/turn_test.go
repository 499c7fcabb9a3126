package sqlite

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func (t *turn) waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.line.Len()
}

// The turn goes round in order of arrival, past those who have given up.
func TestTurnIsFair(t *testing.T) {
	var turn turn
	if !turn.try() || turn.try() {
		t.Fatal("want the turn once")
	}
	const n = 20
	got := make(chan int, n)
	gone, leave := context.WithCancel(t.Context())
	left := make(chan error, n)
	var want []int
	for i := range n {
		ctx := t.Context()
		if i%3 == 1 {
			ctx = gone
		} else {
			want = append(want, i)
		}
		go func() {
			if err := turn.take(ctx); err != nil {
				left <- err
				return
			}
			got <- i
			turn.give()
		}()
		for turn.waiting() <= i {
			runtime.Gosched()
		}
	}
	leave()
	for range n - len(want) {
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	}
	turn.give()
	var order []int
	for range want {
		order = append(order, <-got)
	}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Error(diff)
	}
	if err := turn.take(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	// Who leaves with the turn passes it on.
	k := turn.join()
	<-k.come
	turn.leave(k)
	if !turn.try() {
		t.Error("the turn is lost")
	}
}
