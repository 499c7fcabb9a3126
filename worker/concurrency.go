package worker

import (
	"fmt"

	"github.com/pawlq/pawl"
)

// SetConcurrency changes how many jobs of the queue run at the same time, or of
// all queues that share its slots: 1 to 100,000. It may be called before Run, and
// while the pool runs takes effect with the next claim. Jobs that run are never
// cut: when there are more than n, none starts until enough have ended, and those
// that were claimed ahead are handed back. It returns an error that matches
// ErrInvalid if the pool does not serve the queue or n is out of bounds.
func (p *Pool) SetConcurrency(queue string, n int) error {
	switch {
	case p.err != nil:
		return p.err
	case p.byQueue[queue] == nil:
		return fmt.Errorf("worker: %w", &pawl.InvalidError{Field: "Queue", Limit: fmt.Sprintf("one that the pool serves, not %q", queue)})
	case n < 1 || n > maxConcurrency:
		return fmt.Errorf("worker: queue %q: %w", queue, &pawl.InvalidError{Field: "Concurrency", Limit: fmt.Sprintf("between 1 and %d", maxConcurrency)})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.byQueue[queue]
	g.shrunk = g.shrunk || n < g.limit
	g.limit = n
	if !p.begun {
		g.slots = n
		return nil
	}
	for r := range p.live.all { // slots that were too many may be lacking now
		if r.spare && r.group == g && g.slots < g.target() {
			r.spare = false
			g.lost++
		}
	}
	p.replaceLost() // of which there may be more by now
	p.fill(g)
	p.trim(g)
	g.work.Broadcast() // for those too many to end
	p.announce(g)
	return nil
}

// target is how many slots the group is to have beside those that handlers hold
// which were given up.
func (g *group) target() int { return max(g.limit-g.lost, 0) }

// width is how many runs can start and be at work at the same time.
func (g *group) width() int { return min(g.slots, g.target()) }

// fill starts the slots that g lacks.
func (p *Pool) fill(g *group) {
	for !p.closing && g.slots < g.target() {
		g.slots++
		p.startSlot(g)
	}
}

// trim hands back what waits for slots that are to be no more, those first that
// would wait longest.
func (p *Pool) trim(g *group) {
	if !g.shrunk {
		return
	}
	keep := g.width() + g.prefetch(p.now()) - g.running
	p.handBackReady(g, func(*run) bool { keep--; return keep < 0 })
}

// retire reports whether the slot that asks is one too many, which then ends.
// Should it have been woken for a run, so have all others.
func (g *group) retire() bool {
	if g.slots <= g.target() {
		return false
	}
	g.slots--
	return true
}
