package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/pawlq/pawl"
)

// RunOne enqueues r, claims that job, due or not, and runs it once, in the
// goroutine of the caller. It is for tests of handlers that need their job to be
// stored, because they ack it in a transaction of their own or report Progress;
// what becomes of the job is what a pool would make of it. Ran.Err is what the
// handler returned, after a transaction that was not committed
// [pawl.ErrNotCommitted]; the error is why it did not run, or could not be
// settled. Other jobs of the queue that are due go before and are handed back.
func RunOne(ctx context.Context, q *pawl.Queue, h Handlers, r *pawl.Request) (Ran, error) {
	d, err := newDrain(q, h, nil)
	if err != nil {
		return Ran{}, err
	}
	if r == nil {
		return Ran{}, &pawl.InvalidError{Field: "Request", Limit: "not nil"}
	}
	if cmp.Or(d.kinds[r.Kind], d.fallback) == nil {
		return Ran{}, fmt.Errorf("worker: no handler of kind %q: %w", r.Kind, pawl.ErrInvalid)
	}
	receipt, err := q.Enqueue(ctx, r)
	switch {
	case err != nil:
		return Ran{}, err
	case receipt.Status != pawl.Stored:
		return Ran{}, fmt.Errorf("worker: no new job to run: %v in %s: %v", receipt.ID, receipt.Queue, receipt.Status)
	}
	j, err := d.claimOne(ctx, receipt)
	if err != nil {
		return Ran{}, err
	}
	err = d.run(ctx, j)
	return d.ran[0], err
}

// claimOne claims one job and hands back what else it had to claim for that.
func (d *drain) claimOne(ctx context.Context, r pawl.Receipt) (*pawl.Job, error) {
	stored, err := d.q.Get(ctx, r.Queue, r.ID)
	if err == nil && stored.State == pawl.Scheduled {
		err = d.q.RunNow(ctx, r.Queue, r.ID)
	}
	if err != nil {
		return nil, err
	}
	d.spec.Max, d.spec.Queues = pawl.MaxStep, []pawl.QueueAsk{{Queue: r.Queue, Max: pawl.MaxStep}}
	j, others, err := d.claimUntil(ctx, r.ID)
	_, settleErr := d.settle(ctx, others...)
	err = errors.Join(err, settleErr)
	switch {
	case err != nil:
		return nil, err
	case j == nil:
		return nil, fmt.Errorf("worker: job %v could not be claimed: %s is paused, or others claim from it", r.ID, r.Queue)
	}
	return j, nil
}

// claimUntil claims until it has the job with that ID, or there are no more.
func (d *drain) claimUntil(ctx context.Context, id pawl.ID) (found *pawl.Job, others []pawl.Outcome, err error) {
	for {
		c, err := d.q.ClaimBatch(ctx, d.spec)
		for _, j := range c.Jobs {
			if j.ID == id {
				found = j
				continue
			}
			others = append(others, pawl.Outcome{Ref: j.Ref, Verb: pawl.Release})
		}
		if found != nil || err != nil || len(c.Jobs) == 0 {
			return found, others, err
		}
	}
}
