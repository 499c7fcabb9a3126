package sqlite

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// turn is the right to write, which one at a time in this process has: the
// writer for a group of calls, or a transaction of the program.
//
// It goes round in order of arrival: whoever waits gets it after those that
// were there before, and never after one that came later. It is taken before
// a connection and before the lock of the file, so whoever has it waits for
// nobody who wants it.
type turn struct {
	// tell is told once of a transaction that has been open for long while others
	// wait, and of how many these are.
	tell func(open time.Duration, waiting int)
	long time.Duration // 0: tell nothing

	mu    sync.Mutex
	taken bool
	line  list.List // of *ticket, in order of arrival
	since time.Time // when the transaction was opened that has the turn and was not told of
	watch bool      // a timer will look
}

// longTx is longer than a transaction should ever be open while others wait.
const longTx = 10 * time.Second

// ticket is a place in the line.
type ticket struct {
	come  chan struct{} // closed when its turn has come
	place *list.Element // nil from then on
}

// try takes the turn if nobody has it or waits for it.
func (t *turn) try() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken {
		return false
	}
	t.taken = true
	return true
}

// take waits for the turn until ctx ends.
func (t *turn) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	k := t.join()
	select {
	case <-k.come:
		return nil
	case <-ctx.Done():
		t.leave(k)
		return ctx.Err()
	}
}

// join goes to the end of the line.
func (t *turn) join() *ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := &ticket{come: make(chan struct{})}
	if !t.taken {
		t.taken = true
		close(k.come)
		return k
	}
	k.place = t.line.PushBack(k)
	t.lookLater()
	return k
}

// opened notes that whoever has the turn has opened a transaction.
func (t *turn) opened() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since = time.Now()
}

// lookLater lets one timer run for as long as anybody waits.
func (t *turn) lookLater() {
	if t.long == 0 || t.watch || t.line.Len() == 0 {
		return
	}
	wait := t.long
	if !t.since.IsZero() {
		wait -= time.Since(t.since)
	}
	t.watch = true
	time.AfterFunc(wait, t.look)
}

func (t *turn) look() {
	t.mu.Lock()
	open, waiting := time.Since(t.since), t.line.Len()
	long := !t.since.IsZero() && open >= t.long && waiting > 0
	if long {
		t.since = time.Time{}
	}
	t.watch = false
	t.lookLater()
	t.mu.Unlock()
	if long {
		t.tell(open, waiting)
	}
}

// leave gives up a place in the line, or the turn if it has come meanwhile.
func (t *turn) leave(k *ticket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k.place != nil {
		t.line.Remove(k.place)
		return
	}
	t.next()
}

// give ends the turn: it is that of the first in the line.
func (t *turn) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next()
}

func (t *turn) next() {
	t.since = time.Time{}
	first := t.line.Front()
	if first == nil {
		t.taken = false
		return
	}
	k := t.line.Remove(first).(*ticket)
	k.place = nil
	close(k.come)
}
