package postgres

import "github.com/pawlq/pawl"

// A fresh job behind the head that is in no claim would never run. Nothing makes
// one but a hand, or a fault; Sweep looks for such jobs and moves them to the
// placed lane. It also drops the heads of queues that are used no more.

func (q *statements) strands(o *Options) {
	q.tryLock = `SELECT pg_try_advisory_xact_lock($1::bigint)`
	// pawl_head_pkey, pawl_job_fresh: one probe each finds queues whose first
	// fresh job behind the head is old, or whose head is.
	q.suspects = named(withNow+`
	SELECT h.queue FROM t, public.pawl_head h WHERE h.queue > '' COLLATE "C"
		AND ((SELECT j.run_at FROM public.pawl_job j WHERE j.state = 0 AND j.queue = h.queue AND (j.xid, j.seq) <= (h.xid, h.seq)
				ORDER BY j.xid, j.seq LIMIT 1) <= t.now - 60000000
			OR h.xid::text::bigint < pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 10000
				AND (SELECT 1 FROM public.pawl_job j WHERE j.state = 0 AND j.queue = h.queue LIMIT 1) IS NULL)
	ORDER BY h.queue, h.gen LIMIT $2::bigint`, o)
	// pawl_claim_queue, pawl_head_pkey, pawl_job_fresh, then by ctid
	q.unstrand = named(`WITH `+headOf("$1::text")+`,
	k AS MATERIALIZED (SELECT u.seq FROM public.pawl_claim c CROSS JOIN LATERAL unnest(c.seqs) AS u(seq)
		WHERE c.queue = $1::text AND c.claimed_at > 0),
	x AS MATERIALIZED (
		SELECT j.tid FROM h CROSS JOIN LATERAL (
			SELECT ctid AS tid, xid, seq FROM public.pawl_job
			WHERE state = 0 AND queue = $1::text AND (xid, seq) <= (h.xid, h.seq) ORDER BY xid, seq LIMIT $2::bigint) j
		WHERE NOT `+unclaimed+` AND j.seq NOT IN (SELECT seq FROM k)),
	l AS MATERIALIZED (
		SELECT y.tid FROM x CROSS JOIN LATERAL (
			SELECT ctid AS tid FROM public.pawl_job WHERE ctid = x.tid AND state = 0 FOR NO KEY UPDATE SKIP LOCKED) y)
	UPDATE public.pawl_job j SET state = 2, xid = NULL FROM l WHERE j.ctid = l.tid RETURNING 1`, o)
	// pawl_job_fresh, pawl_head_pkey: without a fresh job the head says nothing,
	// since all that are still to be committed are unclaimed.
	q.dropHead = named(`DELETE FROM public.pawl_head WHERE queue = $1::text
		AND (SELECT 1 FROM public.pawl_job WHERE state = 0 AND queue = $1::text LIMIT 1) IS NULL`, o)
}

// unstrand looks at the queues that may need it.
func (w *sweep) unstrand() error {
	var queues []string
	err := w.s.read(w.ctx, func(row scanner) error {
		var queue string
		err := row.Scan(&queue)
		queues = append(queues, queue)
		return err
	}, w.s.q.suspects, w.s.clock(), pawl.MaxStep)
	for _, queue := range queues {
		if err == nil {
			err = w.unstrandQueue(queue)
		}
	}
	return err
}

// unstrandQueue needs the lock of the queue, but leaves it to whoever has it.
func (w *sweep) unstrandQueue(queue string) error {
	n := 0
	err := w.s.inTx(w.ctx, func(run runner) error {
		n = 0
		var got bool
		err := run.each(w.ctx, func(row scanner) error { return row.Scan(&got) }, w.s.q.tryLock, w.s.claimHash(queue))
		if err != nil || !got {
			return err
		}
		count := func(scanner) error { n++; return nil }
		if err := run.each(w.ctx, count, w.s.q.unstrand, queue, w.spec.Limit); err != nil {
			return err
		}
		return run.exec(w.ctx, w.s.q.dropHead, queue)
	})
	if err != nil || n == 0 {
		return err
	}
	w.s.o.Logger.WarnContext(w.ctx, "pawl/postgres: jobs that belonged to no claim wait again", "queue", queue, "jobs", n)
	w.events.due(queue, 0)
	w.full(n)
	return nil
}
