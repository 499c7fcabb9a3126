package worker

import (
	"cmp"
	"slices"

	"github.com/pawlq/pawl"
)

// A share is what one queue has of slots that are shared by weight. Time in it
// is virtual: each job takes 1/weight of it, and the queue that has had the
// least comes first. Its fields are guarded by Pool.mu.
type share struct {
	queue string
	step  float64 // 1/weight
	had   float64
	dry   bool // the last claim that came to it found less than it asked for
	asked int  // for in the present claim
	got   int  // by it
}

// shareOut gives g slots that are shared by weight.
func (g *group) shareOut(queues []Queue) {
	g.shares = make(map[string]*share, len(queues))
	for _, q := range queues {
		s := &share{queue: q.Name, step: 1 / float64(q.Weight)}
		g.shares[q.Name] = s
		g.order = append(g.order, s)
	}
}

// asks divides n jobs among the queues of g: without weights in strict order,
// each up to all of them.
//
// By weight, queues that had jobs get a number each, by how far they are behind,
// so that they fill the claim. Before them those are asked that had none and so
// are owed their share, after them those that are ahead, which get what is left.
func (g *group) asks(n int) []pawl.QueueAsk {
	asks := make([]pawl.QueueAsk, 0, len(g.queues))
	if g.shares == nil {
		for _, queue := range g.queues {
			asks = append(asks, pawl.QueueAsk{Queue: queue, Max: n})
		}
		return asks
	}
	g.level()
	g.draw(n)
	for _, s := range g.order {
		asks = append(asks, pawl.QueueAsk{Queue: s.queue, Max: s.asked})
	}
	return asks
}

// level lets virtual time begin at what the queue with jobs has had that has
// had the least. Those without jobs save nothing up.
func (g *group) level() {
	wet := func(s *share) bool { return !s.dry }
	if !slices.ContainsFunc(g.order, wet) {
		for _, s := range g.order {
			s.dry = false
		}
	}
	least := g.order[slices.IndexFunc(g.order, wet)].had
	for _, s := range g.order {
		if wet(s) {
			least = min(least, s.had)
		}
	}
	for _, s := range g.order {
		s.asked, s.got = 0, 0
		s.had = max(s.had-least, 0)
	}
}

// draw says how many of n jobs each queue is asked for, and in which order.
func (g *group) draw(n int) {
	g.divide(n)
	weights := 0.0
	for _, s := range g.order {
		weights += 1 / s.step
	}
	slices.SortStableFunc(g.order, func(a, b *share) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.asked, b.asked))
	})
	last := 0
	for i, s := range g.order {
		switch {
		case s.owed():
			s.asked = max(1, int(float64(n)/s.step/weights))
		case s.asked > 0:
			last = i
		default:
			s.asked = n
		}
	}
	g.order[last].asked = n // and what those before do not have
}

// owed reports whether the queue had no jobs and has had no more than others.
func (s *share) owed() bool { return s.dry && s.had <= 0 }

// rank orders the queues of a claim: those owed, those drawn, all others.
func (s *share) rank() int {
	switch {
	case s.owed():
		return 0
	case s.asked > 0:
		return 1
	default:
		return 2
	}
}

// divide divides n jobs among the queues with jobs: each goes to the one that
// will have had the least after what it is asked for already.
func (g *group) divide(n int) {
	wet := slices.DeleteFunc(slices.Clone(g.order), func(s *share) bool { return s.dry })
	slices.SortFunc(wet, func(a, b *share) int { return cmp.Compare(a.after(), b.after()) })
	for range n { // wet is a heap, and begins as one that is sorted
		wet[0].asked++
		sink(wet)
	}
}

// after is what s will have had after what it is asked for.
func (s *share) after() float64 { return s.had + float64(s.asked)*s.step }

// sink restores the order of a heap whose first has grown.
func sink(heap []*share) {
	for i, least := 0, 1; least < len(heap); i, least = least, 2*least+1 {
		if other := least + 1; other < len(heap) && heap[other].after() < heap[least].after() {
			least = other
		}
		if heap[i].after() <= heap[least].after() {
			return
		}
		heap[i], heap[least] = heap[least], heap[i]
	}
}

// arrange puts claimed runs in the order in which their groups start them: in
// that of weighted shares, so that a batch holds no long row of one queue, else
// as they come.
func (p *Pool) arrange(runs []run) []*run {
	all := make([]*run, len(runs))
	weighted := false
	for i := range runs {
		all[i] = &runs[i]
		if g := all[i].group; g != nil && g.shares != nil {
			s := g.shares[all[i].ref.Queue]
			s.got++
			all[i].turn = s.had
			if all[i].kind != nil { // else it does not start
				all[i].charged = s
				s.had += s.step
			}
			weighted = true
		}
	}
	if weighted {
		slices.SortStableFunc(all, func(a, b *run) int { return cmp.Compare(a.turn, b.turn) })
	}
	return all
}

// refund gives back to its queue's share what r was to have, since it does not
// start.
func (r *run) refund() {
	if r.charged != nil {
		r.charged.had -= r.charged.step
		r.charged = nil
	}
}

// drained takes in what the claim has brought and reports whether it has shown
// that no queue of g has more jobs.
func (g *group) drained() bool {
	if g.got >= g.asked || g.shares == nil {
		g.noteDry(true)
		return g.got < g.asked
	}
	g.noteDry(false)
	return !slices.ContainsFunc(g.order, func(s *share) bool { return !s.dry })
}

// noteDry notes which queues had less than they were asked for. Of a claim that
// was filled, those after the last that gave something were not looked at.
func (g *group) noteDry(filled bool) {
	last := len(g.order) - 1
	for filled && last >= 0 && g.order[last].got == 0 {
		last--
	}
	for i, s := range g.order[:last+1] {
		s.dry = s.got < s.asked && !(filled && i == last)
	}
}
