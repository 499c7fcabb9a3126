package sqlite

import (
	"context"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

func (s *Store) settle(ctx context.Context, outcomes []pawl.Outcome) (lost []pawl.Ref, err error) {
	run := func(b *batch) (err error) {
		lost, err = b.settle(outcomes)
		return err
	}
	err = s.mending(ctx, func() error {
		return s.writer.do(&request{
			ctx: ctx, class: classSettle, jobs: len(outcomes), bytes: outcomeBytes(outcomes), run: run,
		})
	})
	if err != nil {
		return nil, err
	}
	return lost, nil
}

func outcomeBytes(outcomes []pawl.Outcome) int {
	n := 0
	for i := range outcomes {
		n += len(outcomes[i].Result) + len(outcomes[i].Error) + len(outcomes[i].Stack)
	}
	return n
}

// verdict is what became of one outcome.
type verdict int

const (
	refused  verdict = iota // the claim is no longer current
	missing                 // and there is no such job
	applied                 // the job has moved
	repeated                // it had before
)

func (b *batch) settle(outcomes []pawl.Outcome) (lost []pawl.Ref, err error) {
	var failed []int // places of outcomes that were lost
	for i := range outcomes {
		v, err := b.settleOne(&outcomes[i])
		if err != nil {
			return nil, err
		}
		if v == applied || v == repeated || v == missing && outcomes[i].Repeat || againInCall(outcomes[:i], failed, &outcomes[i]) {
			continue
		}
		failed = append(failed, i)
		lost = append(lost, outcomes[i].Ref)
	}
	return lost, nil
}

// againInCall reports whether the same outcome earlier in the call was success:
// what came after it may have removed the record, or ended another claim.
func againInCall(before []pawl.Outcome, failed []int, o *pawl.Outcome) bool {
	for i := range before {
		p := &before[i]
		if p.Ref.ID == o.Ref.ID && p.Ref.Fence == o.Ref.Fence && p.Verb == o.Verb {
			if _, lost := slices.BinarySearch(failed, i); !lost {
				return true
			}
		}
	}
	return false
}

func (b *batch) settleOne(o *pawl.Outcome) (verdict, error) {
	if o.Verb == pawl.Ack && o.Ref.Locator > 0 && len(o.Result) <= apartSize {
		ok, err := b.ackAtOnce(o)
		if ok || err != nil {
			return applied, err
		}
	}
	r, err := b.find(o.Ref.ID, seqOf(o.Ref.Locator))
	switch {
	case err != nil:
		return refused, err
	case r == nil:
		return missing, nil
	case r.state == pawl.Running && r.fence == o.Ref.Fence:
		return applied, b.settleRecord(r, o)
	case o.Ref.Fence != 0 && r.lastFence == o.Ref.Fence && r.lastVerb == o.Verb:
		return repeated, nil
	}
	return refused, nil
}

// The locator of a claim is the row number, and a bit that says that the
// record goes with an ack. Both are only hints: the row decides.
func locator(seq int64, deleteNow bool) int64 {
	if deleteNow {
		return seq<<1 | 1
	}
	return seq << 1
}

func seqOf(locator int64) int64 { return locator >> 1 }

// ackAtOnce is an ack in one statement; it does not apply to jobs with a
// unique window.
func (b *batch) ackAtOnce(o *pawl.Outcome) (bool, error) {
	var n int64
	var err error
	if o.Ref.Locator&1 == 1 {
		n, err = b.exec(b.q.ackDelete, seqOf(o.Ref.Locator), o.Ref.Fence, o.Ref.ID[:])
	} else {
		var result any
		if len(o.Result) > 0 {
			result = o.Result
		}
		n, err = b.exec(b.q.ackKeep, b.now, seqOf(o.Ref.Locator), o.Ref.Fence, o.Ref.ID[:], result)
	}
	return n > 0, err
}

// settleRecord moves a running job as the outcome says.
func (b *batch) settleRecord(r *record, o *pawl.Outcome) error {
	r.lastFence, r.lastVerb = r.fence, o.Verb
	at := b.now
	switch o.Verb {
	case pawl.Ack:
		return b.ack(r, o.Result)
	case pawl.Nack:
		r.fail(b.now, o.Error, o.Stack)
		if r.maxAttempts > 0 && r.attempt >= r.maxAttempts {
			return b.end(r, r.finish(pawl.Buried, pawl.ReasonAttempts, b.now))
		}
		r.count(func(c *pawl.Counts) { c.Retries++ })
		r.reason = string(pawl.ReasonRetry)
		r.runAt = b.now + max(0, microseconds(o.Delay))
	case pawl.Bury:
		r.fail(b.now, o.Error, o.Stack)
		return b.end(r, r.finish(pawl.Buried, pawl.ReasonBury, b.now))
	default:
		b.handBack(r, o)
		if o.Delay <= 0 {
			at = max(at, r.runAt) // it is ready also if the clock was set back meanwhile
		}
	}
	r.wait(at)
	b.events.due(r.queue, r.runAt)
	return b.save(r)
}

func (b *batch) ack(r *record, result []byte) error {
	keep := r.finish(pawl.Completed, "", b.now)
	if keep {
		if err := b.setResult(r, result); err != nil {
			return err
		}
	}
	return b.end(r, keep)
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

func (s *Store) extend(ctx context.Context, renewals []pawl.Renewal) (lost []pawl.Ref, err error) {
	err = s.mending(ctx, func() error {
		return s.writer.do(&request{ctx: ctx, class: classSettle, jobs: len(renewals), run: func(b *batch) (err error) {
			lost, err = b.extend(renewals)
			return err
		}})
	})
	if err != nil {
		return nil, err
	}
	return lost, nil
}

func (b *batch) extend(renewals []pawl.Renewal) (lost []pawl.Ref, err error) {
	for i := range renewals {
		ok, err := b.extendOne(&renewals[i])
		if err != nil {
			return nil, err
		}
		if !ok {
			lost = append(lost, renewals[i].Ref)
		}
	}
	return lost, nil
}

func (b *batch) extendOne(r *pawl.Renewal) (bool, error) {
	var progress any
	if r.Progress != nil {
		p := *r.Progress
		p.At = toTime(b.now)
		progress = toJSON(p).String
	}
	until := b.now + microseconds(max(r.Lease, time.Microsecond))
	seq := seqOf(r.Ref.Locator)
	if seq > 0 {
		n, err := b.exec(b.q.extend, until, progress, seq, r.Ref.Fence, r.Ref.ID[:])
		if n > 0 || err != nil {
			return n > 0, err
		}
	}
	found, err := b.one(b.q.byID, r.Ref.ID[:])
	if found == nil || err != nil || found.state != pawl.Running || found.fence != r.Ref.Fence {
		return false, err
	}
	n, err := b.exec(b.q.extend, until, progress, found.seq, r.Ref.Fence, r.Ref.ID[:])
	return n > 0, err
}
