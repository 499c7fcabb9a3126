package redis

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// On a cluster each tag needs a call of its own. Those of one queue's shards are made
// at the same time: first they tell how much they have, then each is asked for its
// share, so that none gives what another has given already.

// apart makes the calls of a cluster. One that fails, maybe because its node is down, keeps
// nobody from the others' jobs: their leases run. What a call without a reply has claimed is
// found again only if no others come, since the error is returned then and the claim repeated;
// else it waits for its lease, as it does if the node can't be reached when that is done.
func (c *cycle) apart(ctx context.Context, parts []part) {
	if c.spec.Repeat {
		c.together(ctx, parts, claimOnlyAgain, nil)
		if len(c.got.Jobs) > 0 {
			return
		}
		parts = c.sound(settled(parts))
	}
	rest := parts
	for len(rest) > 0 && rest[0].ask != noAsk && c.failures.divided == nil {
		n := 1
		for n < len(rest) && rest[n].ask == rest[0].ask {
			n++
		}
		if c.wants(rest[0]) {
			c.claimApart(ctx, rest[:n])
		} else {
			c.settleApart(ctx, rest[:n])
		}
		rest = rest[n:]
	}
	if c.failures.divided != nil {
		return // all is repeated
	}
	c.settleApart(ctx, rest)
	if c.left() == 0 {
		c.got.NextDue = 0
	}
	c.leave(ctx, c.sound(parts))
}

// settleApart makes the calls for outcomes alone.
func (c *cycle) settleApart(ctx context.Context, parts []part) {
	parts = slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return len(p.places) == 0 })
	c.together(ctx, parts, claimNothing, nil)
}

// claimApart claims from the shards of a queue. The first one is likely to have enough.
func (c *cycle) claimApart(ctx context.Context, parts []part) {
	c.together(ctx, parts[:1], claimFresh, []int{c.wanted(parts[0])})
	parts = parts[1:]
	if len(parts) == 0 || !c.wants(parts[0]) {
		c.settleApart(ctx, parts)
		return
	}
	// If others take what was ready, the shards are asked again, but for those that failed.
	// Each time at least one job has found a claimer.
	for short := true; short && len(parts) > 0 && c.wants(parts[0]); parts = c.sound(settled(parts)) {
		looks := c.together(ctx, parts, claimLook, slices.Repeat([]int{c.wanted(parts[0])}, len(parts)))
		short = c.claimShares(ctx, parts, looks)
	}
}

// claimShares claims what looks have found, and reports whether there was less.
func (c *cycle) claimShares(ctx context.Context, parts []part, looks []*cycle) (short bool) {
	var some []part
	var shares []int
	wanted := c.wanted(parts[0])
	for i, look := range looks {
		if n := min(look.ready, wanted); n > 0 {
			if len(some) == 0 {
				c.s.shards.heard(parts[i].tag) // the next claims need no look
			}
			some, shares = append(some, settled(parts[i:i+1])...), append(shares, n)
			wanted -= n
		}
	}
	c.spare = wanted
	claims := c.together(ctx, some, claimFresh, shares)
	c.spare = 0
	for i, one := range claims {
		short = short || len(one.got.Jobs) < shares[i]
	}
	return short
}

// together makes a call for each part, all at the same time, in which up to its share
// of jobs are asked for, and adds up what came of them, in order.
func (c *cycle) together(ctx context.Context, parts []part, how int, shares []int) []*cycle {
	all, errs := make([]*cycle, len(parts)), make([]error, len(parts))
	left := c.left()
	var wg sync.WaitGroup
	for i, p := range parts {
		one := &cycle{s: c.s, outcomes: c.outcomes, spec: c.spec, asks: slices.Clone(c.asks), spare: c.spare}
		if shares != nil {
			one.asks[p.ask] = shares[i]
		}
		all[i] = one
		call := func() { errs[i] = one.run(ctx, []part{p}, how, left) }
		if i == len(parts)-1 {
			call()
		} else {
			wg.Go(call)
		}
	}
	wg.Wait()
	for i, one := range all {
		c.add(one, parts[i])
		if how == claimFresh || how == claimLook {
			c.room(parts[i], one, shares[i], errs[i])
		}
		c.note(parts[i], errs[i])
	}
	return all
}

// add adds what one call has done.
func (c *cycle) add(one *cycle, p part) {
	c.lost = append(c.lost, one.lost...)
	c.damaged = append(c.damaged, one.damaged...)
	c.got.Jobs = append(c.got.Jobs, one.got.Jobs...)
	if p.ask != noAsk {
		c.asks[p.ask] -= len(one.got.Jobs)
	}
	if d := one.got.NextDue; d > 0 && (c.got.NextDue == 0 || d < c.got.NextDue) {
		c.got.NextDue = d
	}
}

// room notes whether a call has left the claimer's name.
func (c *cycle) room(p part, one *cycle, share int, err error) {
	if err != nil || share+one.spare > len(one.got.Jobs) {
		c.s.rooms.enter(p.tag, c.spec.Worker, c.s.time())
	} else {
		c.s.rooms.leave(p.tag, c.spec.Worker)
	}
}

// left is how many jobs are still asked for.
func (c *cycle) left() int { return c.spec.Max - len(c.got.Jobs) }

// wanted is how many jobs of the part are still asked for.
func (c *cycle) wanted(p part) int {
	if p.ask == noAsk {
		return 0
	}
	return max(0, min(c.asks[p.ask], c.left()))
}

func (c *cycle) wants(p part) bool { return c.wanted(p) > 0 }

// leave takes the claimer from those with room under tags that it asked before
// another one filled it. Should that fail, it is woken in vain.
func (c *cycle) leave(ctx context.Context, parts []part) {
	store := c.s.watch.name()
	if store == "" {
		return
	}
	_ = c.s.pipelined(ctx, func(p redis.Pipeliner) {
		for _, one := range parts {
			if one.ask != noAsk && !c.wants(one) && c.s.rooms.leave(one.tag, c.spec.Worker) {
				p.HDel(ctx, c.s.names.key(one.tag, idleSuffix), store+" "+c.spec.Worker)
			}
		}
	})
}
