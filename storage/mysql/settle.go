package mysql

import (
	"context"
	"errors"
	"slices"

	"github.com/pawlq/pawl"
)

// lockedTries is how often a settle looks again at jobs that others have
// locked: a call of this package lets go within milliseconds, an open
// transaction may not.
const lockedTries = 8

func (s *Store) settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	st, inTx := newSettlement(outcomes), s.inTxFast
	if places, ok := st.fastAcks(); ok && s.mariaDB && len(st.todo) == 1 {
		if err := s.ackOne(ctx, st, places); !errors.Is(err, errSlow) {
			return nil, err
		}
		inTx = s.inTx
	}
	if err := inTx(ctx, st.run); err != nil {
		return nil, err
	}
	err := st.rest(ctx, s)
	return st.lost(), err
}

// ackOne is one statement for an ack that is alone in its call.
func (s *Store) ackOne(ctx context.Context, st *settlement, places [3][]int) error {
	return s.alone(ctx, func(b *batch) error {
		if err := st.ackFast(b, places); err != nil {
			return &sentError{err}
		}
		return nil
	})
}

// cycle settles and claims in one transaction.
func (s *Store) cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) ([]pawl.Ref, pawl.Claimed, error) {
	var c pawl.Claimed
	st := newSettlement(outcomes)
	err := s.inTxFast(ctx, func(b *batch) (err error) {
		if len(outcomes) > 0 {
			if err := st.run(b); err != nil {
				return err
			}
		}
		c, err = b.claim(spec, nil)
		return err
	})
	if err != nil {
		return nil, pawl.Claimed{}, err
	}
	err = st.rest(ctx, s)
	return st.lost(), c, err
}

// verdict is what became of one outcome.
type verdict int

const (
	applied  verdict = iota // the job has moved, or had before
	refused                 // the claim is no longer current
	missing                 // and there is no such job
	occupied                // an open transaction has the job, or its ID
)

// settlement is one call of Settle.
type settlement struct {
	outcomes []pawl.Outcome
	verdicts []verdict
	todo     []int // places of outcomes
}

func newSettlement(outcomes []pawl.Outcome) *settlement {
	st := &settlement{outcomes: outcomes, verdicts: make([]verdict, len(outcomes)), todo: make([]int, len(outcomes))}
	for i := range st.todo {
		st.todo[i] = i
	}
	return st
}

// rest tries the jobs that were locked again. Its error is a BusyError, or that of
// a commit whose outcome is not known: then that of the call is not either.
func (st *settlement) rest(ctx context.Context, s *Store) error {
	for try := 1; ; try++ {
		st.todo = slices.DeleteFunc(st.todo, func(i int) bool { return st.verdicts[i] != occupied })
		if len(st.todo) == 0 {
			return nil
		}
		if try == lockedTries || pause(ctx, try) != nil {
			return st.busy() // most of the call is done
		}
		err := s.inTx(ctx, st.run)
		if mayBeDone(err) {
			return err
		}
		if err != nil { // what the try has found was undone
			for _, i := range st.todo {
				st.verdicts[i] = occupied
			}
			return st.busy()
		}
	}
}

func (st *settlement) busy() error {
	busy := new(pawl.BusyError)
	for _, i := range st.todo {
		busy.Refs = append(busy.Refs, st.outcomes[i].Ref)
	}
	return busy
}

// run settles what is to do, in a transaction.
func (st *settlement) run(b *batch) error {
	if places, ok := st.fastAcks(); ok && b.fast {
		return st.ackFast(b, places)
	}
	refs := make([]pawl.Ref, len(st.todo))
	for k, i := range st.todo {
		refs[k] = st.outcomes[i].Ref
	}
	f, err := b.lockJobs(refs)
	if err != nil {
		return err
	}
	q := &acks{}
	for _, i := range st.todo {
		st.verdicts[i] = b.settleOne(f, &st.outcomes[i], q)
	}
	if err := b.ackAll(q); err != nil {
		return err
	}
	if err := b.flush(f.records()); err != nil {
		return err
	}
	for _, i := range st.todo {
		ref := &st.outcomes[i].Ref
		r := f.all[ref.ID]
		if r != nil && r.stays && (st.verdicts[i] == missing || r.fence == ref.Fence) {
			st.verdicts[i] = occupied
		}
	}
	return nil
}

// lost lists the claims that were not current.
func (st *settlement) lost() (refs []pawl.Ref) {
	type settled struct {
		id    pawl.ID
		fence int64
		verb  pawl.Verb
	}
	// The same outcome earlier in the call was success: what came after it may
	// have removed the record, or ended another claim.
	before := make(map[settled]struct{})
	for i, v := range st.verdicts {
		o := &st.outcomes[i]
		key := settled{o.Ref.ID, o.Ref.Fence, o.Verb}
		_, again := before[key]
		switch {
		case v == refused && !again, v == missing && !again && !o.Repeat:
			refs = append(refs, o.Ref)
		case v != occupied:
			before[key] = struct{}{}
		}
	}
	return refs
}

func (b *batch) settleOne(f *jobs, o *pawl.Outcome, q *acks) verdict {
	r := f.all[o.Ref.ID]
	held := r == nil
	if held {
		r = f.locked[o.Ref.ID]
	}
	switch {
	case r == nil || r.gone:
		return missing
	case r.current(o.Ref.Fence) && held:
		return occupied
	case r.current(o.Ref.Fence):
		b.settleRecord(r, o, q)
		return applied
	case o.Ref.Fence != 0 && r.lastFence == o.Ref.Fence && r.lastVerb == o.Verb:
		return applied
	}
	return refused
}

// settleRecord moves a running job as the outcome says.
func (b *batch) settleRecord(r *record, o *pawl.Outcome, q *acks) {
	r.lastFence, r.lastVerb = r.fence, o.Verb
	at := b.now
	switch o.Verb {
	case pawl.Ack:
		b.ack(r, o.Result, q)
		return
	case pawl.Nack:
		r.fail(b.now, o.Error, o.Stack)
		if r.maxAttempts > 0 && r.attempt >= r.maxAttempts {
			r.finish(pawl.Buried, pawl.ReasonAttempts, b.now)
			return
		}
		r.count(func(c *pawl.Counts) { c.Retries++ })
		r.reason = string(pawl.ReasonRetry)
		r.runAt = b.now + max(0, microseconds(o.Delay))
	case pawl.Bury:
		r.fail(b.now, o.Error, o.Stack)
		r.finish(pawl.Buried, pawl.ReasonBury, b.now)
		return
	default:
		b.handBack(r, o)
		if o.Delay <= 0 {
			at = max(at, r.runAt) // it is ready also if the clock was set back meanwhile
		}
	}
	r.wait(at)
	b.due(r.queue, r.runAt)
}

// handBack gives the attempt back and keeps the place unless there is a delay.
func (b *batch) handBack(r *record, o *pawl.Outcome) {
	r.attempt--
	switch o.Verb {
	case pawl.Release:
		r.reason = string(pawl.ReasonRelease)
		r.count(func(c *pawl.Counts) { c.Releases++ })
		if o.Priority != nil {
			r.priority = *o.Priority
		}
	case pawl.SnoozeFor:
		r.reason = string(pawl.ReasonSnooze)
		r.count(func(c *pawl.Counts) { c.Snoozes++ })
	default:
		r.reason = string(pawl.ReasonSkip)
		r.count(func(c *pawl.Counts) { c.Skips++ })
	}
	if o.Delay > 0 {
		r.runAt = b.now + microseconds(o.Delay)
	}
}

// acks are completed jobs whose rows change in the same few columns.
type acks struct{ seqs []int64 }

func (b *batch) ack(r *record, result []byte, q *acks) {
	r.finish(pawl.Completed, "", b.now)
	if r.gone {
		return
	}
	if len(result) > 0 || r.apart&resultPart != 0 {
		r.store(resultPart, result)
		return
	}
	if !r.windowed() && !r.dropKey {
		q.seqs = append(q.seqs, r.seq)
		r.dirty = false
	}
}

// ackAll completes the jobs that keep no result and hold no key.
func (b *batch) ackAll(q *acks) error {
	for part := range slices.Chunk(q.seqs, maxRows) {
		slices.Sort(part)
		t := b.sql("UPDATE ").seqs(part).add(" SET state = 4, last_fence = fence, last_verb = 1, moment = ").num(b.now)
		t.add(", wake_at = retention + ").num(b.now)
		if _, err := b.exec(t); err != nil {
			return err
		}
	}
	return nil
}
