package pawl

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// enqueueBlocking stores requests, of which those with Block wait for room.
// What this process claims, cancels, deletes or sweeps makes room at once; what
// others do is found by polling, with growing pauses.
func (q *Queue) enqueueBlocking(ctx context.Context, reqs []*Request) ([]Receipt, error) {
	plain, queues := unblocked(reqs)
	if len(queues) == 0 {
		return q.storage.Enqueue(ctx, reqs)
	}
	receipts, err := q.storage.Enqueue(ctx, plain)
	if !mayFit(reqs, err) {
		return receipts, err
	}
	w := q.rooms.Join(queues)
	defer q.rooms.Leave(w)
	poll := newPoll(q.opts.Poll)
	for {
		receipts, err = q.storage.Enqueue(ctx, plain)
		if !mayFit(reqs, err) {
			return receipts, err
		}
		d := poll.next()
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-w.C:
		case <-time.After(d - d/4 + rand.N(d/2+1)):
		}
	}
}

// enqueueRejecting stores requests in a transaction, which must not be held open
// to wait for room.
func enqueueRejecting(store EnqueueFunc) EnqueueFunc {
	return func(ctx context.Context, reqs []*Request) ([]Receipt, error) {
		plain, _ := unblocked(reqs)
		return store(ctx, plain)
	}
}

// unblocked returns the requests as storages know them, without Block, and the
// queues of those that had it.
func unblocked(reqs []*Request) (plain []*Request, queues []string) {
	plain = reqs
	for i, r := range reqs {
		if r.WhenFull != Block {
			continue
		}
		if len(queues) == 0 {
			plain = slices.Clone(reqs)
		}
		plain[i] = new(*r)
		plain[i].WhenFull = Reject
		if !slices.Contains(queues, r.Queue) {
			queues = append(queues, r.Queue)
		}
	}
	return plain, queues
}

// mayFit reports whether err says that a queue is full, the requests for it are
// to wait, and all of them fit when it has become empty enough.
func mayFit(reqs []*Request, err error) bool {
	var full *FullError
	if !errors.As(err, &full) {
		return false
	}
	n := 0
	for _, r := range reqs {
		if r.Queue == full.Queue && r.WhenFull == Block && r.MaxDepth == full.Limit {
			n++
		}
	}
	return n > 0 && n <= full.Limit
}

// announceRoom wakes one of those who wait for room for each job claimed.
func (q *Queue) announceRoom(claimed []*Job) {
	if q.rooms.Empty() {
		return
	}
	for _, j := range claimed {
		q.rooms.WakeOne(j.Queue)
	}
}
