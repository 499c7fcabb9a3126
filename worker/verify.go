package worker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// verify finds out what became of a claim that the handler settled in a
// transaction of its own, and counts it. It reports false, and the failure to
// record, if the claim is still current: the transaction was not committed.
func (p *Pool) verify(r *run, verb pawl.Verb, err error) (done bool, failure error) {
	job, gone, ok := p.look(r)
	if !ok {
		return true, nil // the pool is over: nothing is known
	}
	if !gone && job.State == pawl.Running && job.Fence == r.ref.Fence {
		if err == nil {
			err = pawl.ErrNotCommitted
		}
		return false, err
	}
	failed := verb == pawl.Nack || verb == pawl.Bury
	if failed { // what may not return has no place below
		failure = failureInTx(r.job, job, err)
		r.outcome.Error = textOf(failure)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !committed(p.q, r.job, job, gone, verb, p.now().sub(r.claimed)) {
		p.countLost(r, "while its transaction was open")
		return true, nil
	}
	if failed {
		p.tellFailure(r, failure)
	}
	p.count(r, verb)
	return true, nil
}

// verifyApart lets r be verified, which no slot has any more, and calls current if
// its claim still is. Both are called with mu held.
func (p *Pool) verifyApart(r *run, verb pawl.Verb, current func()) {
	p.looks.Go(func() {
		done, _ := p.verify(r, verb, nil)
		p.mu.Lock()
		defer p.mu.Unlock()
		if done {
			p.forget(r)
		} else {
			current()
		}
	})
}

var errFailedInTx = errors.New("worker: nacked or buried in the handler's transaction")

// failureInTx is what kinds and events are told of a run that was nacked or buried
// in the handler's transaction: what the handler returned, or else what the record
// says, if it has not gone on meanwhile.
func failureInTx(r *pawl.Job, stored *pawl.Job, err error) error {
	if err != nil {
		return err
	}
	if stored != nil {
		for _, f := range slices.Backward(stored.Failures) {
			if f.Attempt == r.Attempt {
				return errors.New(f.Error)
			}
		}
	}
	return errFailedInTx
}

// committed reports whether what is stored can be what verb has made of j, which
// was claimed so long ago. A nacked job may have gone on meanwhile, and the
// record of one that was acked or buried been kept for as long as it was to be, or
// been one too many: whether that or a delete by hand was its end can't be told, and
// the handler is believed.
func committed(q *pawl.Queue, j, stored *pawl.Job, gone bool, verb pawl.Verb, claimed time.Duration) bool {
	switch {
	case verb == pawl.Ack && gone:
		return claimed >= j.UniqueWindow && (claimed >= j.Retention || q.Options().MaxCompleted > 0)
	case verb == pawl.Ack:
		return stored.State == pawl.Completed
	case verb == pawl.Bury && gone:
		o := q.Options()
		return claimed >= j.UniqueWindow && (o.MaxBuried > 0 || o.BuriedRetention > 0 && claimed >= o.BuriedRetention)
	case verb == pawl.Bury:
		return stored.State == pawl.Buried
	default:
		return true
	}
}

// look reads the job, again and again until the storage answers.
func (p *Pool) look(r *run) (job *pawl.Job, gone, ok bool) {
	var o outage
	for {
		ctx, returned := p.calling(p.settleCtx, "verify", callTimeout)
		job, err := p.q.Get(ctx, r.ref.Queue, r.ref.ID)
		returned()
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
