package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// maxPromoted bounds the due jobs that a Claim makes ready first, some 50 ms of
// work. Only if more of a queue have become due since the last one, jobs may
// come out of order.
const maxPromoted = 10_000

func (s *Store) claim(ctx context.Context, spec pawl.ClaimSpec) (c pawl.Claimed, err error) {
	err = s.mending(ctx, func() error {
		return s.writer.do(&request{ctx: ctx, class: classClaim, jobs: spec.Max, run: func(b *batch) (err error) {
			c, err = b.claim(spec)
			return err
		}})
	})
	if err != nil {
		return pawl.Claimed{}, err
	}
	return c, nil
}

func (s *Store) cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) (lost []pawl.Ref, c pawl.Claimed, err error) {
	run := func(b *batch) (err error) {
		if lost, err = b.settle(outcomes); err == nil {
			c, err = b.claim(spec)
		}
		return err
	}
	err = s.mending(ctx, func() error {
		return s.writer.do(&request{
			ctx: ctx, class: classClaim, jobs: len(outcomes) + spec.Max, bytes: outcomeBytes(outcomes), run: run,
		})
	})
	if err != nil {
		return nil, pawl.Claimed{}, err
	}
	return lost, c, nil
}

func (b *batch) claim(spec pawl.ClaimSpec) (c pawl.Claimed, err error) {
	if spec.Repeat {
		if c.Jobs, err = b.claimedBy(spec); len(c.Jobs) > 0 || err != nil {
			return c, err
		}
	}
	if _, err = b.expire(pawl.MaxStep); err != nil {
		return c, err
	}
	paused, err := column[string](b.ctx, b.run, b.q.paused)
	if err != nil {
		return c, err
	}
	fence, promotions := int64(0), maxPromoted
	for _, ask := range spec.Queues {
		n := min(ask.Max, spec.Max-len(c.Jobs))
		if n <= 0 || slices.Contains(paused, ask.Queue) {
			continue
		}
		promoted, err := b.exec(b.q.promote, ask.Queue, b.now, max(promotions, pawl.MaxStep))
		if err != nil {
			return c, err
		}
		promotions -= int(promoted)
		if fence == 0 {
			if fence, err = b.nextFence(); err != nil {
				return c, err
			}
		}
		jobs, err := b.claimQueue(ask.Queue, n, fence, spec)
		if err != nil {
			return c, err
		}
		c.Jobs = append(c.Jobs, jobs...)
	}
	if len(c.Jobs) == 0 && fence > 0 {
		b.fence-- // not used, so nothing needs to be written
	}
	if len(c.Jobs) < spec.Max {
		c.NextDue, err = b.nextDue(spec.Queues, paused)
	}
	return c, err
}

// claimQueue claims up to n jobs of a queue.
func (b *batch) claimQueue(queue string, n int, fence int64, spec pawl.ClaimSpec) ([]*pawl.Job, error) {
	lease := microseconds(spec.Lease)
	found, payloads, err := b.takeRows(b.now, lease, fence, spec.Worker, spec.Token, queue, n)
	if err != nil {
		return nil, err
	}
	jobs := make([]*pawl.Job, len(found))
	for i, r := range found {
		r.queue, r.state, r.fence, r.worker, r.claimedAt = queue, pawl.Running, fence, spec.Worker, b.now
		r.at = b.now + lease
		if r.lease > 0 {
			r.at = b.now + r.lease
		}
		if r.held && r.umode == pawl.UniqueUntilClaimed {
			if _, err := b.run.exec(b.ctx, b.q.release, r.seq); err != nil {
				return nil, err
			}
		}
		jobs[i] = r.job()
		jobs[i].Payload = payloads[r.seq]
		if err := b.complete(jobs[i], r); err != nil {
			return nil, err
		}
	}
	return jobs, nil
}

// takeRows makes the next rows running and returns them in claim order.
func (b *batch) takeRows(args ...any) ([]*record, map[int64][]byte, error) {
	rows, err := b.run.query(b.ctx, b.q.claim, args...)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	var found []*record
	payloads := make(map[int64][]byte)
	for rows.Next() {
		r := new(record)
		payload, err := r.scanClaimed(rows)
		if err != nil {
			return nil, nil, err
		}
		found = append(found, r)
		payloads[r.seq] = payload
	}
	slices.SortFunc(found, inClaimOrder)
	return found, payloads, rows.Err()
}

func inClaimOrder(a, b *record) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.runAt, b.runAt), cmp.Compare(a.seq, b.seq))
}

// scanClaimed reads a row of claimColumns.
func (r *record) scanClaimed(rows *sql.Rows) (payload []byte, err error) {
	err = r.scanRow(rows, &r.seq, &r.idBytes, &r.kind, &r.priority, &r.runAt, &r.startBefore, &r.createdAt, &r.startedAt,
		&r.lease, &r.timeout, &r.retention, &r.maxAttempts, &r.maxRescues, &r.attempt, &r.rescued, &r.ukey, &r.umode,
		&r.uwindow, &r.held, &r.extends, &r.counts, &r.failures, &r.meta, &r.apart, &payload)
	return payload, err
}

// complete adds to a running job what is kept in other tables.
func (b *batch) complete(j *pawl.Job, r *record) (err error) {
	if r.apart&payloadApart != 0 {
		if j.Payload, err = fetch(b.ctx, b.run, b.q.payload, r.seq); err != nil {
			return err
		}
	}
	if r.failures > 0 {
		j.Failures, err = failuresOf(b.ctx, b.run, b.q.failures, r.seq)
	}
	return err
}

// claimedBy returns the jobs that an earlier claim with the token has made
// running.
func (b *batch) claimedBy(spec pawl.ClaimSpec) ([]*pawl.Job, error) {
	var jobs []*pawl.Job
	for _, ask := range spec.Queues {
		found, err := b.records(b.q.claimedBy, ask.Queue, spec.Token, pawl.MaxStep)
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			j, err := fullJob(b.ctx, b.run, b.q, r.id)
			if err != nil {
				return nil, err
			}
			if j != nil { // or its row is damaged
				jobs = append(jobs, j)
			}
		}
	}
	return jobs, nil
}

// nextDue is how long until the first scheduled job of the queues is due.
func (b *batch) nextDue(asks []pawl.QueueAsk, paused []string) (time.Duration, error) {
	var next int64
	for _, ask := range asks {
		if slices.Contains(paused, ask.Queue) {
			continue
		}
		at, err := b.number(b.q.nextDue, ask.Queue)
		if err != nil {
			return 0, err
		}
		next = sooner(next, at)
	}
	return b.until(next), nil
}

// sooner is the earlier of two times, of which 0 is none.
func sooner(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// until is how long it is to a time, at least a microsecond; 0 if it is none.
func (b *batch) until(at int64) time.Duration {
	if at == 0 {
		return 0
	}
	return time.Duration(max(at-b.now, 1)) * time.Microsecond
}

// expire ends waiting jobs whose StartBefore has come.
func (b *batch) expire(limit int) (int, error) {
	found, err := b.records(b.q.expired, b.now, limit)
	if err != nil {
		return 0, err
	}
	for _, r := range found {
		if err := b.end(r, r.finish(pawl.Canceled, pawl.ReasonExpired, b.now)); err != nil {
			return 0, err
		}
	}
	return len(found), nil
}
