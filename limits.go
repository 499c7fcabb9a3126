package pawl

import (
	"fmt"
	"sync"
	"time"
)

// ExtendLimits bound how often and how long a claim is extended by hand, so
// that a worker that goes on touching a job it does nothing for loses it. The
// zero value of each field is no bound. Calls that failed count, too. Pools do not
// mind them: Timeout bounds what their heartbeats keep.
type ExtendLimits struct {
	Count int           // Extends of one claim
	Total time.Duration // after the claim, or where this process did not make it, after the first Extend
	Every time.Duration // between two
}

// A hold is what a process remembers of a claim that it extends.
type hold struct {
	mu          sync.Mutex
	count       int
	began, last time.Time
}

// hold lets the claims of jobs begin now.
func (q *Queue) hold(jobs []*Job) {
	if q.opts.ExtendLimits == (ExtendLimits{}) {
		return
	}
	now := time.Now()
	for _, j := range jobs {
		j.hold = &hold{began: now}
	}
}

// mayExtend reports whether the limits allow one more Extend, and counts it.
func (q *Queue) mayExtend(j *Job) error {
	if q.opts.ExtendLimits == (ExtendLimits{}) {
		return nil
	}
	now := time.Now()
	q.holds.Lock()
	if j.hold == nil { // this process did not claim it
		j.hold = &hold{began: now}
	}
	h := j.hold
	q.holds.Unlock()
	return h.admit(q.opts.ExtendLimits, now)
}

func (h *hold) admit(l ExtendLimits, now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case l.Count > 0 && h.count >= l.Count:
		return &InvalidError{"Extend", fmt.Sprintf("called at most %d times in one claim", l.Count)}
	case l.Total > 0 && now.Sub(h.began) > l.Total:
		return &InvalidError{"Extend", fmt.Sprintf("called within %v of the claim", l.Total)}
	case l.Every > 0 && h.count > 0 && now.Sub(h.last) < l.Every:
		return &InvalidError{"Extend", fmt.Sprintf("called %v after the last one", l.Every)}
	}
	h.count++
	h.last = now
	return nil
}

// queueNames are those that a process enqueues to.
type queueNames struct {
	mu   sync.Mutex
	seen map[string]bool
}

// admit notes the queues of the requests, all or, if they are too many, none.
func (n *queueNames) admit(reqs []*Request, most int) error {
	if most <= 0 {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen == nil {
		n.seen = make(map[string]bool)
	}
	var fresh []string
	for _, r := range reqs {
		if n.seen[r.Queue] {
			continue
		}
		if len(n.seen) >= most {
			for _, name := range fresh {
				delete(n.seen, name)
			}
			return &InvalidError{"Queue", fmt.Sprintf("one of at most %d", most)}
		}
		n.seen[r.Queue] = true
		fresh = append(fresh, r.Queue)
	}
	return nil
}
