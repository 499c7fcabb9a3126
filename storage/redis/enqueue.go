package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
)

func (s *Store) enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	for _, q := range reqs {
		if err := checkQueue(q.Queue); err != nil {
			return nil, err
		}
	}
	if s.group != nil && shares(reqs) {
		return s.group.enqueue(ctx, reqs[0])
	}
	return s.enqueueTogether(ctx, reqs)
}

func (s *Store) enqueueTogether(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	receipts := make([]pawl.Receipt, len(reqs))
	all := sections(len(reqs), func(i int) tag { return s.home(reqs[i]) })
	if !s.cluster {
		all = s.withRest(reqs, all)
	}
	for i, some := range calls(s, all) {
		err := s.enqueueSections(ctx, reqs, some, receipts)
		if s.divided(ctx, err) {
			err = s.enqueueAnew(ctx, reqs, some, receipts)
		}
		if errors.Is(err, pawl.ErrFull) && i > 0 && slices.ContainsFunc(receipts, changes) {
			err = fmt.Errorf("%v, after others of the call were stored", err) // ErrFull would say that nothing was
		}
		if err != nil {
			return nil, err
		}
	}
	return receipts, nil
}

// changes reports whether a request has changed something.
func changes(r pawl.Receipt) bool { return r.Status == pawl.Stored || r.Status == pawl.Replaced }

// enqueueSections stores the requests of some sections in one step.
func (s *Store) enqueueSections(ctx context.Context, reqs []*pawl.Request, some []section, receipts []pawl.Receipt) error {
	e := &enqueue{s: s, reqs: reqs, sections: some, known: make([]bool, len(some)), elsewhere: make([]int64, len(some))}
	if err := e.measure(ctx); err != nil {
		return err
	}
	return e.run(ctx, receipts)
}

// enqueueAnew stores the requests of sections that were refused, since one of their
// queues was divided, where they belong now.
func (s *Store) enqueueAnew(ctx context.Context, reqs []*pawl.Request, refused []section, receipts []pawl.Receipt) error {
	places := placesOf(refused)
	these := make([]*pawl.Request, len(places))
	for i, place := range places {
		these[i] = reqs[place]
	}
	got, err := s.enqueueTogether(ctx, these)
	if err != nil {
		return err
	}
	for i, place := range places {
		receipts[place] = got[i]
	}
	return nil
}

func (s *Store) home(req *pawl.Request) tag {
	return s.shards.home(req.Queue, req.UniqueKey, req.ID)
}

// bounded reports whether one of the requests of a section has a depth limit.
func bounded(reqs []*pawl.Request, sec section) bool {
	return slices.ContainsFunc(sec.places, func(i int) bool { return reqs[i].MaxDepth > 0 })
}

// withRest adds the other shards of queues with a depth limit, so that one step can
// count all of them.
func (s *Store) withRest(reqs []*pawl.Request, all []section) []section {
	for _, sec := range all {
		if !bounded(reqs, sec) {
			continue
		}
		for _, t := range s.shards.tags(sec.tag.queue()) {
			if !slices.ContainsFunc(all, func(have section) bool { return have.tag == t }) {
				all = append(all, section{tag: t})
			}
		}
	}
	return all
}

// measure looks, on a cluster, how many jobs wait in the other shards of queues with
// a depth limit. What others enqueue at the same time goes uncounted.
func (e *enqueue) measure(ctx context.Context) error {
	if !e.s.cluster {
		return nil
	}
	for i, sec := range e.sections {
		if !bounded(e.reqs, sec) {
			continue
		}
		var cards []*redis.IntCmd
		if err := e.s.pipelined(ctx, func(p redis.Pipeliner) {
			for _, t := range e.s.shards.tags(sec.tag.queue()) {
				if t != sec.tag {
					cards = append(cards, p.ZCard(ctx, e.s.names.key(t, readySuffix)), p.ZCard(ctx, e.s.names.key(t, laterSuffix)))
				}
			}
		}); err != nil {
			return err
		}
		for _, c := range cards {
			e.elsewhere[i] += c.Val()
		}
	}
	return nil
}

// enqueue is one step that stores requests.
type enqueue struct {
	s        *Store
	reqs     []*pawl.Request
	sections []section
	known    []bool // by section: the queue is in the register
	// elsewhere is how many waiting jobs shards that are not in this step hold, by
	// section; the depth of their queue counts them.
	elsewhere []int64
}

// run stores the requests, after their queues were entered in the register, from
// where sweeps know of them.
func (e *enqueue) run(ctx context.Context, receipts []pawl.Receipt) error {
	keys, script, args, read := e.s.keys(e.sections), e.s.scripts.enqueue, e.args, e.read
	if e.isPlain() {
		keys, script, args, read = plainKeys(keys), e.s.scripts.plain, e.plainArgs, e.readPlain
	}
	for {
		reply, err := e.s.run(ctx, script, keys, args()...)
		if err != nil {
			return err
		}
		l, err := items(reply, 2)
		if err != nil {
			return err
		}
		switch str(l[0]) {
		case "ok":
			e.s.touch(ctx, sectionTags(e.sections))
			return read(l[1], receipts)
		case "full":
			return e.full(l)
		}
		if err := e.register(ctx, l[1]); err != nil {
			return err
		}
	}
}

func (e *enqueue) register(ctx context.Context, unknown any) error {
	places, err := items(unknown, 1)
	if err != nil {
		return err
	}
	for _, p := range places {
		i := int(number(p)) - 1
		if i < 0 || i >= len(e.sections) {
			return errReply
		}
		if err := e.s.register(ctx, e.sections[i].tag); err != nil {
			return err
		}
		e.known[i] = true
	}
	return nil
}

func (e *enqueue) full(l []any) error {
	if len(l) < 3 {
		return errReply
	}
	n, i := int(number(l[1]))-1, int(number(l[2]))-1
	if n < 0 || n >= len(e.sections) || i < 0 || i >= len(e.sections[n].places) {
		return errReply
	}
	q := e.reqs[e.sections[n].places[i]]
	return &pawl.FullError{Queue: q.Queue, Limit: q.MaxDepth}
}

func (e *enqueue) read(reply any, receipts []pawl.Receipt) error {
	l, err := items(reply, 0)
	if err != nil {
		return err
	}
	for _, sec := range e.sections {
		for _, place := range sec.places {
			if len(l) < 1 {
				return errReply
			}
			r := pawl.Receipt{ID: e.reqs[place].ID, Queue: e.reqs[place].Queue, Status: pawl.ReceiptStatus(number(l[0]))}
			l = l[1:]
			if r.Status != pawl.Stored { // the ID of who is there follows
				if len(l) < 1 {
					return errReply
				}
				if r.ID, err = parseID(l[0]); err != nil {
					return err
				}
				l = l[1:]
			}
			receipts[place] = r
		}
	}
	return nil
}

// args are those of the script: what it reads of the requests, and then what it
// need not read of each.
func (e *enqueue) args() []any {
	m := e.s.begin(1)
	args := make([]any, 1, 1+len(e.reqs))
	m.string("queues")
	m.array(len(e.sections))
	for i, sec := range e.sections {
		m.object(5)
		m.string("queue")
		m.string(sec.tag.queue())
		m.field("elsewhere", e.elsewhere[i])
		m.string("known")
		m.flag(e.known[i])
		m.string("bounded")
		m.flag(e.counted(sec))
		m.string("reqs")
		m.array(len(sec.places))
		for _, place := range sec.places {
			q := e.reqs[place]
			args = append(args, bodyRest(q))
			appendRequest(m, q, len(args))
		}
	}
	args[0] = []byte(*m)
	return args
}

// counted reports whether the jobs of a section's queue must be counted.
func (e *enqueue) counted(sec section) bool {
	queue := sec.tag.queue()
	return slices.ContainsFunc(e.sections, func(s section) bool { return s.tag.queue() == queue && bounded(e.reqs, s) })
}

// bodyRest is the part of a body behind the head.
func bodyRest(q *pawl.Request) []byte {
	m := make(message, 0, len(q.Payload)+len(q.Kind)+16)
	appendStatic(&m, q)
	return append(m, q.Payload...)
}

// appendRequest writes the fields of a request, in the order of lua/store.lua,
// and the number of the argument with the rest.
func appendRequest(m *message, q *pawl.Request, rest int) {
	plain := isPlain(q)
	if plain {
		m.array(9)
	} else {
		m.array(16)
	}
	m.bytes(q.ID[:])
	appendTerms(m, q)
	m.int(int64(rest))
	if plain {
		return
	}
	m.int(micros(q.StartBefore))
	if q.UniqueKey == "" {
		m.int(0)
	} else {
		m.string(q.UniqueKey)
	}
	m.int(int64(q.UniqueMode))
	m.int(microseconds(q.UniqueWindow))
	m.int(int64(q.OnDuplicate))
	m.int(int64(max(q.MaxDepth, 0)))
	m.flag(q.WhenFull == pawl.DropOldest)
}

// appendTerms writes the fields that all requests have.
func appendTerms(m *message, q *pawl.Request) {
	m.int(int64(q.Priority))
	m.int(microseconds(max(q.Delay, 0)))
	m.int(micros(q.RunAt))
	m.int(microseconds(q.Retention))
	m.int(int64(q.MaxAttempts))
	m.int(int64(q.MaxRescues))
	m.int(microseconds(q.Lease))
}
