package worker

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Health says how a pool is. It follows progress, not occupancy: a pool whose
// slots are all busy with long jobs is well.
type Health struct {
	// Live is false if only a new process can help: the slots of a queue are
	// all held by handlers that ignore the end of their contexts; for a minute a
	// call of the storage, which is given ten seconds, does not return; or the
	// pool claims no more because so many calls of OnError and OnBury wait, and
	// for a minute one of them does not return.
	Live bool
	// Ready is false while the pool does not take up jobs: before Run and until
	// the storage has answered the first claim, from stop on, and while for some
	// time the storage fails or does not return, or the hooks do not keep up.
	Ready bool
	// Reason says what is wrong, or is empty.
	Reason string
	// LastProgress is when a job ended or the storage last answered.
	LastProgress time.Time
}

const (
	// unreadyAfter is how long the storage may fail before the pool counts as
	// not ready; shorter failures are common and heal.
	unreadyAfter = 10 * time.Second
	// deadAfter is how long what has to go on may stand still.
	deadAfter = time.Minute
)

// Health returns how the pool is.
func (p *Pool) Health() Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := examination{now: p.now(), live: true}
	p.examineLife(&e)
	p.examineSlots(&e)
	p.examineHooks(&e)
	p.examineCalls(&e)
	p.examineOutages(&e)
	return Health{
		Live: e.live, Ready: len(e.reasons) == 0, Reason: strings.Join(e.reasons, "; "),
		LastProgress: p.wall(p.progress),
	}
}

// An examination collects what is wrong.
type examination struct {
	now     instant
	live    bool
	reasons []string
}

func (e *examination) found(dead bool, format string, args ...any) {
	e.live = e.live && !dead
	e.reasons = append(e.reasons, fmt.Sprintf(format, args...))
}

// since returns how long ago t was, as reasons say it.
func (e *examination) since(t instant) time.Duration { return e.now.sub(t).Round(time.Second) }

func (p *Pool) examineLife(e *examination) {
	switch {
	case p.stopping:
		e.found(false, "stopping")
	case !p.started:
		e.found(false, "not running")
	case p.stats.Claims == 0:
		e.found(false, "storage has not answered yet")
	}
}

func (p *Pool) examineSlots(e *examination) {
	for _, g := range p.groups {
		if g.slots == 0 && !p.closing {
			e.found(true, "all slots of %s are stuck", strings.Join(g.queues, ", "))
		}
	}
}

func (p *Pool) examineHooks(e *examination) {
	if behind := e.now.sub(p.behindSince); behind >= unreadyAfter {
		stuck := e.now.sub(max(p.behindSince, p.doingSince)) >= deadAfter
		e.found(stuck && !p.stopping, "hooks do not keep up for %v", e.since(p.behindSince))
	}
}

func (p *Pool) examineCalls(e *examination) {
	calls := p.longest()
	for _, what := range slices.Sorted(maps.Keys(calls)) {
		if d := e.now.sub(calls[what]); needed(what) && d >= callTimeout+unreadyAfter {
			e.found(d >= deadAfter && !p.stopping, "a call to %s does not return for %v", what, e.since(calls[what]))
		}
	}
}

func (p *Pool) examineOutages(e *examination) {
	for _, what := range slices.Sorted(maps.Keys(p.bad)) {
		if since := p.bad[what]; needed(what) && e.now.sub(since) >= unreadyAfter {
			e.found(false, "storage fails to %s for %v", what, e.since(since))
		}
	}
}

// needed reports whether jobs suffer while the storage fails to do what.
func needed(what string) bool { return what != "watch" && what != "count" }
