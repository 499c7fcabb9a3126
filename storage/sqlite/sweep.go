package sqlite

import (
	"context"
	"os"
	"time"

	"github.com/pawlq/pawl"
)

// Limits of giving space back.
const (
	// vacuumSlack is how many free pages stay in the file for what comes next.
	vacuumSlack = 256
	// vacuumStep is how many pages one sweep gives back: 8 MB, some 20 ms.
	vacuumStep = 2048
	// walLimit is the size from which a sweep empties the write-ahead log.
	walLimit = 64 << 20
	// maxGrace is how long leases last at most beyond their end because the
	// file was locked: a heartbeat of a lease of 30 s.
	maxGrace = 10 * time.Second
)

func (s *Store) sweep(ctx context.Context, spec pawl.SweepSpec) (sw pawl.Swept, err error) {
	err = s.mending(ctx, func() error {
		return s.writer.do(&request{ctx: ctx, class: classSweep, jobs: spec.Limit, run: func(b *batch) (err error) {
			sw, err = b.sweep(spec)
			return err
		}})
	})
	if err != nil {
		return pawl.Swept{}, err
	}
	err = s.sweepExcess(ctx, spec, &sw)
	return sw, err
}

func (b *batch) sweep(spec pawl.SweepSpec) (sw pawl.Swept, err error) {
	if sw.Promoted, err = b.promoteAll(spec.Limit); err != nil {
		return sw, err
	}
	if sw.Expired, err = b.expire(spec.Limit); err != nil {
		return sw, err
	}
	rescues, err := b.rescueAll(spec.Limit, &sw)
	if err != nil {
		return sw, err
	}
	if sw.Purged, err = b.purgeAll(spec); err != nil {
		return sw, err
	}
	vacuumed, err := b.giveSpaceBack()
	if err != nil {
		return sw, err
	}
	sw.More = vacuumed || max(sw.Promoted, sw.Expired, rescues, sw.Purged) >= spec.Limit
	sw.NextDue, err = b.nextOfAll(spec)
	return sw, err
}

func (b *batch) promoteAll(limit int) (int, error) {
	queues, err := column[string](b.ctx, b.run, b.q.promoteAll, b.now, limit)
	if err != nil {
		return 0, err
	}
	for _, queue := range queues {
		b.events.due(queue, b.now)
	}
	return len(queues), nil
}

// rescueAll takes jobs back whose lease has expired.
func (b *batch) rescueAll(limit int, sw *pawl.Swept) (int, error) {
	found, err := b.records(b.q.expiredLeases, b.now, limit, b.grace.from, b.grace.to, maxGrace.Microseconds())
	if err != nil {
		return 0, err
	}
	for _, r := range found {
		ref := r.ref()
		buried, err := b.rescue(r)
		if err != nil {
			return 0, err
		}
		if buried {
			sw.Buried = append(sw.Buried, ref)
		} else {
			sw.Rescued = append(sw.Rescued, ref)
		}
		b.events.ended(ref)
	}
	return len(found), nil
}

func (b *batch) rescue(r *record) (buried bool, err error) {
	r.fail(b.now, "lease expired", "")
	r.attempt--
	if r.rescued >= r.maxRescues {
		return true, b.end(r, r.finish(pawl.Buried, pawl.ReasonRescues, b.now))
	}
	r.rescued++
	r.count(func(c *pawl.Counts) { c.Rescues++ })
	r.reason = string(pawl.ReasonRescue)
	r.runAt = b.now + microseconds(pawl.RescueDelay(r.rescued))
	r.wait(b.now)
	b.events.due(r.queue, r.runAt)
	return false, b.save(r)
}

// purgeAll removes records whose retention is over.
func (b *batch) purgeAll(spec pawl.SweepSpec) (int, error) {
	n, err := b.removeBy(b.q.purge, b.now, spec.Limit)
	if err != nil || spec.BuriedRetention <= 0 {
		return n, err
	}
	queues, err := column[string](b.ctx, b.run, b.q.buriedQueues)
	if err != nil {
		return 0, err
	}
	before := b.now - microseconds(spec.BuriedRetention)
	for _, queue := range queues {
		more, err := b.removeBy(b.q.oldBuried, queue, before, b.now, spec.Limit-n)
		if err != nil {
			return 0, err
		}
		n += more
	}
	return n, nil
}

// removeBy removes the jobs that a query finds.
func (b *batch) removeBy(s *statement, args ...any) (int, error) {
	seqs, err := column[int64](b.ctx, b.run, s, args...)
	if err != nil {
		return 0, err
	}
	for _, seq := range seqs {
		if err := b.remove(seq); err != nil {
			return 0, err
		}
	}
	return len(seqs), nil
}

// nextOfAll is how long until the next thing that Sweep does is due.
func (b *batch) nextOfAll(spec pawl.SweepSpec) (time.Duration, error) {
	var next int64
	for _, s := range []*statement{b.q.nextScheduledAny, b.q.nextLease, b.q.nextExpiry, b.q.nextPurge} {
		at, err := b.number(s)
		if err != nil {
			return 0, err
		}
		next = sooner(next, at)
	}
	if spec.BuriedRetention > 0 {
		at, err := b.nextBuried(microseconds(spec.BuriedRetention))
		if err != nil {
			return 0, err
		}
		next = sooner(next, at)
	}
	return b.until(next), nil
}

// nextBuried is when the first buried job is to go. The oldest of a queue goes first, unless
// its window keeps it for longer: then more are looked at.
func (b *batch) nextBuried(retention int64) (next int64, err error) {
	var windowed []string
	rows, err := b.run.query(b.ctx, b.q.oldestBuried)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var queue string
		var at, window int64
		if err := rows.Scan(&queue, &at, &window); err != nil {
			return 0, err
		}
		if window > retention {
			windowed = append(windowed, queue)
			continue
		}
		next = sooner(next, at+retention)
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	for _, queue := range windowed {
		at, err := b.number(b.q.nextBuried, queue, retention, pawl.MaxStep)
		if err != nil {
			return 0, err
		}
		next = sooner(next, at)
	}
	return next, nil
}

// giveSpaceBack moves free pages out of the file, if it was made for that, and
// reports whether there are more than should stay.
func (b *batch) giveSpaceBack() (more bool, err error) {
	free, err := b.number(freePages)
	if err != nil || free <= vacuumSlack {
		return false, err
	}
	mode, err := b.number(autoVacuum)
	if err != nil || mode != autoVacuumIncremental {
		return false, err
	}
	rows, err := b.run.query(b.ctx, giveBack)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	for rows.Next() { // an empty row a page: it stops when they are not read
	}
	return free-vacuumStep > vacuumSlack, rows.Err()
}

// autoVacuumIncremental is what PRAGMA auto_vacuum says of a file that gives
// pages back when asked.
const autoVacuumIncremental = 2

// shrinkWAL empties the write-ahead log after a commit if it has grown large,
// as it does while a reader is at work for long.
func (w *writer) shrinkWAL() {
	info, err := os.Stat(w.log.path)
	if err != nil || info.Size() < walLimit {
		return
	}
	_, _ = number(w.ctx, w.run, truncateWAL) // busy: the next sweep tries again
}
