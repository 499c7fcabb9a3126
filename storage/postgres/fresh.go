package postgres

// What a fresh job is, how it is claimed and why that is safe is told in
// internal/docs/design.md.

// headOf is the head of a queue, of which there is always one row here.
func headOf(queue string) string {
	return `h AS MATERIALIZED (
		SELECT x.tid, coalesce(x.xid, '0'::xid8) AS xid, coalesce(x.seq, 0) AS seq,
			coalesce(x.pend, '{}') AS pend, coalesce(x.pendseq, '{}') AS pendseq
		FROM (SELECT 1) one LEFT JOIN LATERAL (
			SELECT ctid AS tid, * FROM public.pawl_head WHERE queue = ` + queue + ` ORDER BY gen DESC LIMIT 1) x ON true)`
}

// unclaimed is whether no claim has taken the fresh job j: it lies beyond the
// head h of its queue, or its transaction was open when the head passed it.
const unclaimed = `((j.xid, j.seq) > (h.xid, h.seq)
		OR EXISTS (SELECT 1 FROM unnest(h.pend, h.pendseq) AS q(x, i) WHERE q.x = j.xid AND j.seq > q.i))`

// unclaimedRows are the first fresh jobs of a queue that no claim has
// taken, in order, up to a limit. It needs headOf. The columns are those of
// pawl_job, and ahead, which says that a row lies beyond the head. A claim passes
// committed as the condition, so that no head goes beyond transactions that its
// snapshot knows nothing of; what looks only sees also what its own transaction
// has enqueued.
func unclaimedRows(queue, columns, limit, condition string) string {
	return `((SELECT r.* FROM h, unnest(h.pend, h.pendseq) AS q(x, i) CROSS JOIN LATERAL (
			SELECT false AS ahead, ` + columns + ` FROM public.pawl_job WHERE state = 0 AND queue = ` + queue + ` AND xid = q.x AND seq > q.i
			ORDER BY xid, seq LIMIT ` + limit + `) r)
		UNION ALL
		(SELECT r.* FROM h CROSS JOIN LATERAL (
			SELECT true AS ahead, ` + columns + ` FROM public.pawl_job
			WHERE state = 0 AND queue = ` + queue + ` AND (xid, seq) > (h.xid, h.seq) ` + condition + `
			ORDER BY xid, seq LIMIT ` + limit + `) r))`
}

// committed leaves out what the transaction itself has enqueued.
const committed = `AND xid < (SELECT pg_snapshot_xmax(pg_current_snapshot()))`

// headUpdates is how often a head moves before its gen grows.
const headUpdates = `32`

// claimSQL claims from both lanes, in a snapshot that is younger than the lock
// of the queue. Its steps: y and f are the fresh jobs, of which a prefix is
// taken, so their order is that of (xid, seq) and their key the greatest so far;
// p are the placed ones, locked; m is what is taken of both; g is the new head.
func claimSQL() string {
	return withNow + `, a AS MATERIALIZED (
		SELECT CASE WHEN current_setting('pawl.unpromoted', true) = 'on'
			OR EXISTS (SELECT 1 FROM public.pawl_queue WHERE name = $2::text AND paused) THEN 0 ELSE $3::bigint END AS n),
	` + headOf("$2::text") + `,
	f AS MATERIALIZED (
		SELECT k, ahead, xid, seq, lease, due, max(seq) OVER (PARTITION BY due ORDER BY k) AS rank FROM (
			SELECT row_number() OVER w AS k, ahead, xid, seq, lease, max(run_at) OVER w AS due
			FROM (SELECT * FROM ` + unclaimedRows("$2::text", "xid, seq, run_at, lease", "(SELECT n FROM a)", committed) + ` y ORDER BY xid, seq LIMIT (SELECT n FROM a)) o WINDOW w AS (ORDER BY xid, seq)) z),
	b AS MATERIALIZED (
		SELECT count(*) AS n, CASE WHEN count(*) < (SELECT n FROM a) THEN 32767 ELSE 0 END::smallint AS priority,
			CASE WHEN count(*) < (SELECT n FROM a) THEN 0 ELSE max(due) END AS due FROM f),
	p AS MATERIALIZED (
		SELECT r.* FROM b CROSS JOIN LATERAL (
			SELECT ctid AS tid, id, priority, run_at, seq, lease FROM public.pawl_job
			WHERE state = 2 AND queue = $2::text AND (priority, run_at) <= (b.priority, b.due)
				AND (start_before IS NULL OR start_before > (SELECT now FROM t))
			ORDER BY priority, run_at, seq LIMIT (SELECT n FROM a) FOR NO KEY UPDATE SKIP LOCKED) r),
	m AS MATERIALIZED (
		SELECT * FROM (
			SELECT 0::smallint AS priority, due, rank, k, ahead, xid, seq, lease, NULL::tid AS tid, NULL::uuid AS id FROM f
			UNION ALL SELECT priority, run_at, seq, 0, false, NULL, seq, lease, tid, id FROM p) z
		ORDER BY priority, due, rank, k LIMIT (SELECT n FROM a)),
	e AS MATERIALIZED (SELECT nextval('public.pawl_fence') AS fence FROM (SELECT 1 FROM m LIMIT 1) one),
	g AS MATERIALIZED (
		SELECT h.*, coalesce(l.xid, h.xid) AS next, coalesce(l.seq, h.seq) AS nextseq,
			(SELECT xid FROM f WHERE k = c.taken + 1) AS rest, (SELECT xid FROM f WHERE k = b.n) AS final, b.n < (SELECT n FROM a) AS short
		FROM h CROSS JOIN b CROSS JOIN (SELECT count(*) AS taken FROM m WHERE tid IS NULL) c
		LEFT JOIN LATERAL (SELECT xid, seq FROM m WHERE ahead ORDER BY k DESC LIMIT 1) l ON true
		WHERE c.taken > 0),
	o AS MATERIALIZED (
		SELECT coalesce(array_agg(x), '{}') AS pend, coalesce(array_agg(i), '{}') AS pendseq FROM (
			SELECT q.x, coalesce((SELECT max(m.seq) FROM m WHERE m.xid = q.x), q.i) AS i
			FROM g, unnest(g.pend, g.pendseq) AS q(x, i)
			WHERE NOT (pg_visible_in_snapshot(q.x, pg_current_snapshot())
				AND CASE WHEN g.rest IS NULL THEN g.short OR g.final > q.x ELSE g.rest > q.x END)
			` + newlyPending + `) z),
	` + moveHead + `,
	r AS (INSERT INTO public.pawl_claim (fence, token, mark, queue, worker, claimed_at, lease, until, lo, hi, seqs, xids, ids)
		SELECT e.fence, $4::bigint, $8::bigint, $2::text, $5::text, t.now, $6::bigint, t.now + min(coalesce(m.lease, $6::bigint)),
			coalesce(min(m.seq) FILTER (WHERE tid IS NULL), 0), coalesce(max(m.seq) FILTER (WHERE tid IS NULL), 0),
			coalesce(array_agg(m.seq ORDER BY k) FILTER (WHERE tid IS NULL), '{}'),
			coalesce(array_agg(m.xid ORDER BY k) FILTER (WHERE tid IS NULL), '{}'),
			coalesce(array_agg(m.id) FILTER (WHERE tid IS NOT NULL), '{}')
		FROM t, e, m GROUP BY e.fence, t.now),
	u AS (UPDATE public.pawl_job j SET state = 3, fence = e.fence, token = $4::bigint, worker = $5::text,
			claimed_at = t.now, started_at = coalesce(j.started_at, t.now), lease_until = t.now + coalesce(j.lease, $6::bigint),
			attempt = j.attempt + 1, reason = NULL, held = CASE WHEN j.umode = 1 THEN NULL ELSE j.held END
		FROM t, e WHERE j.ctid = ANY (ARRAY(SELECT tid FROM m)))
	SELECT CASE WHEN (SELECT count(*) FROM m) < $9::bigint THEN ` + nextDueSQL + ` ELSE 0 END,
		` + staleHead("(SELECT n FROM b)") + `, EXISTS (SELECT 1 FROM p), coalesce((SELECT fence FROM e), 0), t.now
	FROM t, h`
}

// newlyPending adds to pend what is open and passed by the head, as it moves from
// xid to next.
const newlyPending = `UNION ALL
			SELECT x, 0 FROM g, pg_snapshot_xip(pg_current_snapshot()) AS x WHERE x > g.xid AND x < g.next`

// moveHead writes the new head g with its pend o.
const moveHead = `w AS (UPDATE public.pawl_head d SET xid = g.next, seq = g.nextseq, pend = o.pend, pendseq = o.pendseq,
			n = (d.n + 1) % ` + headUpdates + `, gen = d.gen + (d.n + 1 = ` + headUpdates + `)::int
		FROM g, o WHERE d.ctid = g.tid),
	s AS (INSERT INTO public.pawl_head (queue, xid, seq, pend, pendseq)
		SELECT $2::text, g.next, g.nextseq, o.pend, o.pendseq FROM g, o WHERE g.tid IS NULL)`

// staleHead is whether transaction ids have begun anew: the head lies beyond
// them, or, where a claim found no more than some number of fresh jobs, such a job.
func staleHead(found string) string {
	return `(h.xid >= pg_snapshot_xmax(pg_current_snapshot()) OR ` + found + ` = 0 AND coalesce((
			SELECT xid FROM public.pawl_job WHERE state = 0 AND queue = $2::text ORDER BY xid DESC LIMIT 1)
			>= pg_snapshot_xmax(pg_current_snapshot()), false))`
}

// nextDueSQL is how long it is until the first scheduled job of the queues $7 is
// due; 0 if there is none.
const nextDueSQL = `(SELECT coalesce(min(s.run_at - t.now), 0) FROM t, unnest($7::text[]) AS a(queue) CROSS JOIN LATERAL (
		SELECT j.run_at FROM public.pawl_job j WHERE j.state = 1 AND j.queue = a.queue ORDER BY j.run_at, j.seq LIMIT 1) s
	WHERE NOT EXISTS (SELECT 1 FROM public.pawl_queue p WHERE p.name = a.queue AND p.paused))`

// batchRows are the claims that the settles or renewals i name, job by job.
const batchRows = `k AS MATERIALIZED (
		SELECT c.fence, c.worker, c.claimed_at, u.seq FROM (SELECT DISTINCT fence FROM i) x
		CROSS JOIN LATERAL (SELECT * FROM public.pawl_claim WHERE fence = x.fence LIMIT 1) c
		CROSS JOIN LATERAL unnest(c.seqs) AS u(seq))`

// freshOf finds a fresh job u of the claim c.
func freshOf(columns string) string {
	return `(SELECT ` + columns + ` FROM public.pawl_job WHERE state = 0 AND queue = c.queue AND xid = u.xid AND seq = u.seq LIMIT 1)`
}

// withClaim joins the claim of the fresh job j, from the claims cl.
const withClaim = `LEFT JOIN LATERAL (SELECT * FROM cl
		WHERE j.state = 0 AND cl.queue = j.queue AND j.seq BETWEEN cl.lo AND cl.hi AND j.seq = ANY (cl.seqs) LIMIT 1) c ON true`

// claimColumns are those that a record has from the row c of pawl_claim.
const claimColumns = `coalesce(c.fence, 0), coalesce(c.worker, ''), coalesce(c.claimed_at, 0), coalesce(c.lease, 0)`

// deadline is when the lease of the fresh job j of the claim c ends.
const deadline = `coalesce((SELECT l.until FROM public.pawl_lease l WHERE l.seq = u.seq AND l.fence = c.fence LIMIT 1),
		c.claimed_at + coalesce(e.lease, c.lease))`

// marked is the claim with the mark $1. It says so in a way that only the index
// of marks can serve.
const marked = `(SELECT * FROM public.pawl_claim WHERE mark >= $1::bigint AND mark <= $1::bigint ORDER BY mark LIMIT 1)`

func (q *statements) fresh(o *Options) {
	// pawl_job_fresh, pawl_job_ready, then by ctid; pawl_job_scheduled
	q.claim = named(claimSQL(), o)
	// pawl_job_fresh, pawl_job_ready, pawl_job_scheduled
	q.claimFresh = named(claimFreshSQL(), o)
	const columns = `j.tid, j.seq, j.id, j.kind, j.run_at, j.created_at, coalesce(j.lease, 0), coalesce(j.timeout, 0), j.retention,
		j.max_attempts, j.max_rescues, coalesce(j.meta::text, ''), j.payload`
	// pawl_claim_mark, then by ctid: all in one scan, for each scan asks the system
	// how long the table is. OFFSET 0 keeps the state out of it, and so the index of it.
	q.readFresh = named(`WITH c AS MATERIALIZED `+marked+`
	SELECT `+columns+` FROM (SELECT ctid AS tid, * FROM public.pawl_job WHERE ctid = ANY ((SELECT tids FROM c)::tid[]) OFFSET 0) j
	WHERE j.state = 0 AND (j.seq IN (SELECT unnest(seqs) FROM c)) IS TRUE -- once hashed`, o)
	// pawl_claim_mark, pawl_job_fresh
	q.findFresh = named(`SELECT `+columns+`
		FROM `+marked+` c CROSS JOIN LATERAL unnest(c.xids, c.seqs) AS u(xid, seq) CROSS JOIN LATERAL `+freshOf("ctid AS tid, *")+` j`, o)
	// pawl_claim_mark, pawl_job_pkey, pawl_lease_pkey
	q.claimedPlaced = named(`SELECT `+recordColumns+`, j.payload, j.tid,
			coalesce((SELECT l.extends FROM public.pawl_lease l WHERE l.seq = j.seq), 0)
		FROM `+marked+` c CROSS JOIN LATERAL unnest(c.ids) AS u(id)
		CROSS JOIN LATERAL (SELECT ctid AS tid, * FROM public.pawl_job WHERE id = u.id LIMIT 1) j
		WHERE j.state = 3 AND j.fence = c.fence`, o)
	// pawl_job_running, pawl_claim_queue, pawl_job_fresh
	q.claimedBy = named(`SELECT id, fence FROM (
		SELECT j.id, j.fence, j.priority, j.run_at, j.seq FROM public.pawl_job j
		WHERE j.state = 3 AND j.queue = ANY ($1::text[]) AND j.token = $2::bigint
		UNION ALL
		SELECT j.id, c.fence, 0, j.run_at, u.seq FROM public.pawl_claim c CROSS JOIN LATERAL unnest(c.xids, c.seqs) AS u(xid, seq)
		CROSS JOIN LATERAL `+freshOf("id, run_at")+` j
		WHERE c.queue = ANY ($1::text[]) AND c.claimed_at > 0 AND c.token = $2::bigint) x
	ORDER BY priority, run_at, seq`, o)
	// pawl_claim_pkey
	q.dropClaims = named(`DELETE FROM public.pawl_claim WHERE ctid = ANY (ARRAY(SELECT p.tid FROM unnest($1::bigint[]) AS i(fence)
		CROSS JOIN LATERAL (SELECT ctid AS tid FROM public.pawl_claim WHERE fence = i.fence LIMIT 1) p))`, o)
	// pawl_claim_until, pawl_job_fresh, pawl_lease_pkey, pawl_job_pkey: a page of
	// the claims in which a lease may have ended, with the jobs whose lease has.
	q.expiredFresh = named(withNow+`, c AS MATERIALIZED (
		SELECT * FROM public.pawl_claim WHERE until > 0 AND until <= (SELECT now FROM t) AND (until, fence) > ($2::bigint, $3::bigint)
		ORDER BY until, fence LIMIT $4::bigint)
	SELECT c.until, c.fence, coalesce(x.id::text, '') FROM c LEFT JOIN LATERAL (
		SELECT j.id FROM unnest(c.xids, c.seqs) AS u(xid, seq) CROSS JOIN LATERAL `+freshOf("id, lease")+` e
		CROSS JOIN LATERAL (SELECT id FROM public.pawl_job WHERE id = e.id AND `+deadline+` <= (SELECT now FROM t)
			LIMIT 1 FOR UPDATE SKIP LOCKED) j
		LIMIT $5::bigint) x ON true`, o)
	// pawl_claim_until, pawl_job_fresh, pawl_lease_pkey: a page of claims, whose
	// until is corrected; those of which nothing is left go. One whose jobs are
	// all placed stays until its time, for it may not have been read yet. Says of
	// each whether it was right, and whether it was corrected after its time.
	q.tidyClaims = named(withNow+`, c AS MATERIALIZED (
		SELECT ctid AS tid, * FROM public.pawl_claim WHERE until > 0 AND (until, fence) > ($2::bigint, $3::bigint)
		ORDER BY until, fence LIMIT $4::bigint FOR UPDATE SKIP LOCKED),
	x AS MATERIALIZED (
		SELECT c.tid, c.fence, c.until, CASE WHEN c.hi = 0 THEN CASE WHEN c.until > t.now THEN c.until END ELSE (
			SELECT min(`+deadline+`) FROM unnest(c.xids, c.seqs) AS u(xid, seq) CROSS JOIN LATERAL `+freshOf("lease")+` e) END AS due
		FROM t, c),
	d AS (DELETE FROM public.pawl_claim y USING x WHERE y.ctid = x.tid AND x.due IS NULL),
	u AS (UPDATE public.pawl_claim y SET until = x.due FROM x WHERE y.ctid = x.tid AND x.due > x.until)
	SELECT x.until, x.fence, coalesce(x.due <= x.until, false) AND x.until > t.now, coalesce(x.due > x.until, true) AND x.until <= t.now
	FROM t, x ORDER BY x.until, x.fence`, o)
}
