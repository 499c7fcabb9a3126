package postgres

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

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
	var err error
	if len(todo) == 1 {
		if err = c.one(st, todo[0]); !c.again {
			todo = nil
		}
	} else {
		todo, err = c.first(st)
	}
	for len(todo) > 0 && err == nil && len(c.got.Jobs) < c.spec.Max {
		if err = c.one(nil, todo[0]); !c.again {
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
func (c *claim) one(st *settlement, ask pawl.QueueAsk) error {
	var t *taking
	err := c.s.pipelined(c.ctx, func(p *pipeline) {
		t = c.taking(ask)
		c.queue(p, st, t)
	})
	if err == nil && !t.placed && len(t.found) < t.n {
		// Rows have moved, as by VACUUM FULL.
		err = c.s.pipelined(c.ctx, func(p *pipeline) {
			t.found = nil
			c.readFresh(p, t, c.s.q.findFresh)
		})
	}
	if err == nil {
		c.take(t)
	}
	return err
}

// first settles, and finds which of several queues have something to claim.
func (c *claim) first(st *settlement) (asks []pawl.QueueAsk, err error) {
	var places []int
	err = c.s.pipelined(c.ctx, func(p *pipeline) {
		c.lock(p)
		st.first(p)
		c.peek(p, &places)
		c.nextDue(p)
	})
	for _, i := range places {
		asks = append(asks, c.spec.Queues[i])
	}
	return asks, err
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

// taking is what one transaction takes from one queue.
type taking struct {
	ask    pawl.QueueAsk
	room   int     // how much more the call may claim, of whatever queue
	mark   int64   // by which the claim is found again
	placed bool    // both lanes are asked
	by     claimed // the claim of the fresh ones
	n      int     // how many of these there are
	found  []*record
}

func (c *claim) taking(ask pawl.QueueAsk) *taking {
	return &taking{
		ask: ask, room: c.spec.Max - len(c.got.Jobs), mark: rand.Int64(),
		placed: c.again || c.s.lanes.has(ask.Queue), // others may have noted none since
		by:     claimed{worker: c.spec.Worker, lease: microseconds(c.spec.Lease)},
	}
}

// queue claims from one queue. The jobs are read after the commit: a client that
// is slow to take them does not hold up the claims of others.
func (c *claim) queue(p *pipeline, st *settlement, t *taking) {
	q := c.s.q
	p.begin(q)
	c.lock(p)
	if st != nil {
		st.first(p)
	}
	if t.placed {
		c.promote(p, t.ask.Queue)
	}
	p.exec(q.lock, c.s.claimHash(t.ask.Queue))
	if t.placed {
		c.claimBoth(p, t)
	} else {
		c.claimFresh(p, t)
	}
	p.commit(q)
	if t.placed {
		c.readFresh(p, t, q.findFresh)
		c.readPlaced(p, t)
	} else {
		c.readFresh(p, t, q.readFresh)
	}
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
func (c *claim) claimBoth(p *pipeline, t *taking) {
	p.each(func(row scanner) error {
		var us int64
		var stale, placed bool
		err := row.Scan(&us, &stale, &placed, &t.by.fence, &t.by.claimedAt)
		c.note(t, us, stale, c.again || placed)
		return err
	}, c.s.q.claim, c.claimArgs(t)...)
}

// note keeps what a claim says besides its jobs.
func (c *claim) note(t *taking, dueMicros int64, stale, placed bool) {
	c.stale = c.stale || stale
	c.got.NextDue = untilMicros(dueMicros)
	c.s.lanes.note(t.ask.Queue, placed)
}

// claimArgs are those of a statement that claims.
func (c *claim) claimArgs(t *taking) []any {
	return []any{c.s.clock(), t.ask.Queue, min(t.ask.Max, t.room), c.spec.Token, c.spec.Worker, t.by.lease, c.names(), t.mark, t.room}
}

func (c *claim) readFresh(p *pipeline, t *taking, sql string) {
	p.each(func(row scanner) error {
		r := &record{queue: t.ask.Queue}
		t.found = append(t.found, r)
		return r.scanFresh(row, &t.by)
	}, sql, t.mark)
}

func (c *claim) readPlaced(p *pipeline, t *taking) {
	p.each(func(row scanner) error {
		r := new(record)
		t.found = append(t.found, r)
		return r.scan(row, &r.payload, &r.tid, &r.counts.Extends)
	}, c.s.q.claimedPlaced, t.mark)
}

// take adds what was found to what is got.
func (c *claim) take(t *taking) {
	slices.SortFunc(t.found, inClaimOrder)
	c.got.Jobs = slices.Grow(c.got.Jobs, len(t.found))
	for _, r := range t.found {
		c.got.Jobs = append(c.got.Jobs, r.job())
	}
	c.s.batches.add(t.found)
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
	var fences []int64
	err = c.s.pipelined(c.ctx, func(p *pipeline) {
		ids, fences = nil, nil
		c.lock(p)
		p.each(func(row scanner) error {
			var id pawl.ID
			var fence int64
			err := row.Scan((*[16]byte)(&id), &fence)
			ids, fences = append(ids, id), append(fences, fence)
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
		for i, j := range jobs {
			// It may have been claimed by another since.
			if j != nil && j.Fence == fences[i] && j.Queue == ask.Queue {
				c.got.Jobs = append(c.got.Jobs, j)
			}
		}
	}
	return len(c.got.Jobs) > 0, nil
}
