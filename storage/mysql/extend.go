package mysql

import (
	"context"
	"time"

	"github.com/pawlq/pawl"
)

// rescueTries is how often an extend looks whether rescues are committed, and a rescue whether
// extends are: about a second. Whoever has the mark for longer stands still, and must not stop
// the others: what an extend said then, the next heartbeat corrects, and the fence holds.
const rescueTries = 14

// extend extends the renewals. What is locked then may be so by a rescue that is just
// being committed, so it is tried again while there is none. What is locked still is
// held by an open transaction, and that claim is alive.
func (s *Store) extend(ctx context.Context, renewals []pawl.Renewal) (lost []pawl.Ref, err error) {
	if len(renewals) == 0 {
		return nil, nil
	}
	todo := make([]int, len(renewals))
	for i := range todo {
		todo[i] = i
	}
	gone := make([]bool, len(renewals))
	for try := 0; len(todo) > 0; try++ {
		var locked []int
		done := true
		err := s.inTx(ctx, func(b *batch) (err error) {
			if try > 0 {
				if done, err = b.noRescue(); err != nil || !done && try < rescueTries {
					return err
				}
			}
			locked, err = b.extend(renewals, todo, gone)
			return err
		})
		switch {
		case err != nil:
			return nil, err
		case try == 0:
			todo = locked
		case done, try == rescueTries, pause(ctx, try) != nil:
			todo = nil
		}
	}
	for i := range renewals {
		if gone[i] {
			lost = append(lost, renewals[i].Ref)
		}
	}
	return lost, nil
}

// Rescues share a lock on this row until they are committed. MariaDB and MySQL have no words
// for that in common: each takes the words of the other for a comment.
const (
	rescueMark = "SELECT one FROM pawl_meta WHERE one = 1 "
	shared     = "/*M!100600 LOCK IN SHARE MODE SKIP LOCKED *//*!80001 FOR SHARE SKIP LOCKED */"
)

// noRescue lets no rescue begin until the transaction ends, unless one is under way.
func (b *batch) noRescue() (bool, error) {
	n, err := b.number(b.sql(rescueMark + "FOR UPDATE SKIP LOCKED"))
	return n == 1, err
}

// markRescue marks the transaction as a rescue, unless an extend keeps it from that for long.
func (b *batch) markRescue() error {
	for try := 1; ; try++ {
		n, err := b.number(b.sql(rescueMark + shared))
		if n == 1 || err != nil || try == rescueTries {
			return err
		}
		if err := pause(b.ctx, try); err != nil {
			return err
		}
	}
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
