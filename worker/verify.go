package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/pawlq/pawl"
)

// verify finds out what became of a claim that the handler settled in a
// transaction of its own, and counts it. It reports false, and the failure to
// record, if the claim is still current: the transaction was not committed.
func (p *Pool) verify(r *run, verb pawl.Verb, err error) (done bool, failure error) {
	job, gone, ok := p.look(r)
	if !ok {
		return true, nil // stopped, or the lease is over: nothing is known
	}
	if !gone && job.State == pawl.Running && job.Fence == r.ref.Fence {
		if err == nil {
			err = pawl.ErrNotCommitted
		}
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.committed(r, job, gone, verb) {
		p.countLost(r, "while its transaction was open")
		return true, nil
	}
	r.took = p.now().sub(r.started)
	r.failure = err
	if r.failure == nil {
		r.failure = errors.New("worker: buried in the handler's transaction")
	}
	p.count(r, verb)
	return true, nil
}

// committed reports whether what is stored can be what verb has made of the
// claim. A nacked job may have gone on meanwhile, and the record of an acked
// one been kept for as long as it was to be: whether that or a delete by hand
// was its end can't be told, and the ack is believed.
func (p *Pool) committed(r *run, stored *pawl.Job, gone bool, verb pawl.Verb) bool {
	switch {
	case verb == pawl.Ack && gone:
		return p.now().sub(r.claimed) >= max(r.job.Retention, r.job.UniqueWindow)
	case verb == pawl.Ack:
		return stored.State == pawl.Completed
	case verb == pawl.Bury:
		return !gone && stored.State == pawl.Buried
	default:
		return true
	}
}

// look reads the job, again and again until the storage answers.
func (p *Pool) look(r *run) (job *pawl.Job, gone, ok bool) {
	var o outage
	for {
		ctx, cancel := context.WithTimeout(p.settleCtx, callTimeout)
		job, err := p.q.Get(ctx, r.ref.Queue, r.ref.ID)
		cancel()
		switch {
		case err == nil:
			p.recovered(&o, "verify")
			return job, false, true
		case errors.Is(err, pawl.ErrNotFound):
			p.recovered(&o, "verify")
			return nil, true, true
		}
		p.failed(&o, "verify", fmt.Errorf("%v: %w", r.ref.ID, err))
		if !sleep(p.settleCtx, p.delay(&o), nil) {
			return nil, false, false
		}
	}
}
