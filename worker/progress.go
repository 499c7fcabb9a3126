package worker

import (
	"context"
	"errors"

	"github.com/pawlq/pawl"
)

// A claim is what the context of a handler knows of its run.
type claim struct {
	q    *pawl.Queue
	pool *Pool // nil in Drain, where nothing else extends the lease
	run  *run
}

type claimKey struct{}

// claimOf returns the claim of the handler whose context ctx is or derives from.
func claimOf(ctx context.Context) (c *claim, ok bool) {
	c, ok = ctx.Value(claimKey{}).(*claim)
	return c, ok
}

var errNoHandler = errors.New("worker: Progress needs the context of a handler that a Pool or Drain runs")

// Progress stores how far a handler has come, where [pawl.Queue.Get] and others
// show it, and lets the lease begin anew. ctx is the handler's context or one
// derived from it. Each call is a write to the storage, so a handler should
// report about once a second rather than at every step. A nil p only extends
// the lease, which the pool does by itself anyway.
//
// If ctx has ended, its cause is returned. If the claim is found to be no longer
// current, that is [pawl.ErrLost], and the pool ends ctx. An InvalidError says
// that p is beyond the limits of [pawl.Progress]. After any other error the
// handler may go on: the pool goes on extending the lease.
func Progress(ctx context.Context, p *pawl.Progress) error {
	c, ok := claimOf(ctx)
	switch {
	case !ok:
		return errNoHandler
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	renewal := pawl.Renewal{Ref: c.run.ref, Lease: c.run.lease, Progress: p}
	var sent instant
	if c.pool != nil {
		sent = c.pool.now()
	}
	lost, err := c.q.ExtendBatch(ctx, []pawl.Renewal{renewal})
	if err != nil {
		return err
	}
	if c.pool != nil {
		c.pool.renewed([]*run{c.run}, lost, sent)
	}
	if len(lost) > 0 {
		return pawl.ErrLost
	}
	return nil
}
