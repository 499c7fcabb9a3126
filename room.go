package pawl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// enqueueBlocking stores requests, of which those with Block wait for room.
// What this process claims, cancels, deletes or sweeps makes room at once; what
// others do is found by polling, with growing pauses.
func (q *Queue) enqueueBlocking(ctx context.Context, reqs []*Request) ([]Receipt, error) {
	plain := unblocked(reqs)
	slack, behind := q.rooms.ahead(reqs)
	if behind {
		plain = modest(plain, slack)
	}
	receipts, err := q.storage.Enqueue(ctx, plain)
	if !errors.Is(err, ErrFull) {
		return receipts, err
	}
	if plain = unblocked(reqs); !behind {
		slack = slackOf(reqs)
	}
	if !waitsFor(slack, err) {
		return receipts, err
	}
	w, first, joined := q.rooms.join(slack, q.opts.MaxWaiters)
	if !joined {
		return nil, fmt.Errorf("%w: %w", ErrTooManyWaiters, fullError(plain, err))
	}
	defer func() { q.rooms.leave(w, receipts) }()
	poll := newPoll(q.opts.Poll)
	for {
		if first { // else those who wait are tried before
			receipts, err = q.storage.Enqueue(ctx, plain)
			if !waitsFor(slack, err) {
				return receipts, err
			}
			q.rooms.passOn(w, err)
		}
		if ctxErr := q.rooms.wait(ctx, w, poll); ctxErr != nil {
			return nil, fmt.Errorf("%w: %w", ctxErr, fullError(plain, err))
		}
		first = true
	}
}

// modest returns the requests as they may be stored although others wait for
// room: if they take none, because the ID or the key is there already, or if
// nothing waits in the queue.
func modest(plain []*Request, slack map[string]int) []*Request {
	plain = slices.Clone(plain)
	for i, r := range plain {
		if _, waits := slack[r.Queue]; waits && r.WhenFull == Reject && r.MaxDepth != Unlimited {
			plain[i] = new(*r)
			plain[i].MaxDepth = 1
		}
	}
	return plain
}

// fullError returns err with the limit that the request has.
func fullError(plain []*Request, err error) error {
	var full *FullError
	if !errors.As(err, &full) {
		return err
	}
	for _, r := range plain {
		if r.Queue == full.Queue && r.WhenFull == Reject && r.MaxDepth != Unlimited {
			return &FullError{r.Queue, r.MaxDepth}
		}
	}
	return err
}

// enqueueRejecting stores requests in a transaction, which must not be held open
// to wait for room.
func enqueueRejecting(store EnqueueFunc) EnqueueFunc {
	return func(ctx context.Context, reqs []*Request) ([]Receipt, error) {
		return store(ctx, unblocked(reqs))
	}
}

// unblocked returns the requests as storages know them, without Block.
func unblocked(reqs []*Request) []*Request {
	plain := reqs
	for i, r := range reqs {
		if r.WhenFull != Block {
			continue
		}
		if &plain[0] == &reqs[0] {
			plain = slices.Clone(reqs)
		}
		plain[i] = new(*r)
		plain[i].WhenFull = Reject
	}
	return plain
}

// slackOf returns the queues for whose room the requests wait, and how many
// waiting jobs each may hold for all of its requests to fit. It is empty if one of
// the queues, of those that do not wait too, could not even be empty enough.
func slackOf(reqs []*Request) map[string]int {
	slack, rejects, jobs := map[string]int{}, map[string]bool{}, map[string]int{}
	for _, r := range reqs {
		jobs[r.Queue]++
		if r.MaxDepth == Unlimited || r.WhenFull == DropOldest {
			continue
		}
		s := r.MaxDepth - jobs[r.Queue]
		if s < 0 {
			return nil
		}
		if old, ok := slack[r.Queue]; !ok || s < old {
			slack[r.Queue] = s
		}
		rejects[r.Queue] = rejects[r.Queue] || r.WhenFull == Reject
	}
	maps.DeleteFunc(slack, func(queue string, _ int) bool { return rejects[queue] })
	return slack
}

// waitsFor reports whether err says that one of the queues is full.
func waitsFor(slack map[string]int, err error) bool {
	var full *FullError
	if !errors.As(err, &full) {
		return false
	}
	_, ok := slack[full.Queue]
	return ok
}

// rooms are the enqueues that wait for room in queues. A queue's first waiter
// polls for all. One that is told of room tries to take it and passes on what it
// has not used, past those for whom tries have shown that there is too little, so
// that this ends soon.
type rooms struct {
	n     atomic.Int64 // waiters
	mu    sync.Mutex
	lines map[string][]*roomWaiter // by queue, in order of arrival
}

type roomWaiter struct {
	slack map[string]int // by queue, as slackOf says
	c     chan room      // at most one: who has one not yet seen will try anyhow
	seen  []room         // what the present try is for
}

// A room is word that a queue may hold more jobs.
type room struct {
	queue string
	one   bool           // it is for one job, and others are told of more
	full  map[string]int // queues that hold more than so many, as tries have shown
}

// ahead reports whether others wait for room that the requests would wait for, and
// then for which.
func (s *rooms) ahead(reqs []*Request) (slack map[string]int, others bool) {
	if s.n.Load() == 0 {
		return nil, false
	}
	slack = slackOf(reqs)
	s.mu.Lock()
	defer s.mu.Unlock()
	return slack, s.awaited(slack)
}

// awaited reports whether somebody waits for one of the queues. The lock is held.
func (s *rooms) awaited(slack map[string]int) bool {
	for queue := range slack {
		if len(s.lines[queue]) > 0 {
			return true
		}
	}
	return false
}

// join adds a waiter, which is the first one if nobody waits for any of its queues.
func (s *rooms) join(slack map[string]int, most int) (w *roomWaiter, first, joined bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n.Load() >= int64(most) {
		return nil, false, false
	}
	first = !s.awaited(slack)
	s.n.Add(1)
	w = &roomWaiter{slack: slack, c: make(chan room, 1)}
	if s.lines == nil {
		s.lines = map[string][]*roomWaiter{}
	}
	for queue := range slack {
		s.lines[queue] = append(s.lines[queue], w)
	}
	return w, first, true
}

// leave removes w, which got the receipts. Room that w was told of and has not
// used goes to others.
func (s *rooms) leave(w *roomWaiter, receipts []Receipt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n.Add(-1)
	for queue := range w.slack {
		line := slices.DeleteFunc(s.lines[queue], func(o *roomWaiter) bool { return o == w })
		if s.lines[queue] = line; len(line) == 0 {
			delete(s.lines, queue)
		}
	}
	select {
	case r := <-w.c:
		s.tell(r)
	default:
	}
	for _, r := range w.seen {
		if !r.usedUp(receipts) {
			s.tell(r)
		}
	}
}

func (r room) usedUp(receipts []Receipt) bool {
	return r.one && slices.ContainsFunc(receipts, func(got Receipt) bool {
		return got.Queue == r.queue && got.Status == Stored
	})
}

// wait returns when w is to try again, or with ctx's error.
func (s *rooms) wait(ctx context.Context, w *roomWaiter, poll *poll) error {
	for {
		d := poll.next()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r := <-w.c:
			if w.seen = []room{r}; !r.one { // others make room: w may be the next to poll
				poll.again()
			}
			return nil
		case <-time.After(d - d/4 + rand.N(d/2+1)):
			if w.seen = s.led(w); len(w.seen) > 0 {
				return nil
			}
		}
	}
}

// led returns the queues for which w polls.
func (s *rooms) led(w *roomWaiter) (led []room) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for queue := range w.slack {
		if s.lines[queue][0] == w {
			led = append(led, room{queue: queue})
		}
	}
	return led
}

// passOn passes on what w was told of, after a try that ended with err.
func (s *rooms) passOn(w *roomWaiter, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range w.seen {
		s.tell(r.learn(w, err))
	}
	w.seen = nil
}

// learn returns r with what a try of w has shown, which ended with err: w itself
// does not fit, for one. Others may hold r.full as well.
func (r room) learn(w *roomWaiter, err error) room {
	var full *FullError
	if errors.As(err, &full) {
		known := map[string]int{full.Queue: w.slack[full.Queue]}
		for queue, more := range r.full {
			known[queue] = max(more, known[queue])
		}
		r.full = known
	}
	return r
}

// tell tells the first waiter who can use r, as far as is known.
func (s *rooms) tell(r room) {
	for _, w := range s.lines[r.queue] {
		if w.fits(r.full) && w.told(r) {
			return
		}
	}
}

func (w *roomWaiter) fits(full map[string]int) bool {
	for queue, more := range full {
		if slack, ok := w.slack[queue]; ok && slack <= more {
			return false
		}
	}
	return true
}

func (w *roomWaiter) told(r room) bool {
	select {
	case w.c <- r:
		return true
	default:
		return false
	}
}

// announceRoom tells one of those who wait for room of each job claimed.
func (q *Queue) announceRoom(claimed []*Job) {
	s := &q.rooms
	if s.n.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range claimed {
		s.tell(room{queue: j.Queue, one: true})
	}
}

// announceRooms tells of room somewhere.
func (q *Queue) announceRooms() {
	s := &q.rooms
	if s.n.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for queue := range s.lines {
		s.tell(room{queue: queue})
	}
}
