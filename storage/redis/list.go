package redis

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/pawlq/pawl"
)

func (s *Store) list(ctx context.Context, spec pawl.ListSpec) (pawl.Page, error) {
	p := &page{s: s, spec: spec, budget: scanPerPage, bytes: pawl.MaxPageBytes, at: position{state: pawl.Scheduled}}
	if spec.Cursor != "" {
		at, err := parseCursor(spec.Cursor)
		if err != nil {
			return pawl.Page{}, err
		}
		p.at = at
	}
	queues, err := s.asked(ctx, spec.Queue)
	if err != nil {
		return pawl.Page{}, err
	}
	for _, queue := range queues {
		if queue < p.at.queue {
			continue
		}
		if queue > p.at.queue {
			p.at = position{queue: queue, state: pawl.Scheduled}
		}
		if err := p.readQueue(ctx); err != nil {
			return pawl.Page{}, err
		}
		if p.full {
			return pawl.Page{Jobs: p.jobs, Next: p.at.String()}, nil
		}
	}
	return pawl.Page{Jobs: p.jobs}, nil
}

// page is a List at work.
type page struct {
	s      *Store
	spec   pawl.ListSpec
	at     position
	jobs   []*pawl.Job
	budget int // jobs that it may still look at
	bytes  int // payload bytes that it may still hold
	full   bool
}

func (p *page) readQueue(ctx context.Context) error {
	for state := p.at.state; state <= pawl.Canceled; state++ {
		if state != p.at.state {
			p.at = position{queue: p.at.queue, state: state}
		}
		if len(p.spec.States) > 0 && !slices.Contains(p.spec.States, state) {
			continue
		}
		for more := true; more; {
			var err error
			if more, err = p.step(ctx); err != nil || p.full {
				return err
			}
		}
	}
	p.budget-- // for a queue, even if it is empty
	p.full = p.budget <= 0
	if p.full {
		p.at.state = pawl.Canceled
	}
	return nil
}

// step reads a piece of a state, and reports whether there is more of it.
func (p *page) step(ctx context.Context) (more bool, err error) {
	count := min(scanPerStep, p.budget)
	if p.matchesAll() {
		count = min(count, p.spec.Limit-len(p.jobs))
	}
	pieces := make([]*piece, 0, 1)
	for _, t := range p.s.shards.tags(p.at.queue) {
		one, err := p.read(ctx, t, count)
		if err != nil {
			return false, err
		}
		pieces = append(pieces, one)
	}
	for {
		first := slices.MinFunc(pieces, comparePieces)
		if len(first.entries) == 0 {
			return first.more, nil
		}
		e := first.entries[0]
		first.entries = first.entries[1:]
		if p.add(first.tag, &e); p.full {
			return true, nil
		}
	}
}

// A piece is what was read of a state under one tag.
type piece struct {
	tag     tag
	entries []entry
	more    bool // there are entries behind these
}

// An entry is a job at its place in a state. Entries of all shards of a queue are in
// one order, so that a position is one for all.
type entry struct {
	score  int64
	member string
	id     pawl.ID
	stored stored
}

// comparePieces puts the piece first whose next entry comes first. One whose next
// entry is still to be read comes before all others, and one at its end after them.
func comparePieces(a, b *piece) int {
	rank := func(p *piece) int {
		switch {
		case len(p.entries) > 0:
			return 1
		case p.more:
			return 0
		default:
			return 2
		}
	}
	if c := cmp.Compare(rank(a), rank(b)); c != 0 || len(a.entries) == 0 {
		return c
	}
	x, y := &a.entries[0], &b.entries[0]
	return cmp.Or(cmp.Compare(x.score, y.score), cmp.Compare(x.member, y.member))
}

// read reads a piece from p.at on.
func (p *page) read(ctx context.Context, t tag, count int) (*piece, error) {
	reply, err := p.s.run(ctx, p.s.scripts.list, p.s.names.queue(t), []byte(*p.message(count)))
	if err != nil {
		return nil, err
	}
	l, err := items(reply, 2)
	if err != nil {
		return nil, err
	}
	found, err := items(l[1], 0)
	if err != nil {
		return nil, err
	}
	one := &piece{tag: t, more: number(l[0]) == 1}
	for ; len(found) >= 8; found = found[8:] {
		score, err := strconv.ParseInt(str(found[0]), 10, 64)
		if err != nil {
			return nil, errReply
		}
		id, err := parseID(found[2])
		if err != nil {
			return nil, err
		}
		one.entries = append(one.entries, entry{
			score, str(found[1]), id, stored{str(found[3]), str(found[4]), str(found[5]), str(found[6]), str(found[7])},
		})
	}
	return one, nil
}

// matchesAll reports whether the filter lets all jobs of a state pass.
func (p *page) matchesAll() bool {
	f := &p.spec.Filter
	return f.Kind == "" && f.UniqueKey == "" && f.WorkerID == "" && f.CreatedFrom.IsZero() && f.CreatedBefore.IsZero()
}

func (p *page) message(count int) *message {
	m := p.s.begin(7)
	m.field("state", int64(p.at.state))
	m.string("after")
	m.flag(p.at.after)
	m.field("score", p.at.score)
	m.string("member")
	m.string(p.at.member)
	m.field("count", int64(count))
	m.field("bytes", int64(p.bytes))
	m.string("payloads")
	m.flag(p.spec.Payloads)
	return m
}

// add takes one job into the page if it matches, and moves p.at past it.
func (p *page) add(t tag, e *entry) {
	next := p.at
	next.after, next.score, next.member = true, e.score, e.member
	p.budget--
	if e.stored.body == "" && e.stored.state == "" { // an orphan
		p.at, p.full = next, p.budget <= 0
		return
	}
	j, _ := e.stored.job(t, e.id) // what can be read
	j.State = p.at.state          // it may have been promoted without being rewritten
	match := p.match(j)
	size := len(j.Payload) + len(j.Result)
	if match && p.spec.Payloads && size > p.bytes && len(p.jobs) > 0 {
		p.full = true
		return
	}
	p.at = next
	if match {
		p.bytes -= size
		if !p.spec.Payloads {
			j.Payload, j.Result = nil, nil
		}
		p.jobs = append(p.jobs, j)
	}
	p.full = len(p.jobs) >= p.spec.Limit || p.budget <= 0
}

func (p *page) match(j *pawl.Job) bool {
	f := &p.spec.Filter
	return (f.Kind == "" || f.Kind == j.Kind) && (f.UniqueKey == "" || f.UniqueKey == j.UniqueKey) &&
		(f.WorkerID == "" || f.WorkerID == j.WorkerID) &&
		(f.CreatedFrom.IsZero() || !j.CreatedAt.Before(f.CreatedFrom)) &&
		(f.CreatedBefore.IsZero() || j.CreatedAt.Before(f.CreatedBefore))
}
