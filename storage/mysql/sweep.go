package mysql

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// sweep does each sort of work in a transaction of its own, so that no locks are
// kept longer than for one.
func (s *Store) sweep(ctx context.Context, spec pawl.SweepSpec) (sw pawl.Swept, err error) {
	for _, step := range []func(b *batch, spec pawl.SweepSpec, sw *pawl.Swept) (full bool, err error){
		(*batch).sweepScheduled, (*batch).sweepLate, (*batch).sweepLeases, (*batch).sweepFences,
	} {
		var (
			done pawl.Swept
			full bool
		)
		err := s.inTx(ctx, func(b *batch) (err error) {
			done = pawl.Swept{}
			if err := b.lookAtClock(); err != nil {
				return err
			}
			full, err = step(b, spec, &done)
			return err
		})
		if err != nil {
			return sw, err
		}
		sw.Promoted, sw.Expired = sw.Promoted+done.Promoted, sw.Expired+done.Expired
		sw.Rescued, sw.Buried = append(sw.Rescued, done.Rescued...), append(sw.Buried, done.Buried...)
		sw.More = sw.More || full
	}
	for _, step := range []func(*Store, context.Context, pawl.SweepSpec, int) (int, error){(*Store).sweepOver, (*Store).sweepBuried} {
		n, err := step(s, ctx, spec, spec.Limit-sw.Purged)
		sw.Purged += n
		if err != nil {
			return sw, err
		}
	}
	n, err := s.sweepExcess(ctx, spec, spec.Limit-sw.Purged) // in one queue it may always take too long
	sw.Purged += n
	full := sw.Purged == spec.Limit
	sw.More = sw.More || full
	s.pace.Swept(full)
	err = cmp.Or(err, s.alone(ctx, func(b *batch) (err error) {
		sw.NextDue, err = b.nextOfAll(spec)
		return err
	}))
	return sw, err
}

// overdue locks jobs of a state with which a sweep has to do.
func (b *batch) overdue(state pawl.State, limit int) ([]*record, error) {
	t := b.locking("SELECT "+recordColumns, "wake").add("state = ").num(int64(state)).add(" AND wake_at <= ").num(b.now)
	return b.lock(b.forUpdate(t.add(" ORDER BY wake_at LIMIT ").num(int64(limit))))
}

// sweepScheduled promotes scheduled jobs, or ends them.
func (b *batch) sweepScheduled(spec pawl.SweepSpec, sw *pawl.Swept) (full bool, err error) {
	found, err := b.overdue(pawl.Scheduled, spec.Limit)
	if err != nil {
		return false, err
	}
	var due []int64
	for _, r := range found {
		switch {
		case r.startBefore > 0 && r.startBefore <= b.now:
			r.finish(pawl.Canceled, pawl.ReasonExpired, b.now)
			sw.Expired++
		default:
			due = append(due, r.seq)
			b.due(r.queue, b.now)
		}
	}
	sw.Promoted = len(due)
	if err := b.makeReady(due); err != nil {
		return false, err
	}
	err = b.flush(found)
	stay := staying(found)
	sw.Expired -= stay
	return len(found)-stay == spec.Limit, err
}

// sweepLate ends ready jobs whose StartBefore has come.
func (b *batch) sweepLate(spec pawl.SweepSpec, sw *pawl.Swept) (full bool, err error) {
	found, err := b.overdue(pawl.Ready, spec.Limit)
	if err != nil {
		return false, err
	}
	for _, r := range found {
		r.finish(pawl.Canceled, pawl.ReasonExpired, b.now)
	}
	err = b.flush(found)
	sw.Expired = len(found) - staying(found)
	return sw.Expired == spec.Limit, err
}

// sweepLeases takes jobs back whose lease has expired. Heartbeats tell it by its mark from
// other transactions that hold a job.
func (b *batch) sweepLeases(spec pawl.SweepSpec, sw *pawl.Swept) (full bool, err error) {
	if err := b.markRescue(); err != nil {
		return false, err
	}
	found, err := b.overdue(pawl.Running, spec.Limit)
	if err != nil {
		return false, err
	}
	for _, r := range found {
		ref := r.ref()
		if b.rescue(r) {
			sw.Buried = append(sw.Buried, ref)
		} else {
			sw.Rescued = append(sw.Rescued, ref)
		}
		b.events.ended(ref)
	}
	return len(found) == spec.Limit, b.flush(found)
}

func (b *batch) rescue(r *record) (buried bool) {
	r.fail(b.now, "lease expired", "")
	r.attempt--
	if r.rescued >= r.maxRescues {
		r.finish(pawl.Buried, pawl.ReasonRescues, b.now)
		return true
	}
	r.rescued++
	r.count(func(c *pawl.Counts) { c.Rescues++ })
	r.reason = string(pawl.ReasonRescue)
	r.runAt = b.now + microseconds(pawl.RescueDelay(r.rescued))
	r.wait(b.now)
	b.due(r.queue, r.runAt)
	return false
}

// remove calls f in small steps, each in a transaction, to remove up to limit jobs.
func (s *Store) remove(ctx context.Context, limit int, f func(b *batch, limit int) (int, error)) (int, error) {
	return s.pace.Delete(ctx, limit, func(limit int) (n int, err error) {
		err = s.inTx(ctx, func(b *batch) (err error) {
			if err := b.lookAtClock(); err != nil {
				return err
			}
			n, err = f(b, limit)
			return err
		})
		if err != nil {
			return 0, err
		}
		return n, nil
	})
}

// sweepOver removes records whose retention is over.
func (s *Store) sweepOver(ctx context.Context, _ pawl.SweepSpec, limit int) (int, error) {
	return s.remove(ctx, limit, (*batch).purgeOver)
}

func (b *batch) purgeOver(limit int) (n int, err error) {
	for _, state := range []pawl.State{pawl.Completed, pawl.Canceled} {
		if n == limit {
			break
		}
		found, err := b.overdue(state, limit-n)
		if err != nil {
			return 0, err
		}
		purged, err := b.purge(found)
		if err != nil {
			return 0, err
		}
		n += purged
	}
	return n, nil
}

func (b *batch) purge(found []*record) (n int, err error) {
	for _, r := range found {
		r.remove()
	}
	err = b.flush(found)
	return len(found) - staying(found), err
}

// sweepBuried removes buried jobs that are too old.
func (s *Store) sweepBuried(ctx context.Context, spec pawl.SweepSpec, limit int) (n int, err error) {
	if spec.BuriedRetention <= 0 {
		return 0, nil
	}
	for queue := ""; n < limit; {
		var next string
		err := s.reading(ctx, func(b *batch) (err error) {
			next, err = b.nextQueue(queue)
			return err
		})
		if next == "" || err != nil {
			return n, err
		}
		queue = next
		k, err := s.remove(ctx, limit-n, func(b *batch, limit int) (int, error) {
			return b.purgeUpTo(queue, pawl.Buried, place{b.now - microseconds(spec.BuriedRetention), math.MaxInt64}, limit)
		})
		n += k
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// sweepFences removes rows that have done their work. Those of claims that are
// not committed stay: one of them may belong to a process that stands still.
func (b *batch) sweepFences(pawl.SweepSpec, *pawl.Swept) (full bool, err error) {
	t := b.sql("SELECT n FROM pawl_fence ORDER BY n LIMIT ").num(maxFences).add(" FOR UPDATE SKIP LOCKED")
	done, err := column[int64](b, t)
	if err != nil {
		return false, err
	}
	for part := range slices.Chunk(done, maxRows) {
		t := b.sql("DELETE j FROM JSON_TABLE('[").nums(part).add("]', '$[*]' COLUMNS (n BIGINT PATH '$')) AS v")
		if _, err := b.exec(t.add(" STRAIGHT_JOIN pawl_fence AS j FORCE INDEX (PRIMARY) ON j.n = v.n")); err != nil {
			return false, err
		}
	}
	return false, nil
}

// maxFences is how many claims a sweep cleans up after, some milliseconds of
// work.
const maxFences = 20_000

// nextOfAll is how long until the next thing that Sweep does is due.
func (b *batch) nextOfAll(spec pawl.SweepSpec) (time.Duration, error) {
	if err := b.lookAtClock(); err != nil {
		return 0, err
	}
	t := b.sql("SELECT MIN(at) FROM (")
	for i, state := range []string{"1", "2", "3", "4", "6"} {
		if i > 0 {
			t.add(" UNION ALL ")
		}
		from := " FROM pawl_job FORCE INDEX (wake) WHERE state = " + state + " AND wake_at "
		t.add("SELECT MIN(wake_at) AS at").add(from).add("> ").num(b.now)
		// What is due and still there is locked.
		t.add(" UNION ALL (SELECT ").num(b.now + heldPause).add(" AS at").add(from).add("<= ").num(b.now).add(" LIMIT 1)")
	}
	next, err := b.number(t.add(") AS due"))
	if err != nil || spec.BuriedRetention <= 0 {
		return until(next, b.now), err
	}
	for queue := ""; ; {
		if queue, err = b.nextQueue(queue); queue == "" || err != nil {
			return until(next, b.now), err
		}
		at, err := b.buriedUntil(queue, microseconds(spec.BuriedRetention))
		if err != nil {
			return 0, err
		}
		next = sooner(next, at)
	}
}

// buriedUntil is when the first buried job of a queue is to go, as far as the
// oldest ones tell; 0 if there is none. A window keeps a job for longer.
func (b *batch) buriedUntil(queue string, retention int64) (int64, error) {
	t := b.sql("SELECT MIN(at) FROM (SELECT moment + GREATEST(").num(retention)
	t.add(", IF(umode = 2 AND ukey <> '', uwindow, 0)) AS at FROM pawl_job FORCE INDEX (place) WHERE queue = ").name(queue)
	at, err := b.number(t.add(" AND state = 5 AND urgency = 0 ORDER BY moment, seq LIMIT ").num(pawl.MaxStep).add(") AS oldest"))
	if at > 0 && at <= b.now {
		at = b.now + heldPause
	}
	return at, err
}
