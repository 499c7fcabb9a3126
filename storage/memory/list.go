package memory

import (
	"context"
	"math"

	"github.com/pawlq/pawl"
)

// List implements [pawl.Admin]. The records of each queue and state lie in
// order, so a page costs O(log n) to find and then what it reads: at most
// maxHold records and queues, those that do not match included.
func (s *Store) List(ctx context.Context, spec pawl.ListSpec) (pawl.Page, error) {
	p := newListing(&spec)
	if spec.Cursor != "" {
		at, err := parseCursor(spec.Cursor)
		if err != nil {
			return pawl.Page{}, err
		}
		p.at = at
	}
	if err := s.lock(ctx); err != nil {
		return pawl.Page{}, err
	}
	s.walk(p)
	s.mu.Unlock()
	detach(p.jobs)
	result := pawl.Page{Jobs: pointers(p.jobs)}
	if p.full {
		result.Next = p.at.String()
	}
	return result, nil
}

// A listing is a List at work.
type listing struct {
	spec    *pawl.ListSpec
	states  [pawl.Canceled + 1]bool
	from    int64 // CreatedAt is at or after it,
	before  int64 // and before it
	at      position
	jobs    []pawl.Job
	records int // records and queues that it may still look at
	bytes   int // payload bytes that it may still hold
	full    bool
}

func newListing(spec *pawl.ListSpec) *listing {
	p := &listing{
		spec:    spec,
		from:    math.MinInt64,
		before:  math.MaxInt64,
		at:      position{queue: spec.Queue, state: pawl.Scheduled, after: beginning},
		records: maxHold,
		bytes:   pawl.MaxPageBytes,
	}
	for _, state := range pawl.States() {
		p.states[state] = len(spec.States) == 0
	}
	for _, state := range spec.States {
		if int(state) < len(p.states) {
			p.states[state] = true
		}
	}
	if !spec.CreatedFrom.IsZero() {
		p.from = micros(spec.CreatedFrom)
	}
	if !spec.CreatedBefore.IsZero() {
		p.before = micros(spec.CreatedBefore)
	}
	return p
}

// walk reads on from p.at until p is full or all is read.
func (s *Store) walk(p *listing) {
	i, found := s.search(p.at.queue)
	for ; i < len(s.sorted); i++ {
		q := s.sorted[i]
		if p.spec.Queue != "" && q.name != p.spec.Queue {
			return
		}
		if !found {
			p.at = position{queue: q.name, state: pawl.Scheduled, after: beginning}
		}
		found = false
		if p.spend(); p.full {
			return
		}
		if p.walk(q); p.full {
			return
		}
	}
}

// walk reads the rest of one queue.
func (p *listing) walk(q *queue) {
	for state := p.at.state; state <= pawl.Canceled; state++ {
		if state != p.at.state {
			p.at.state, p.at.after = state, beginning
		}
		if !p.states[state] {
			continue
		}
		for it := range q.in[state].from(p.at.after.next()) {
			if p.add(q.records.at(it.v), it.key); p.full {
				return
			}
		}
	}
}

// add takes one record into the page if it matches, and moves p.at past it.
func (p *listing) add(r *record, at key) {
	match := p.match(r)
	size := 0
	if match && p.spec.Payloads {
		size = len(r.payload) + len(r.rare().result)
	}
	if p.spend(); p.full || size > p.bytes && len(p.jobs) > 0 {
		p.full = true
		return
	}
	p.at.after = at
	if !match {
		return
	}
	p.bytes -= size
	p.jobs = append(p.jobs, pawl.Job{})
	j := &p.jobs[len(p.jobs)-1]
	r.fill(j)
	if !p.spec.Payloads {
		j.Payload, j.Result = nil, nil
	}
	p.full = len(p.jobs) >= p.spec.Limit
}

// spend counts one record or queue that is looked at.
func (p *listing) spend() {
	p.full = p.records == 0
	p.records--
}

func (p *listing) match(r *record) bool {
	f := &p.spec.Filter
	return (f.Kind == "" || f.Kind == r.terms.kind) &&
		(f.UniqueKey == "" || r.extra != nil && f.UniqueKey == r.extra.uniqueKey) &&
		(f.WorkerID == "" || f.WorkerID == r.worker()) &&
		p.from <= r.createdAt && r.createdAt < p.before
}
