package worker

import (
	"cmp"
	"errors"
	"fmt"
	"time"

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
	if !committed(p.q, r.job, job, gone, verb, p.now().sub(r.claimed)) {
		p.countLost(r, "while its transaction was open")
		return true, nil
	}
	r.failure = cmp.Or(err, errBuriedInTx)
	p.count(r, verb)
	return true, nil
}

var errBuriedInTx = errors.New("worker: buried in the handler's transaction")

// committed reports whether what is stored can be what verb has made of j, which
// was claimed so long ago. A nacked job may have gone on meanwhile, and the
// record of an acked one been kept for as long as it was to be, or been one too
// many: whether that or a delete by hand was its end can't be told, and the ack is
// believed.
func committed(q *pawl.Queue, j, stored *pawl.Job, gone bool, verb pawl.Verb, claimed time.Duration) bool {
	switch {
	case verb == pawl.Ack && gone:
		return claimed >= j.UniqueWindow && (claimed >= j.Retention || q.Options().MaxCompleted > 0)
	case verb == pawl.Ack:
		return stored.State == pawl.Completed
	case verb == pawl.Bury && gone:
		return claimed >= j.UniqueWindow && q.Options().MaxBuried > 0
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
