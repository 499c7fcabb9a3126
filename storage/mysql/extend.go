package mysql

import (
	"context"
	"time"

	"github.com/pawlq/pawl"
)

// extendTries is how often an extend looks again at a job that is locked. What
// locks it may be a rescue that is just being committed; a transaction that
// stays open for longer holds a claim that is alive.
const extendTries = 4

func (s *Store) extend(ctx context.Context, renewals []pawl.Renewal) (lost []pawl.Ref, err error) {
	if len(renewals) == 0 {
		return nil, nil
	}
	todo := make([]int, len(renewals))
	for i := range todo {
		todo[i] = i
	}
	gone := make([]bool, len(renewals))
	for try := 1; ; try++ {
		var locked []int
		err := s.inTx(ctx, func(b *batch) (err error) {
			locked, err = b.extend(renewals, todo, gone)
			return err
		})
		if err != nil {
			return nil, err
		}
		if todo = locked; len(todo) == 0 || try == extendTries || pause(ctx, try) != nil {
			break
		}
	}
	for i := range renewals {
		if gone[i] {
			lost = append(lost, renewals[i].Ref)
		}
	}
	return lost, nil
}

// extend extends some of the renewals. It notes those whose claim is gone, and
// returns those whose jobs are locked.
func (b *batch) extend(renewals []pawl.Renewal, todo []int, gone []bool) (locked []int, err error) {
	refs := make([]pawl.Ref, len(todo))
	for k, i := range todo {
		refs[k] = renewals[i].Ref
	}
	f, err := b.lockJobs(refs)
	if err != nil {
		return nil, err
	}
	for _, i := range todo {
		gone[i] = false
		ref := renewals[i].Ref
		if r := f.all[ref.ID]; r != nil && r.current(ref.Fence) {
			b.extendOne(r, &renewals[i])
		} else if r := f.locked[ref.ID]; r != nil && r.current(ref.Fence) {
			locked = append(locked, i)
		} else {
			gone[i] = true
		}
	}
	return locked, b.flush(f.records())
}

// extendOne renews a lease, whose end is when a sweep has to do with the job.
func (b *batch) extendOne(r *record, n *pawl.Renewal) {
	r.wakeAt = b.now + microseconds(max(n.Lease, time.Microsecond))
	r.extends++
	r.dirty = true
	if n.Progress != nil {
		p := *n.Progress
		p.At = toTime(b.now)
		r.progress = toJSON(p)
	}
}
