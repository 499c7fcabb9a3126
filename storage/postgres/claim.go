package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
)

func (s *Store) claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	_, c, err := s.cycle(ctx, nil, spec)
	return c, err
}

// cycle settles and claims. What it can it does in one round trip.
func (s *Store) cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) ([]pawl.Ref, pawl.Claimed, error) {
	c := &claim{s: s, ctx: ctx, spec: spec}
	st := s.newSettlement(outcomes)
	if spec.Repeat {
		lost, err := s.settle(ctx, outcomes)
		if err != nil {
			return nil, pawl.Claimed{}, err
		}
		if found, err := c.claimedBefore(); found || err != nil {
			return lost, c.got, err
		}
		st = s.newSettlement(nil)
		err = c.run(st)
		return lost, c.got, err
	}
	if err := c.run(st); err != nil {
		return nil, pawl.Claimed{}, err
	}
	// What is left to settle must not undo the claim that was made.
	err := st.rest(ctx)
	return st.lost(), c.got, err
}

// claim is one call of Claim.
type claim struct {
	s    *Store
	ctx  context.Context
	spec pawl.ClaimSpec
	got  pawl.Claimed
}

// run settles and claims in as few round trips as the number of queues allows.
func (c *claim) run(st *settlement) error {
	p := c.s.pipeline()
	p.exec(c.s.q.lock, c.spec.Token^tokenLock)
	st.first(p)
	queues := make([]string, len(c.spec.Queues))
	for i, ask := range c.spec.Queues {
		queues[i] = ask.Queue
	}
	if len(queues) == 1 {
		c.queue(p, c.spec.Queues[0])
		c.nextDue(p, queues)
		err := p.run(c.ctx)
		c.finish()
		return err
	}
	var next []int
	p.each(func(row scanner) error {
		var ord int
		err := row.Scan(&ord)
		next = append(next, ord-1)
		return err
	}, c.s.q.claimable, c.s.clock(), queues)
	c.nextDue(p, queues)
	if err := p.run(c.ctx); err != nil {
		return err
	}
	for _, i := range next {
		if len(c.got.Jobs) >= c.spec.Max {
			break
		}
		p := c.s.pipeline()
		c.queue(p, c.spec.Queues[i])
		c.nextDue(p, queues)
		if err := p.run(c.ctx); err != nil {
			return err
		}
	}
	c.finish()
	return nil
}

// tokenLock tells the locks of claim tokens from other advisory locks.
const tokenLock = 0x7061776c // "pawl"

// queue claims from one queue.
func (c *claim) queue(p *pipeline, ask pawl.QueueAsk) {
	q, now := c.s.q, c.s.clock()
	n := min(ask.Max, c.spec.Max-len(c.got.Jobs))
	p.exec(q.promote, now, ask.Queue, pawl.MaxStep)
	p.exec(q.expire, now, pawl.MaxStep)
	from := len(c.got.Jobs)
	var found []*record
	p.batch.Queue(q.claim, now, ask.Queue, n, c.spec.Token, c.spec.Worker, microseconds(c.spec.Lease)).
		Query(func(rows pgx.Rows) error {
			err := scanAll(rows, func(row scanner) error {
				r := new(record)
				found = append(found, r)
				return r.scan(row, &r.payload, &r.counts.Extends)
			})
			slices.SortFunc(found, inClaimOrder)
			c.got.Jobs = c.got.Jobs[:from]
			for _, r := range found {
				c.got.Jobs = append(c.got.Jobs, r.job())
			}
			return err
		})
}

func inClaimOrder(a, b *record) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.runAt, b.runAt), cmp.Compare(a.seq, b.seq))
}

func (c *claim) nextDue(p *pipeline, queues []string) {
	p.each(func(row scanner) error {
		var us int64
		err := row.Scan(&us)
		c.got.NextDue = untilMicros(us)
		return err
	}, c.s.q.nextDue, c.s.clock(), queues)
}

// untilMicros is a time until something is due; what is due already counts as
// very soon.
func untilMicros(us int64) time.Duration {
	if us == 0 {
		return 0
	}
	return time.Duration(max(us, 1)) * time.Microsecond
}

// finish leaves out what Claimed says only of short claims.
func (c *claim) finish() {
	if len(c.got.Jobs) >= c.spec.Max {
		c.got.NextDue = 0
	}
}

// claimedBefore returns the jobs that an earlier claim with the token has made
// running, after that claim, if it is still under way, has come to its end.
func (c *claim) claimedBefore() (found bool, err error) {
	queues := make([]string, len(c.spec.Queues))
	for i, ask := range c.spec.Queues {
		queues[i] = ask.Queue
	}
	p := c.s.pipeline()
	p.exec(c.s.q.lock, c.spec.Token^tokenLock)
	var ids []pawl.ID
	p.each(func(row scanner) error {
		var id pawl.ID
		err := row.Scan((*[16]byte)(&id))
		ids = append(ids, id)
		return err
	}, c.s.q.claimedBy, queues, c.spec.Token)
	if err := p.run(c.ctx); err != nil || len(ids) == 0 {
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
