package sqlite

import (
	"container/list"
	"context"
	"sync"
)

// turn is the right to write, which one at a time in this process has: the
// writer for a group of calls, or a transaction of the program.
//
// It goes round in order of arrival: whoever waits gets it after those that
// were there before, and never after one that came later. It is taken before
// a connection and before the lock of the file, so whoever has it waits for
// nobody who wants it.
type turn struct {
	mu    sync.Mutex
	taken bool
	line  list.List // of *ticket, in order of arrival
}

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
	return k
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
	first := t.line.Front()
	if first == nil {
		t.taken = false
		return
	}
	k := t.line.Remove(first).(*ticket)
	k.place = nil
	close(k.come)
}
