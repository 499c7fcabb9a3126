package pawl

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// ExtendLimits bound how often and how long a claim is extended by hand, so
// that a worker that goes on touching a job it does nothing for loses it. The
// zero value of each field is no bound. They hold for the claim, with whichever
// Job of its ID and fence it is extended. Each Queue counts its own calls, those
// that failed too, for 10,000 claims at a time: beyond that it forgets up to a
// quarter of them, those whose leases end first. Pools do not mind them: Timeout
// bounds what their heartbeats keep.
//
// An Extend beyond them is an [InvalidError]. Its Field is "ExtendLimits.Every" if
// the call may be made again later, and "ExtendLimits.Count" or
// "ExtendLimits.Total" if there is no more for this claim.
type ExtendLimits struct {
	Count int // Extends of one claim

	// Total is how long after the claim a lease may reach: the last Extend gets
	// what is left. The clock is that of this process, also where another made
	// the claim. A Job made of a Ref alone does not say when it was claimed: if it
	// was not extended with another one, the time begins with its first Extend.
	Total time.Duration

	Every time.Duration // between two
}

// maxHolds bounds the claims of which a Queue knows how they were extended. Beyond
// that only keptHolds are kept, so that to choose them costs little for each claim.
const (
	maxHolds  = 10_000
	keptHolds = maxHolds / 4 * 3
)

// holds are the claims that a Queue extends by hand.
type holds struct {
	mu sync.Mutex
	m  map[holdKey]*hold
}

type holdKey struct {
	id    ID
	fence int64
}

// A hold is what a Queue remembers of a claim that it extends.
type hold struct {
	count              int
	began, last, until time.Time // of the claim, the last Extend, and the lease
}

// mayExtend returns the lease that the limits leave of the one asked for, and
// counts one more Extend.
func (q *Queue) mayExtend(j *Job, lease time.Duration) (time.Duration, error) {
	if q.opts.ExtendLimits == (ExtendLimits{}) {
		return lease, nil
	}
	q.holds.mu.Lock()
	defer q.holds.mu.Unlock()
	now := time.Now()
	return q.holds.of(j, now).admit(q.opts.ExtendLimits, now, lease)
}

// of returns what is known of j's claim.
func (s *holds) of(j *Job, now time.Time) *hold {
	key := holdKey{j.ID, j.Fence}
	h := s.m[key]
	if h == nil {
		if s.m == nil {
			s.m = map[holdKey]*hold{}
		}
		if len(s.m) >= maxHolds {
			s.shrink(now)
		}
		h = &hold{began: now}
		s.m[key] = h
	}
	began := j.claimed
	if began.IsZero() { // this Queue did not claim it, or j was read since
		began = j.ClaimedAt
	}
	if !began.IsZero() && began.Before(h.began) {
		h.began = began
	}
	return h
}

// shrink makes room.
func (s *holds) shrink(now time.Time) {
	maps.DeleteFunc(s.m, func(_ holdKey, h *hold) bool { return h.until.Before(now) })
	if len(s.m) <= keptHolds {
		return
	}
	keys := slices.SortedFunc(maps.Keys(s.m), func(a, b holdKey) int { return s.m[a].until.Compare(s.m[b].until) })
	for _, key := range keys[:len(keys)-keptHolds] {
		delete(s.m, key)
	}
}

// forget drops what is known of a claim that is over.
func (s *holds) forget(r Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, holdKey{r.ID, r.Fence})
}

func (h *hold) admit(l ExtendLimits, now time.Time, lease time.Duration) (time.Duration, error) {
	left := l.Total - now.Sub(h.began)
	switch {
	case l.Count > 0 && h.count >= l.Count:
		return 0, &InvalidError{"ExtendLimits.Count", fmt.Sprintf("kept: at most %d Extends of one claim", l.Count)}
	case l.Total > 0 && left < MinLease:
		return 0, &InvalidError{"ExtendLimits.Total", fmt.Sprintf("kept: leases of at most %v after the claim", l.Total)}
	case l.Every > 0 && h.count > 0 && now.Sub(h.last) < l.Every:
		return 0, &InvalidError{"ExtendLimits.Every", fmt.Sprintf("kept: %v after the Extend before", l.Every)}
	}
	if l.Total > 0 {
		lease = min(lease, left)
	}
	h.count++
	h.last, h.until = now, now.Add(lease)
	return lease, nil
}

// queueNames are those that a Queue enqueues to.
type queueNames struct {
	mu    sync.Mutex
	names map[string]*queueName
}

type queueName struct {
	used  bool // an enqueue succeeded
	tries int  // enqueues under way
}

// admit lets requests for queues beyond the first so many be refused, and counts
// those queues to which the enqueue succeeds, which done is to be told.
func (n *queueNames) admit(reqs []*Request, most int) (done func(err error), err error) {
	if most <= 0 {
		return func(error) {}, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.names == nil {
		n.names = map[string]*queueName{}
	}
	var tried []string
	for _, r := range reqs {
		name := n.names[r.Queue]
		if name == nil && len(n.names) >= most {
			n.done(tried, false)
			return nil, &InvalidError{"Queue", fmt.Sprintf(
				"one of the %d that Options.MaxQueues lets this Queue enqueue to, and %q is one more", most, r.Queue)}
		}
		if name == nil {
			name = &queueName{}
			n.names[r.Queue] = name
		}
		name.tries++
		tried = append(tried, r.Queue)
	}
	return func(err error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.done(tried, err == nil)
	}, nil
}

func (n *queueNames) done(tried []string, used bool) {
	for _, queue := range tried {
		name := n.names[queue]
		name.tries--
		if name.used = name.used || used; !name.used && name.tries == 0 {
			delete(n.names, queue)
		}
	}
}
