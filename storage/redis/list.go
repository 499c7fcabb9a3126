package redis

import (
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
	reply, err := p.s.run(ctx, p.s.scripts.list, p.s.names.queue(nil, p.at.queue), []byte(*p.message(count)))
	if err != nil {
		return false, err
	}
	l, err := items(reply, 2)
	if err != nil {
		return false, err
	}
	found, err := items(l[1], 0)
	if err != nil {
		return false, err
	}
	for ; len(found) >= 8; found = found[8:] {
		if err := p.add(found); err != nil || p.full {
			return true, err
		}
	}
	return number(l[0]) == 1, nil
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
func (p *page) add(l []any) error {
	score, err := strconv.ParseInt(str(l[0]), 10, 64)
	if err != nil {
		return errReply
	}
	id, err := parseID(l[2])
	if err != nil {
		return err
	}
	next := p.at
	next.after, next.score, next.member = true, score, str(l[1])
	p.budget--
	if str(l[4]) == "" { // an orphan
		p.at, p.full = next, p.budget <= 0
		return nil
	}
	j, err := (&stored{str(l[3]), str(l[4]), str(l[5]), str(l[6]), str(l[7])}).job(p.at.queue, id)
	if err != nil {
		return err
	}
	j.State = p.at.state // it may have been promoted without being rewritten
	match := p.match(j)
	size := len(j.Payload) + len(j.Result)
	if match && p.spec.Payloads && size > p.bytes && len(p.jobs) > 0 {
		p.full = true
		return nil
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
	return nil
}

func (p *page) match(j *pawl.Job) bool {
	f := &p.spec.Filter
	return (f.Kind == "" || f.Kind == j.Kind) && (f.UniqueKey == "" || f.UniqueKey == j.UniqueKey) &&
		(f.WorkerID == "" || f.WorkerID == j.WorkerID) &&
		(f.CreatedFrom.IsZero() || !j.CreatedAt.Before(f.CreatedFrom)) &&
		(f.CreatedBefore.IsZero() || j.CreatedAt.Before(f.CreatedBefore))
}
