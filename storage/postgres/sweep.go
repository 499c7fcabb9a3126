package postgres

import (
	"cmp"
	"context"
	"slices"

	"github.com/pawlq/pawl"
)

// sweep does each sort of work in a transaction of its own, so that none holds
// locks for the others.
func (s *Store) sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	w := &sweep{s: s, ctx: ctx, spec: spec}
	defer s.publish(&w.events)
	for _, step := range []func() error{w.promote, w.expire, w.endLeases, w.rescue, w.tidy, w.unstrand, w.purge, w.purgeBuried} {
		if err := step(); err != nil {
			return w.swept, err
		}
	}
	err := cmp.Or(w.purgeExcess(), w.next()) // the first may always take too long in one queue
	return w.swept, err
}

// sweep is one call of Sweep.
type sweep struct {
	s      *Store
	ctx    context.Context
	spec   pawl.SweepSpec
	swept  pawl.Swept
	buried []string // queues with buried jobs
	events events
}

// full notes that as much was done as the limit allows.
func (w *sweep) full(n int) {
	if n >= w.spec.Limit {
		w.swept.More = true
	}
}

func (w *sweep) promote() error {
	var queues []string
	err := w.s.pipelined(w.ctx, func(p *pipeline) {
		queues = nil
		p.each(func(row scanner) error {
			var queue string
			err := row.Scan(&queue)
			queues = append(queues, queue)
			return err
		}, w.s.q.promoteAll, w.s.clock(), w.spec.Limit)
	})
	if err != nil {
		return err
	}
	for _, queue := range queues {
		w.events.due(queue, 0)
	}
	w.swept.Promoted = len(queues)
	w.full(len(queues))
	return nil
}

func (w *sweep) expire() error {
	n := 0
	err := w.s.pipelined(w.ctx, func(p *pipeline) {
		p.each(func(row scanner) error { return row.Scan(&n) }, w.s.q.expire, w.s.clock(), w.spec.Limit)
	})
	if err != nil {
		return err
	}
	w.swept.Expired = n
	w.full(n)
	return nil
}

// endLeases forgets what heartbeats left of claims that are over.
func (w *sweep) endLeases() error {
	var seqs []int64
	var ids []string
	err := w.s.inTx(w.ctx, func(run runner) error {
		seqs, ids = nil, nil
		err := run.each(w.ctx, func(row scanner) error {
			var seq int64
			var id string
			err := row.Scan(&seq, &id)
			seqs, ids = append(seqs, seq), append(ids, id)
			return err
		}, w.s.q.endLeases, w.s.clock(), w.spec.Limit)
		if err != nil || len(seqs) == 0 {
			return err
		}
		return run.exec(w.ctx, w.s.q.dropLeases, seqs, ids)
	})
	w.full(len(seqs))
	return err
}

// rescue takes jobs back whose lease has expired. The rows are locked first,
// against heartbeats that are being committed, and looked at then. Heartbeats tell
// rescues by their lock from other transactions that hold a job.
func (w *sweep) rescue() error {
	var swept pawl.Swept
	var told events
	done := 0
	err := w.s.inTx(w.ctx, func(run runner) error {
		swept, told, done = pawl.Swept{}, events{}, 0
		if err := run.exec(w.ctx, w.s.q.share, w.s.rescueHash()); err != nil {
			return err
		}
		ids, err := w.expired(run)
		if err != nil || len(ids) == 0 {
			return err
		}
		now, err := w.s.time(w.ctx, run)
		if err != nil {
			return err
		}
		found, err := w.s.records(w.ctx, run, w.s.q.rowsByID, ids)
		if err != nil {
			return err
		}
		c := &changes{s: w.s, run: run}
		for _, r := range found {
			if r.state != pawl.Running || r.until() > now {
				continue
			}
			ref := r.ref()
			if c.rescue(r, now) {
				swept.Buried = append(swept.Buried, ref)
			} else {
				swept.Rescued = append(swept.Rescued, ref)
			}
			done++
		}
		told = c.events
		return c.write(w.ctx)
	})
	if err != nil {
		return err
	}
	w.swept.Rescued, w.swept.Buried = swept.Rescued, swept.Buried
	w.events.add(&told)
	w.full(done)
	return nil
}

// expired locks running jobs whose lease seems to have expired.
func (w *sweep) expired(run runner) (ids []string, err error) {
	for _, sql := range []string{w.s.q.expiredClaims, w.s.q.expiredLeases} {
		limit := w.spec.Limit - len(ids)
		if limit == 0 {
			break
		}
		err := run.each(w.ctx, func(row scanner) error {
			var id pawl.ID
			err := row.Scan((*[16]byte)(&id))
			ids = append(ids, id.String())
			return err
		}, sql, w.s.clock(), limit)
		if err != nil {
			return nil, err
		}
	}
	if ids, err = w.expiredFresh(run, ids); err != nil {
		return nil, err
	}
	ids = ids[:min(len(ids), w.spec.Limit)]
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Limits of walking the claims that are due.
const (
	claimPage  = 10
	claimPages = 100
)

// place is where a walk through the claims is.
type place struct{ until, fence int64 }

// expiredFresh locks jobs in the fresh lane. A claim all of whose jobs others
// have locked does not hide those behind it.
func (w *sweep) expiredFresh(run runner, ids []string) ([]string, error) {
	var at place
	for page := 0; page < claimPages && len(ids) < w.spec.Limit; page++ {
		claims := map[int64]struct{}{}
		err := run.each(w.ctx, func(row scanner) error {
			var id string
			err := row.Scan(&at.until, &at.fence, &id)
			claims[at.fence] = struct{}{}
			if id != "" {
				ids = append(ids, id)
			}
			return err
		}, w.s.q.expiredFresh, w.s.clock(), at.until, at.fence, claimPage, w.spec.Limit-len(ids))
		if err != nil {
			return nil, err
		}
		if len(claims) < claimPage {
			break
		}
	}
	return ids, nil
}

// tidy corrects when claims are looked at next, and drops those that are over. There is
// more to do as long as it comes too late for any; those whose time is to come can wait.
func (w *sweep) tidy() error {
	var at place
	anyLate := false
	for range claimPages {
		n, right, from := 0, false, at
		err := w.s.pipelined(w.ctx, func(p *pipeline) {
			n, right = 0, false
			p.each(func(row scanner) error {
				var is, late bool
				err := row.Scan(&at.until, &at.fence, &is, &late)
				n, right, anyLate = n+1, right || is, anyLate || late
				return err
			}, w.s.q.tidyClaims, w.s.clock(), from.until, from.fence, claimPage)
		})
		if err != nil || right || n < claimPage {
			return err
		}
	}
	w.swept.More = w.swept.More || anyLate
	return nil
}

func (c *changes) rescue(r *record, now int64) (buried bool) {
	c.events.ended(r.ref())
	r.failure = &pawl.Failure{At: toTime(now), Attempt: r.attempt, WorkerID: r.worker, Error: "lease expired"}
	r.attempt--
	if r.rescued >= r.maxRescues {
		c.end(r, r.finish(pawl.Buried, pawl.ReasonRescues, now))
		return true
	}
	r.rescued++
	r.counts.Rescues++
	r.reason = string(pawl.ReasonRescue)
	delay := pawl.RescueDelay(r.rescued)
	r.runAt = now + microseconds(delay)
	r.wait(now)
	c.events.due(r.queue, delay)
	c.saved = append(c.saved, r)
	return false
}

func (w *sweep) purge() error {
	n, err := w.deleteBy(w.s.q.purge, w.spec.Limit, w.s.clock())
	w.swept.Purged += n
	w.full(n)
	return err
}

// deleteBy deletes up to limit jobs, which is the last argument of the statement, in
// small steps.
func (w *sweep) deleteBy(sql string, limit int, args ...any) (int, error) {
	return w.s.pace.Delete(w.ctx, limit, func(limit int) (int, error) {
		return w.deleteOnce(sql, append(slices.Clip(args), limit)...)
	})
}

// deleteOnce runs a statement that deletes jobs and returns their seqs.
func (w *sweep) deleteOnce(sql string, args ...any) (n int, err error) {
	err = w.s.inTx(w.ctx, func(run runner) error {
		var seqs []int64
		err := run.each(w.ctx, func(row scanner) error {
			var seq int64
			err := row.Scan(&seq)
			seqs = append(seqs, seq)
			return err
		}, sql, args...)
		if n = len(seqs); err != nil || n == 0 {
			return err
		}
		return run.exec(w.ctx, w.s.q.forgetLeases, seqs)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// purgeBuried deletes buried jobs that are too old.
func (w *sweep) purgeBuried() error {
	if w.spec.BuriedRetention <= 0 {
		return nil
	}
	err := w.s.read(w.ctx, func(row scanner) error {
		var queue string
		err := row.Scan(&queue)
		w.buried = append(w.buried, queue)
		return err
	}, w.s.q.buriedQueues)
	if err != nil {
		return err
	}
	for _, queue := range w.buried {
		left := w.spec.Limit - w.swept.Purged
		if left <= 0 {
			break
		}
		n, err := w.deleteBy(w.s.q.oldBuried, left, w.s.clock(), queue, microseconds(w.spec.BuriedRetention))
		w.swept.Purged += n
		if err != nil {
			return err
		}
	}
	w.full(w.swept.Purged)
	return nil
}

// next finds out when something is due again.
func (w *sweep) next() error {
	var us int64
	err := w.s.read(w.ctx, func(row scanner) error { return row.Scan(&us) }, w.s.q.nextOfAll, w.s.clock())
	if err != nil {
		return err
	}
	w.swept.NextDue = untilMicros(us)
	if len(w.buried) == 0 {
		return nil
	}
	err = w.s.read(w.ctx, func(row scanner) error { return row.Scan(&us) }, w.s.q.nextBuried,
		w.s.clock(), w.buried, microseconds(w.spec.BuriedRetention), pawl.MaxStep)
	if due := untilMicros(us); err == nil && due > 0 && (w.swept.NextDue == 0 || due < w.swept.NextDue) {
		w.swept.NextDue = due
	}
	return err
}
