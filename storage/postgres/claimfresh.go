package postgres

import "sync"

// lanes remembers which queues have shown jobs of the placed lane that can be
// claimed. The statement that claims from both lanes costs more than twice that of
// the fresh lane alone, which says so if there is something in the other.
type lanes struct {
	mu     sync.Mutex
	placed map[string]bool
}

func (l *lanes) has(queue string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.placed[queue]
}

func (l *lanes) note(queue string, placed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !placed {
		delete(l.placed, queue)
		return
	}
	if l.placed == nil {
		l.placed = make(map[string]bool)
	}
	l.placed[queue] = true
}

// claimFreshSQL claims a prefix of the fresh jobs of a queue, unless there are
// placed ones to claim, in a snapshot that is younger than the lock of the queue.
// Its steps: a is how many to take, z what is taken, g the new head.
func claimFreshSQL() string {
	return withNow + `, a AS MATERIALIZED (
		SELECT placed, CASE WHEN placed OR EXISTS (SELECT 1 FROM public.pawl_queue WHERE name = $2::text AND paused)
			THEN 0 ELSE $3::bigint END AS n
		FROM (SELECT EXISTS (SELECT 1 FROM public.pawl_job WHERE state = 2 AND queue = $2::text)
			OR EXISTS (SELECT 1 FROM public.pawl_job WHERE state = 1 AND queue = $2::text AND run_at <= (SELECT now FROM t)) AS placed) x),
	` + headOf("$2::text") + `,
	z AS MATERIALIZED (
		SELECT count(*) AS n, array_agg(xid) AS xids, array_agg(seq) AS seqs, array_agg(tid) AS tids,
			min(seq) AS lo, max(seq) AS hi, min(coalesce(lease, $6::bigint)) AS lease, bool_or(ahead) AS ahead
		FROM (SELECT * FROM ` + unclaimedRows("$2::text", "xid, seq, lease, ctid AS tid", "(SELECT n FROM a)", committed) + ` y
			ORDER BY xid, seq LIMIT (SELECT n FROM a)) f),
	g AS MATERIALIZED (
		SELECT h.*, z.xids, z.seqs, z.xids[z.n] AS final, z.n < a.n AS short,
			CASE WHEN z.ahead THEN z.xids[z.n] ELSE h.xid END AS next, CASE WHEN z.ahead THEN z.seqs[z.n] ELSE h.seq END AS nextseq
		FROM a, h, z WHERE z.n > 0),
	o AS MATERIALIZED (
		SELECT coalesce(array_agg(x), '{}') AS pend, coalesce(array_agg(i), '{}') AS pendseq FROM (
			SELECT q.x, coalesce((SELECT max(u.seq) FROM unnest(g.xids, g.seqs) AS u(xid, seq) WHERE u.xid = q.x), q.i) AS i
			FROM g, unnest(g.pend, g.pendseq) AS q(x, i)
			WHERE NOT (pg_visible_in_snapshot(q.x, pg_current_snapshot()) AND (g.short OR g.final > q.x))
			` + newlyPending + `) z),
	` + moveHead + `,
	r AS (INSERT INTO public.pawl_claim (fence, token, mark, queue, worker, claimed_at, lease, until, lo, hi, seqs, xids, tids, ids)
		SELECT nextval('public.pawl_fence'), $4::bigint, $8::bigint, $2::text, $5::text, t.now, $6::bigint, t.now + z.lease,
			z.lo, z.hi, z.seqs, z.xids, z.tids, '{}'
		FROM t, z WHERE z.n > 0 RETURNING fence)
	SELECT CASE WHEN z.n < $9::bigint THEN ` + nextDueSQL + ` ELSE 0 END, ` + staleHead("z.n") + `, a.placed,
		coalesce((SELECT fence FROM r), 0), t.now, z.n FROM t, a, h, z`
}

// claimFresh claims from a queue if only its fresh lane has something. The jobs
// are read after the commit, see claimBoth.
func (c *claim) claimFresh(p *pipeline, t *taking) {
	p.each(func(row scanner) error {
		var us int64
		var stale bool
		err := row.Scan(&us, &stale, &c.again, &t.by.fence, &t.by.claimedAt, &t.n)
		c.note(t, us, stale, c.again)
		return err
	}, c.s.q.claimFresh, c.claimArgs(t)...)
}
