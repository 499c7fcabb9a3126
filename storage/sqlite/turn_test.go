package sqlite

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

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

// A transaction that is open for long is told of once, and only if somebody waits;
// nothing is told of many short ones.
func TestTurnTellsOfLongTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan string, 10)
		began := time.Now()
		turn := turn{long: longTx, tell: func(open time.Duration, waiting int) {
			told <- fmt.Sprint(time.Since(began), ": open ", open, ", waiting ", waiting)
		}}
		open := func() {
			if err := turn.take(t.Context()); err != nil {
				t.Error(err)
			}
			turn.opened()
		}
		open()
		time.Sleep(15 * time.Second) // nobody waits
		for range 2 {
			go func() {
				open()
				time.Sleep(9 * time.Second)
				turn.give()
			}()
			time.Sleep(time.Second)
		}
		time.Sleep(28 * time.Second)
		turn.give()
		time.Sleep(20 * time.Second) // both are done
		open()
		go turn.join()
		time.Sleep(time.Minute)
		for _, want := range []string{"15s: open 15s, waiting 1", "1m15s: open 10s, waiting 1"} {
			if got := <-told; got != want {
				t.Errorf("told %q, want %q", got, want)
			}
		}
		if len(told) > 0 {
			t.Errorf("told %q too", <-told)
		}
	})
}
