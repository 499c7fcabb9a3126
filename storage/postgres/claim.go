package postgres

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
)

func (s *Store) claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	_, c, err := s.cycle(ctx, nil, spec)
	return c, err
}

// cycle settles and claims, in one round trip if it can.
func (s *Store) cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) ([]pawl.Ref, pawl.Claimed, error) {
	c := &claim{s: s, ctx: ctx, spec: spec}
	st := s.newSettlement(outcomes)
	if !spec.Repeat && len(st.rounds) <= 1 {
		if err := c.run(st); err != nil {
			return nil, pawl.Claimed{}, err
		}
		// What is left to settle must not undo the claim that was made.
		err := st.rest(ctx)
		return st.lost(), c.got, err
	}
	lost, busy := s.settle(ctx, outcomes)
	if busy != nil && !isBusy(busy) {
		return nil, pawl.Claimed{}, busy
	}
	if spec.Repeat {
		if found, err := c.claimedBefore(); found || err != nil {
			return lost, c.got, cmp.Or(err, busy)
		}
	}
	err := c.run(s.newSettlement(nil))
	return lost, c.got, cmp.Or(err, busy)
}

// claim is one call of Claim.
type claim struct {
	s    *Store
	ctx  context.Context
	spec pawl.ClaimSpec
	got  pawl.Claimed
	// again means that nothing was claimed from the queue yet: it may have more
	// jobs that are due but Scheduled, or placed ones that were not asked for.
	again bool
	// stale means that transaction ids are older than the fresh jobs.
	stale bool
}

// run settles and claims in as few round trips as the number of queues, and of
// scheduled jobs that have become due, allows. It takes one more where the first
// placed jobs show.
func (c *claim) run(st *settlement) error {
	todo := c.spec.Queues
	single := len(todo) == 1
	var places []int
	err := c.s.pipelined(c.ctx, func(p *pipeline) {
		if single {
			c.queue(p, st, todo[0], nil)
			return
		}
		c.lock(p)
		st.first(p)
		c.peek(p, &places)
		c.nextDue(p)
	})
	switch {
	case !single:
		todo = c.asks(places)
	case !c.again:
		todo = nil
	}
	for len(todo) > 0 && err == nil && len(c.got.Jobs) < c.spec.Max {
		if err = c.one(todo[0]); !c.again {
			todo = todo[1:]
		}
	}
	if len(c.got.Jobs) >= c.spec.Max {
		c.got.NextDue = 0
	}
	if c.stale && err == nil {
		// It tells of jobs; what is claimed already must not be lost for it.
		_ = c.s.thaw(c.ctx, func(runner) error { return nil })
	}
	return err
}

// one claims from one queue, or finds that it must be asked again.
func (c *claim) one(ask pawl.QueueAsk) error {
	before := c.got.Jobs
	return c.s.pipelined(c.ctx, func(p *pipeline) { c.queue(p, nil, ask, before) })
}

func (c *claim) asks(places []int) (asks []pawl.QueueAsk) {
	for _, i := range places {
		asks = append(asks, c.spec.Queues[i])
	}
	return asks
}

// lock lets no claim with the same token run at the same time.
func (c *claim) lock(p *pipeline) { p.exec(c.s.q.lock, c.spec.Token^tokenLock) }

// tokenLock tells the locks of claim tokens from other advisory locks.
const tokenLock = 0x7061776c // "pawl"

// peek finds the places of the queues that have something to claim.
func (c *claim) peek(p *pipeline, places *[]int) {
	*places = nil
	p.each(func(row scanner) error {
		var ord int
		err := row.Scan(&ord)
		*places = append(*places, ord-1)
		return err
	}, c.s.q.claimable, c.s.clock(), c.names())
}

func (c *claim) names() []string {
	names := make([]string, len(c.spec.Queues))
	for i, ask := range c.spec.Queues {
		names[i] = ask.Queue
	}
	return names
}

// promoteStep bounds a transaction that promotes.
const promoteStep = pawl.MaxStep

// queue claims from one queue, besides what earlier transactions have claimed.
// The jobs are read after the commit: a client that is slow to take them does not
// hold up the claims of others.
func (c *claim) queue(p *pipeline, st *settlement, ask pawl.QueueAsk, before []*pawl.Job) {
	q, mark, room := c.s.q, rand.Int64(), c.spec.Max-len(before)
	placed := c.again || c.s.lanes.has(ask.Queue) // others may have noted none since
	p.begin(q)
	c.lock(p)
	if st != nil {
		st.first(p)
	}
	if placed {
		c.promote(p, ask.Queue)
	}
	p.exec(q.lock, c.s.claimHash(ask.Queue))
	if placed {
		c.claimBoth(p, ask, room, mark)
	} else {
		c.claimFresh(p, ask, room, mark)
	}
	p.commit(q)
	c.read(p, ask.Queue, mark, placed, before)
}

// promote makes Ready what is due, and ends what has expired.
func (c *claim) promote(p *pipeline, queue string) {
	p.each(func(row scanner) error {
		var setting string
		return row.Scan(&c.again, &setting)
	}, c.s.q.promote, c.s.clock(), queue, promoteStep)
	p.exec(c.s.q.expire, c.s.clock(), pawl.MaxStep)
}

// claimBoth claims from both lanes of a queue.
func (c *claim) claimBoth(p *pipeline, ask pawl.QueueAsk, room int, mark int64) {
	p.each(func(row scanner) error {
		var us int64
		var stale, placed bool
		err := row.Scan(&us, &stale, &placed)
		c.stale = c.stale || stale
		c.got.NextDue = untilMicros(us)
		c.s.lanes.note(ask.Queue, c.again || placed)
		return err
	}, c.s.q.claim, c.claimArgs(ask, room, mark)...)
}

// claimArgs are those of a statement that claims: room is how much more the call
// may claim, of whatever queue.
func (c *claim) claimArgs(ask pawl.QueueAsk, room int, mark int64) []any {
	return []any{c.s.clock(), ask.Queue, min(ask.Max, room), c.spec.Token, c.spec.Worker, microseconds(c.spec.Lease), c.names(), mark, room}
}

// read reads what was claimed from a queue.
func (c *claim) read(p *pipeline, queue string, mark int64, placed bool, before []*pawl.Job) {
	var found []*record
	p.rows(func(rows pgx.Rows) error {
		found = nil
		err := scanAll(rows, func(row scanner) error {
			r := &record{queue: queue}
			found = append(found, r)
			return r.scanFresh(row, c.spec.Worker)
		})
		if err == nil && !placed {
			c.take(found, before)
		}
		return err
	}, c.s.q.claimedFresh, mark)
	if !placed {
		return
	}
	p.rows(func(rows pgx.Rows) error {
		err := scanAll(rows, func(row scanner) error {
			r := new(record)
			found = append(found, r)
			return r.scan(row, &r.payload, &r.counts.Extends)
		})
		if err == nil {
			c.take(found, before)
		}
		return err
	}, c.s.q.claimedPlaced, mark)
}

// take adds the records of one queue to what is got.
func (c *claim) take(found []*record, before []*pawl.Job) {
	slices.SortFunc(found, inClaimOrder)
	c.got.Jobs = slices.Clip(before)
	for _, r := range found {
		c.got.Jobs = append(c.got.Jobs, r.job())
	}
	c.s.batches.add(found)
}

func inClaimOrder(a, b *record) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.runAt, b.runAt), cmp.Compare(a.seq, b.seq))
}

func (c *claim) nextDue(p *pipeline) {
	p.each(func(row scanner) error {
		var us int64
		err := row.Scan(&us)
		c.got.NextDue = untilMicros(us)
		return err
	}, c.s.q.nextDue, c.s.clock(), c.names())
}

// untilMicros is a time until something is due; what is due already counts as
// very soon.
func untilMicros(us int64) time.Duration {
	if us == 0 {
		return 0
	}
	return time.Duration(max(us, 1)) * time.Microsecond
}

// claimedBefore returns the jobs that an earlier claim with the token has made
// running, after that claim, if it is still under way, has come to its end.
func (c *claim) claimedBefore() (found bool, err error) {
	var ids []pawl.ID
	err = c.s.pipelined(c.ctx, func(p *pipeline) {
		ids = nil
		c.lock(p)
		p.each(func(row scanner) error {
			var id pawl.ID
			err := row.Scan((*[16]byte)(&id))
			ids = append(ids, id)
			return err
		}, c.s.q.claimedBy, c.names(), c.spec.Token)
	})
	if err != nil || len(ids) == 0 {
		return false, err
	}
	jobs, err := c.s.get(c.ctx, "", ids)
	if err != nil {
		return false, err
	}
	for _, ask := range c.spec.Queues {
		for _, j := range jobs {
			if j != nil && j.State == pawl.Running && j.Queue == ask.Queue {
				c.got.Jobs = append(c.got.Jobs, j)
			}
		}
	}
	return len(c.got.Jobs) > 0, nil
}
