// Package room lets callers wait in line for room in queues.
package room

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl/internal/wake"
)

// Lines are the callers that wait for room in queues. A queue's first waiter polls
// for all. One that is told of room tries to take it and passes on what it has not
// used, past those for whom tries have shown that there is too little, so that this
// ends soon. The zero value is empty and ready to use.
type Lines struct {
	n     atomic.Int64 // waiters
	mu    sync.Mutex
	lines map[string][]*Waiter // by queue, in order of arrival
}

// A Waiter waits for room in all its queues.
type Waiter struct {
	slack map[string]int // how many jobs each queue may hold for all of the waiter's to fit
	c     chan room      // at most one: who has one not yet seen will try anyhow
	seen  []room         // what the present try is for
}

// A room is word that a queue may hold more jobs.
type room struct {
	queue string
	one   bool           // it is for one job, and others are told of more
	full  map[string]int // queues that hold more than so many, as tries have shown
}

// Empty reports, without locking, whether nobody waits.
func (s *Lines) Empty() bool { return s.n.Load() == 0 }

// Awaited reports whether somebody waits for one of the queues of slack.
func (s *Lines) Awaited(slack map[string]int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.awaited(slack)
}

// awaited is Awaited with the lock held.
func (s *Lines) awaited(slack map[string]int) bool {
	for queue := range slack {
		if len(s.lines[queue]) > 0 {
			return true
		}
	}
	return false
}

// Join adds a waiter, unless there are most. It is the first one if nobody waits for any
// of its queues. It waits for room in the queues of slack, each of which may hold so many
// jobs for all of its own to fit.
func (s *Lines) Join(slack map[string]int, most int) (w *Waiter, first, joined bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n.Load() >= int64(most) {
		return nil, false, false
	}
	first = !s.awaited(slack)
	s.n.Add(1)
	w = &Waiter{slack: slack, c: make(chan room, 1)}
	if s.lines == nil {
		s.lines = make(map[string][]*Waiter)
	}
	for queue := range slack {
		s.lines[queue] = append(s.lines[queue], w)
	}
	return w, first, true
}

// Leave removes w. Room that w was told of and has not used goes to others; stored
// reports whether w has stored a job in a queue.
func (s *Lines) Leave(w *Waiter, stored func(queue string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n.Add(-1)
	for queue := range w.slack {
		line := slices.DeleteFunc(s.lines[queue], func(o *Waiter) bool { return o == w })
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
		if !r.one || !stored(r.queue) {
			s.tell(r)
		}
	}
}

// Wait returns when w is to try again, or with ctx's error.
func (s *Lines) Wait(ctx context.Context, w *Waiter, poll *wake.Poll) error {
	for {
		d := poll.Next()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r := <-w.c:
			if w.seen = []room{r}; !r.one { // others make room: w may be the next to poll
				poll.Again()
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
func (s *Lines) led(w *Waiter) (led []room) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for queue := range w.slack {
		if s.lines[queue][0] == w {
			led = append(led, room{queue: queue})
		}
	}
	return led
}

// PassOn passes on what w was told of, after a try that found a queue full.
func (s *Lines) PassOn(w *Waiter, full string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range w.seen {
		s.tell(r.learn(full, w.slack[full]))
	}
	w.seen = nil
}

// learn returns r with what a try has shown: the queue holds more jobs than so many.
// Others may hold r.full as well.
func (r room) learn(queue string, most int) room {
	known := map[string]int{queue: most}
	for queue, more := range r.full {
		known[queue] = max(more, known[queue])
	}
	r.full = known
	return r
}

// Tell tells one waiter of room for one job in each of the queues.
func (s *Lines) Tell(queues ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, queue := range queues {
		s.tell(room{queue: queue, one: true})
	}
}

// TellAll tells of room somewhere.
func (s *Lines) TellAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for queue := range s.lines {
		s.tell(room{queue: queue})
	}
}

// tell tells the first waiter who can use r, as far as is known.
func (s *Lines) tell(r room) {
	for _, w := range s.lines[r.queue] {
		if w.fits(r.full) && w.told(r) {
			return
		}
	}
}

func (w *Waiter) fits(full map[string]int) bool {
	for queue, more := range full {
		if slack, ok := w.slack[queue]; ok && slack <= more {
			return false
		}
	}
	return true
}

func (w *Waiter) told(r room) bool {
	select {
	case w.c <- r:
		return true
	default:
		return false
	}
}
