package postgres

import (
	"fmt"
	"strings"
)

// statements are all that a Store runs on its tables. Those that look for jobs
// name the index that they must use; a test holds the planner to it.
//
// In those that begin with withNow, and in inserts, $1 is the test clock, or NULL for
// the server's time.
type statements struct {
	pin, pinCommitted, pinned, unpin, lock string

	notify, notifyAlone, beginEvents, addEvents, dropEvents, lastEvent, eventsAfter, xid, ended string

	// By shape. The second is a transaction, and so is the third, which fails if any ID is
	// there; it takes two thirds of the time of the others.
	insert, insertShortly, insertHopeful [shapes]string

	replace, exists, holder, tryHolder, releaseKey, forgetProgressOf string
	waiting, leastUrgent, nextScheduled, drop                        string

	promote, expire, claim, claimFresh, claimedBy, nextDue, claimable                  string
	begin, commit, readFresh, findFresh, claimedPlaced, dropClaims                     string
	system, knownSystem, noteSystem, freeze, thawClaimed, thawReady, noClaims, noHeads string
	expiredFresh, tidyClaims, oldestFresh, pageFresh, pageClaimed, locks, share        string

	beginAcks, endAcks, ackGone, ackKept string

	settle, settleTx, extend string

	tryLock, suspects, unstrand, dropHead string

	byID, rowsByID, lockByID, tryLockByID, save, remove, forgetLeases, forgetProgress string

	promoteAll, endLeases, dropLeases, expiredClaims, expiredLeases, purge string
	buriedQueues, oldBuried                                                string
	nextFinal, lookForExcess, nthExcess, excess, excessNow                 string
	now, nextOfAll, nextBuried                                             string

	pause, resume, paused, counts, nextQueue string

	pageReady, pageScheduled, pageRunning, pageFinal string
}

// withNow begins a statement that needs the time.
const withNow = `WITH t AS MATERIALIZED (
	SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now)`

func newStatements(o *Options) *statements {
	q := &statements{
		lock:   `SELECT pg_advisory_xact_lock($1::bigint)`,
		share:  `SELECT pg_advisory_xact_lock_shared($1::bigint)`,
		locks:  `SELECT pg_advisory_xact_lock(k) FROM unnest($1::bigint[]) AS k`,
		begin:  `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`,
		commit: `COMMIT`,
	}
	q.pins()
	q.wakes(o)
	q.enqueues(o)
	q.claims(o)
	q.fresh(o)
	q.thaws(o)
	q.strands(o)
	q.acks(o)
	q.settles(o)
	q.records(o)
	q.sweeps(o)
	q.reads(o)
	return q
}

// pins are the statements with the settings of a transaction. Plans must not depend on
// what the planner last heard of the tables: a scan of the whole table that was right
// while it was empty, or looked so under an old snapshot, would be kept for long after.
func (q *statements) pins() {
	var set, get, restore []string
	for i, s := range []struct{ name, value string }{
		{"enable_seqscan", "off"}, {"plan_cache_mode", "force_generic_plan"}, {"enable_bitmapscan", "off"}, {"enable_sort", "off"}, {"jit", "off"},
		{"bytea_output", "hex"}, // the driver reads no other where it asks for text
	} {
		set = append(set, fmt.Sprintf("set_config('%s', '%s', true)", s.name, s.value))
		get = append(get, fmt.Sprintf("current_setting('%s')", s.name))
		restore = append(restore, fmt.Sprintf("set_config('%s', split_part($1::text, ',', %d), true)", s.name, i+1))
	}
	q.pin = "SELECT " + strings.Join(set, ", ")
	// What a caller's transaction had, and has again.
	q.pinned = "SELECT concat_ws(',', " + strings.Join(get, ", ") + ")"
	q.unpin = "SELECT " + strings.Join(restore, ", ")
	// Fails with codeNoSetting where the default is another level: each
	// statement must see what was committed before it.
	q.pinCommitted = q.pin + `, CASE current_setting('transaction_isolation') WHEN 'read committed' THEN ''
		ELSE current_setting('pawl.isolation') END`
}

func (q *statements) enqueues(o *Options) {
	for s := range shapes {
		q.insert[s], q.insertShortly[s], q.insertHopeful[s] = named(s.insert(false), o), named(s.insert(true), o), named(s.insertHopeful(), o)
	}
	// pawl_job_pkey
	due, ref, orNull := oneRow.due("t.now"), oneRow.ref, oneRow.orNull
	q.replace = named(withNow+`
	UPDATE public.pawl_job j SET kind = `+ref("kind")+`, state = CASE WHEN `+due+` > t.now THEN 1 ELSE 2 END, priority = `+ref("priority")+`,
		run_at = greatest(`+due+`, t.now), start_before = `+orNull("start_before", "0")+`, lease = `+orNull("lease", "0")+`,
		timeout = `+orNull("timeout", "0")+`, retention = `+ref("retention")+`, max_attempts = `+ref("max_attempts")+`,
		max_rescues = `+ref("max_rescues")+`, umode = `+orNull("umode", "0")+`, uwindow = `+orNull("uwindow", "0")+`,
		meta = `+orNull("meta", "''")+`::json, payload = `+ref("payload")+`, attempt = 0, rescued = 0, reason = NULL
	FROM t WHERE j.id = $20::text::uuid AND j.state IN (1, 2)
	RETURNING `+ref("id")+`, `+ref("queue")+`, `+ref("ukey")+`, `+ref("placed")+` -- the server wants to know their types`, o)
	// pawl_job_pkey, pawl_lease_pkey
	q.forgetProgressOf = named(`UPDATE public.pawl_lease SET progress = NULL, progress_at = NULL
		WHERE seq = (SELECT seq FROM public.pawl_job WHERE id = $1::text::uuid)`, o)
	q.exists = named(`SELECT 1 FROM public.pawl_job WHERE id = $1::text::uuid`, o)
	// pawl_job_key
	q.holder = named(withNow+`
	SELECT j.id::text, j.state::int, (j.state >= 4 AND j.finished_at + coalesce(j.uwindow, 0) <= t.now)::int
	FROM t, public.pawl_job j WHERE j.queue = $2::text AND j.ukey = $3::text AND j.held FOR NO KEY UPDATE OF j`, o)
	q.tryHolder = named(`SELECT 1 FROM public.pawl_job WHERE queue = $1::text AND ukey = $2::text AND held
		AND id NOT IN (SELECT id FROM public.pawl_job WHERE queue = $1::text AND ukey = $2::text AND held FOR NO KEY UPDATE SKIP LOCKED)`, o)
	q.releaseKey = named(`UPDATE public.pawl_job SET held = NULL WHERE id = $1::text::uuid`, o)
	// pawl_job_fresh, pawl_job_ready, pawl_job_scheduled; up to $2 of each
	q.waiting = named(`WITH `+headOf("$1::text")+`
	SELECT (SELECT count(*) FROM `+unclaimedRows("$1::text", "xid", "$2::bigint", "")+` f)
		+ (SELECT count(*) FROM (SELECT 1 FROM public.pawl_job WHERE state = 2 AND queue = $1::text LIMIT $2::bigint) r)
		+ (SELECT count(*) FROM (SELECT 1 FROM public.pawl_job WHERE state = 1 AND queue = $1::text LIMIT $2::bigint) s)`, o)
	// pawl_job_fresh
	q.oldestFresh = named(`WITH `+headOf("$1::text")+`
	SELECT f.id::text, 0, f.run_at, f.seq FROM `+unclaimedRows("$1::text", "id, xid, seq, run_at", "1", "")+` f
	ORDER BY f.xid, f.seq LIMIT 1`, o)
	// pawl_job_ready: its last priority, and the first of that. Two steps, since
	// one that walks the index backwards meets the due ones last.
	q.leastUrgent = named(`SELECT id::text, priority::int, run_at, seq FROM public.pawl_job
		WHERE state = 2 AND queue = $1::text AND priority =
			(SELECT priority FROM public.pawl_job WHERE state = 2 AND queue = $1::text ORDER BY priority DESC LIMIT 1)
		ORDER BY run_at, seq LIMIT 1 FOR UPDATE SKIP LOCKED`, o)
	// pawl_job_scheduled
	q.nextScheduled = named(`SELECT id::text, 0, run_at, seq FROM public.pawl_job WHERE state = 1 AND queue = $1::text
		ORDER BY run_at, seq LIMIT 1 FOR UPDATE SKIP LOCKED`, o)
}

func (q *statements) claims(o *Options) {
	// pawl_job_scheduled. Notes for the claim that follows whether all were
	// promoted that are due.
	q.promote = named(withNow+`, u AS (
		UPDATE public.pawl_job SET state = 2 WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM public.pawl_job WHERE state = 1 AND queue = $2::text AND run_at <= (SELECT now FROM t)
			ORDER BY run_at, seq LIMIT $3::bigint FOR NO KEY UPDATE SKIP LOCKED))
		RETURNING 1)
	SELECT n >= $3::bigint, set_config('pawl.unpromoted', CASE WHEN n >= $3::bigint THEN 'on' ELSE 'off' END, true)
	FROM (SELECT count(*) AS n FROM u) c`, o)
	// pawl_job_expiry
	q.expire = named(endWaiting("expired", `state <= 2 AND start_before IS NOT NULL AND start_before <= (SELECT now FROM t)
		ORDER BY start_before LIMIT $2::bigint FOR UPDATE SKIP LOCKED`), o)
	// pawl_job_pkey
	q.drop = named(endWaiting("dropped", `id = $2::text::uuid AND state <= 2 LIMIT 1 FOR UPDATE SKIP LOCKED`), o)
	// pawl_job_scheduled for each queue
	q.nextDue = named(withNow+`
	SELECT `+strings.ReplaceAll(nextDueSQL, "$7", "$2"), o)
	// pawl_job_fresh, pawl_job_ready, pawl_job_scheduled
	q.claimable = named(withNow+`
	SELECT a.ord FROM t, unnest($2::text[]) WITH ORDINALITY AS a(queue, ord)
	WHERE (WITH `+headOf("a.queue")+`
		SELECT true FROM `+unclaimedRows("a.queue", "xid", "1", committed)+` f LIMIT 1)
		OR (SELECT 1 FROM public.pawl_job j WHERE j.state = 2 AND j.queue = a.queue LIMIT 1) = 1
		OR (SELECT 1 FROM public.pawl_job j WHERE j.state = 1 AND j.queue = a.queue AND j.run_at <= t.now LIMIT 1) = 1
	ORDER BY a.ord`, o)
}

// endWaiting cancels the jobs of a condition and returns their number.
func endWaiting(reason, which string) string {
	return withNow + `, c AS MATERIALIZED (
		SELECT ctid AS tid, retention, ` + window + ` AS win FROM public.pawl_job WHERE ` + which + `),
	d AS (DELETE FROM public.pawl_job j USING c WHERE j.ctid = c.tid AND c.retention < 0 AND c.win = 0 RETURNING 1),
	u AS (UPDATE public.pawl_job j SET state = 6, reason = '` + reason + `', finished_at = t.now,
			purge_at = t.now + greatest(c.retention, c.win), held = CASE WHEN c.win > 0 THEN j.held END
		FROM t, c WHERE j.ctid = c.tid AND NOT (c.retention < 0 AND c.win = 0) RETURNING 1)
	SELECT (SELECT count(*) FROM d) + (SELECT count(*) FROM u)`
}

// window is how long a final job keeps its unique key.
const window = `CASE WHEN umode = 2 THEN coalesce(uwindow, 0) ELSE 0 END`

// What a settle or an extend says of a place of its input that was not done.
const (
	statusRepeated = 1 // was settled by the same verb before
	statusLost     = 2
	statusMissing  = 3
	statusLocked   = 4 // by an open transaction, or changed this very moment
	statusUnseen   = 5 // claimed after the snapshot of its transaction was taken
	statusUnsure   = 6 // not done by the statement for acks
)

func (q *statements) settles(o *Options) {
	// pawl_job_pkey
	q.settle = named(settleSQL("SKIP LOCKED"), o)
	q.settleTx = named(settleSQL(""), o)
	const current = `(j.state = 3 AND j.fence = i.fence OR j.state = 0 AND (i.fence, j.seq) IN (SELECT fence, seq FROM k))`
	// pawl_job_pkey, pawl_claim_pkey. The lock is one that an open transaction which settles the
	// job, and keeps its record, does not exclude.
	q.extend = named(withNow+`, i AS MATERIALIZED (
		SELECT * FROM unnest($2::text[]::uuid[], $3::bigint[], $4::bigint[], $5::text[]) WITH ORDINALITY
			AS i(id, fence, lease, progress, ord)),
	`+batchRows+`,
	l AS MATERIALIZED (SELECT i.*, j.seq FROM i CROSS JOIN LATERAL (
			SELECT seq, state, fence FROM public.pawl_job WHERE id = i.id LIMIT 1 FOR KEY SHARE SKIP LOCKED) j
		WHERE `+current+`),
	u AS (INSERT INTO public.pawl_lease AS o (seq, id, fence, until, extends, progress_at, progress)
		SELECT l.seq, l.id, l.fence, t.now + l.lease, 1, CASE WHEN l.progress <> '' THEN t.now END, nullif(l.progress, '')::json
		FROM t, l ORDER BY l.ord
		ON CONFLICT (seq) DO UPDATE SET fence = excluded.fence, until = excluded.until, extends = o.extends + 1,
			progress = coalesce(excluded.progress, CASE WHEN o.fence = excluded.fence THEN o.progress END),
			progress_at = coalesce(excluded.progress_at, o.progress_at))
	SELECT i.ord, CASE WHEN (SELECT `+current+` FROM public.pawl_job j WHERE j.id = i.id LIMIT 1)
		THEN 4 ELSE 2 END
	FROM i WHERE i.ord NOT IN (SELECT ord FROM l) ORDER BY i.ord`, o)
}

// settleSQL settles each of its input with one probe of pawl_job_pkey that locks
// the row, and one write by ctid. The claims of fresh jobs are found by
// pawl_claim_pkey, and joined by a hash. It returns the places that it did not settle.
func settleSQL(locked string) string {
	return withNow + `, i AS MATERIALIZED (
		SELECT * FROM unnest($2::text[]::uuid[], $3::bigint[], $4::smallint[], $5::bigint[], $6::smallint[], $7::bytea[],
			$8::text[], $9::text[]) WITH ORDINALITY AS i(id, fence, verb, delay, urgency, outcome, error, stack, ord)),
	` + batchRows + `,
	r AS MATERIALIZED (
		SELECT i.*, j.* FROM i CROSS JOIN LATERAL (
			SELECT ctid AS tid, seq, state = 0 AS fresh, last_fence, last_verb,
				state = 3 AND fence IS NOT DISTINCT FROM i.fence AS placed, retention,
				CASE WHEN state = 0 THEN 1 ELSE attempt END AS attempt, max_attempts, worker AS worked, ` + window + ` AS win
			FROM public.pawl_job WHERE id = i.id LIMIT 1 FOR NO KEY UPDATE ` + locked + `) j),
	l AS MATERIALIZED (
		SELECT r.*, r.placed OR r.fresh AND k.seq IS NOT NULL AS current, coalesce(k.worker, r.worked) AS worker, k.claimed_at
		FROM r LEFT JOIN k ON k.fence = r.fence AND k.seq = r.seq),
	n AS MATERIALIZED (
		SELECT l.*, verb = 1 AND retention < 0 AND win = 0 AS gone, CASE
			WHEN verb = 1 THEN 4
			WHEN verb = 3 OR verb = 2 AND max_attempts > 0 AND attempt >= max_attempts THEN 5
			WHEN delay > 0 THEN 1 ELSE 2 END AS next
		FROM l WHERE current),
	d AS (DELETE FROM public.pawl_job j USING n WHERE j.ctid = n.tid AND n.gone RETURNING n.ord),
	u AS (UPDATE public.pawl_job j SET state = n.next, xid = NULL, fence = n.fence, worker = n.worker,
			claimed_at = coalesce(n.claimed_at, j.claimed_at), started_at = coalesce(j.started_at, n.claimed_at), last_fence = n.fence, last_verb = n.verb,
			run_at = CASE WHEN n.next = 1 THEN t.now + n.delay WHEN n.verb = 2 AND n.next = 2 THEN t.now ELSE j.run_at END,
			finished_at = CASE WHEN n.next >= 4 THEN t.now END,
			purge_at = CASE WHEN n.next = 4 THEN t.now + greatest(n.retention, n.win) END,
			held = CASE WHEN n.next >= 4 AND n.win = 0 THEN NULL ELSE j.held END,
			result = n.outcome,
			attempt = n.attempt - CASE WHEN n.verb >= 4 THEN 1 ELSE 0 END,
			priority = coalesce(n.urgency, j.priority),
			retries = CASE WHEN n.verb = 2 AND n.next <= 2 THEN coalesce(j.retries, 0) + 1 ELSE j.retries END,
			releases = CASE WHEN n.verb = 4 THEN coalesce(j.releases, 0) + 1 ELSE j.releases END,
			snoozes = CASE WHEN n.verb = 5 THEN coalesce(j.snoozes, 0) + 1 ELSE j.snoozes END,
			skips = CASE WHEN n.verb = 6 THEN coalesce(j.skips, 0) + 1 ELSE j.skips END,
			reason = CASE n.verb WHEN 2 THEN CASE WHEN n.next = 5 THEN 'attempts' ELSE 'retry' END
				WHEN 3 THEN 'bury' WHEN 4 THEN 'release' WHEN 5 THEN 'snooze' WHEN 6 THEN 'skip' END,
			failures = CASE WHEN n.verb IN (2, 3) THEN ` + addFailure("json_strip_nulls(json_build_object('at', t.now, 'attempt', n.attempt,"+
		"'worker', coalesce(n.worker, ''), 'error', n.error, 'stack', nullif(n.stack, '')))") + ` ELSE j.failures END
		FROM t, n WHERE j.ctid = n.tid AND NOT n.gone RETURNING n.ord)
	SELECT i.ord, CASE
		WHEN l.ord IS NULL THEN coalesce((SELECT 4 FROM public.pawl_job j WHERE j.id = i.id LIMIT 1), 3)
		WHEN l.current THEN 4
		WHEN l.fresh AND current_setting('transaction_isolation') <> 'read committed' THEN 5
		WHEN l.last_fence = i.fence AND l.last_verb = i.verb THEN 1 ELSE 2 END
	FROM i LEFT JOIN l ON l.ord = i.ord
	WHERE i.ord NOT IN (SELECT ord FROM d UNION ALL SELECT ord FROM u) ORDER BY i.ord`
}

// addFailure appends to the failures of j and keeps the last ten, which is
// pawl.MaxFailures.
func addFailure(failure string) string {
	return `(coalesce(j.failures, '{}') || ` + failure + `)[greatest(1, cardinality(coalesce(j.failures, '{}')) - 8):]`
}

// withLease joins the row of pawl_lease, if there is one, to that of j.
const withLease = `LEFT JOIN LATERAL (SELECT * FROM public.pawl_lease WHERE seq = j.seq LIMIT 1) l ON true`

func (q *statements) records(o *Options) {
	byID := func(lock, more string) string {
		return named(`WITH j AS MATERIALIZED (
			SELECT i.ord, j.* FROM unnest($1::text[]::uuid[]) WITH ORDINALITY AS i(id, ord)
			CROSS JOIN LATERAL (SELECT * FROM public.pawl_job WHERE id = i.id LIMIT 1 `+lock+`) j),
		cl AS MATERIALIZED (SELECT c.* FROM (SELECT DISTINCT queue FROM j WHERE state = 0) x
			CROSS JOIN LATERAL (SELECT * FROM public.pawl_claim WHERE queue = x.queue AND claimed_at > 0 AND hi > 0 ORDER BY claimed_at OFFSET 0) c)
		SELECT `+recordColumns+`, `+leaseColumns+`, `+claimColumns+`, j.ord`+more+`
		FROM j `+withLease+` `+withClaim, o)
	}
	q.byID = byID("", ", j.payload, j.result")
	q.rowsByID, q.lockByID, q.tryLockByID = byID("", ""), byID("FOR UPDATE", ""), byID("FOR UPDATE SKIP LOCKED", "")
	// pawl_job_pkey
	q.save = named(`UPDATE public.pawl_job j SET state = i.state, xid = NULL, fence = nullif(i.fence, 0),
			worker = nullif(i.worker, ''), claimed_at = nullif(i.claimed_at, 0), started_at = nullif(i.started_at, 0), kind = i.kind, priority = i.priority,
			reason = nullif(i.reason, ''), run_at = i.run_at, start_before = nullif(i.start_before, 0),
			finished_at = nullif(i.finished_at, 0), purge_at = nullif(i.purge_at, 0), lease = nullif(i.lease, 0),
			timeout = nullif(i.timeout, 0), retention = i.retention, attempt = i.attempt, rescued = i.rescued,
			max_attempts = i.max_attempts, max_rescues = i.max_rescues, umode = nullif(i.umode, 0),
			uwindow = nullif(i.uwindow, 0), held = nullif(i.held, false), rescues = nullif(i.rescues, 0),
			kicks = nullif(i.kicks, 0),
			failures = CASE WHEN i.failure <> '' THEN `+addFailure("i.failure::json")+` ELSE j.failures END,
			meta = CASE WHEN i.new_meta THEN nullif(i.meta, '')::json ELSE j.meta END,
			payload = CASE WHEN i.new_payload THEN i.payload ELSE j.payload END,
			result = CASE WHEN i.no_result THEN NULL ELSE j.result END
		FROM (SELECT i.*, p.tid FROM unnest($1::text[]::uuid[], $2::smallint[], $3::text[], $4::smallint[], $5::text[], $6::bigint[], $7::bigint[],
			$8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::integer[], $14::integer[],
			$15::integer[], $16::integer[], $17::smallint[], $18::bigint[], $19::boolean[], $20::integer[], $21::integer[],
			$22::text[], $23::boolean[], $24::text[], $25::boolean[], $26::bytea[], $27::boolean[], $28::bigint[], $29::text[],
			$30::bigint[], $31::bigint[])
			AS i(id, state, kind, priority, reason, run_at, start_before, finished_at, purge_at, lease, timeout, retention,
				attempt, rescued, max_attempts, max_rescues, umode, uwindow, held, rescues, kicks, failure, new_meta, meta,
				new_payload, payload, no_result, fence, worker, claimed_at, started_at)
			CROSS JOIN LATERAL (SELECT ctid AS tid FROM public.pawl_job WHERE id = i.id LIMIT 1) p) i
		WHERE j.ctid = i.tid`, o)
	// pawl_job_pkey
	q.remove = named(`DELETE FROM public.pawl_job WHERE ctid = ANY (ARRAY(SELECT p.tid FROM unnest($1::text[]::uuid[]) AS i(id)
		CROSS JOIN LATERAL (SELECT ctid AS tid FROM public.pawl_job WHERE id = i.id LIMIT 1) p))`, o)
	// pawl_lease_pkey
	q.forgetLeases = named(`DELETE FROM public.pawl_lease WHERE ctid = ANY (ARRAY(SELECT p.tid FROM unnest($1::bigint[]) AS i(seq)
		CROSS JOIN LATERAL (SELECT ctid AS tid FROM public.pawl_lease WHERE seq = i.seq LIMIT 1 FOR UPDATE) p))`, o)
	q.forgetProgress = named(`UPDATE public.pawl_lease SET progress = NULL, progress_at = NULL
		WHERE ctid = ANY (ARRAY(SELECT p.tid FROM unnest($1::bigint[]) AS i(seq)
			CROSS JOIN LATERAL (SELECT ctid AS tid FROM public.pawl_lease WHERE seq = i.seq LIMIT 1 FOR UPDATE) p))`, o)
}

func (q *statements) sweeps(o *Options) {
	// A fresh job has had no other claim than the present one.
	const extended = `(j.seq = l.seq AND (j.state = 3 AND j.fence = l.fence OR j.state = 0))`
	q.now = withNow + ` SELECT now FROM t`
	// pawl_job_due
	q.promoteAll = named(withNow+`
	UPDATE public.pawl_job SET state = 2 WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM public.pawl_job WHERE state = 1 AND run_at > 0 AND run_at <= (SELECT now FROM t)
		ORDER BY run_at LIMIT $2::bigint FOR NO KEY UPDATE SKIP LOCKED)) RETURNING queue`, o)
	// pawl_lease_until, then pawl_job_pkey: what heartbeats left of claims that
	// are over, and of jobs that are gone.
	q.endLeases = named(withNow+`
	UPDATE public.pawl_lease SET until = NULL WHERE ctid = ANY (ARRAY(
		SELECT l.ctid FROM public.pawl_lease l WHERE l.until <= (SELECT now FROM t) AND (SELECT `+extended+` FROM public.pawl_job j WHERE j.id = l.id LIMIT 1) IS NOT TRUE
		ORDER BY l.until LIMIT $2::bigint FOR UPDATE SKIP LOCKED))
	RETURNING seq, id`, o)
	q.dropLeases = named(`DELETE FROM public.pawl_lease WHERE ctid = ANY (ARRAY(
		SELECT p.tid FROM unnest($1::bigint[], $2::text[]::uuid[]) AS i(seq, id)
		CROSS JOIN LATERAL (SELECT ctid AS tid FROM public.pawl_lease WHERE seq = i.seq LIMIT 1 FOR UPDATE) p
		WHERE (SELECT j.seq FROM public.pawl_job j WHERE j.id = i.id LIMIT 1) IS DISTINCT FROM i.seq))`, o)
	// pawl_job_lease, pawl_lease_pkey: claims that were never extended.
	q.expiredClaims = named(withNow+`
	SELECT j.id FROM public.pawl_job j WHERE j.state = 3 AND j.lease_until > 0 AND j.lease_until <= (SELECT now FROM t)
		AND (SELECT l.fence FROM public.pawl_lease l WHERE l.seq = j.seq LIMIT 1) IS DISTINCT FROM j.fence
	ORDER BY j.lease_until LIMIT $2::bigint FOR UPDATE OF j SKIP LOCKED`, o)
	// pawl_lease_until, pawl_job_pkey: claims that were.
	q.expiredLeases = named(withNow+`
	SELECT j.id FROM public.pawl_lease l CROSS JOIN LATERAL (
		SELECT id, seq, state, fence FROM public.pawl_job WHERE id = l.id LIMIT 1 FOR UPDATE SKIP LOCKED) j
	WHERE l.until <= (SELECT now FROM t) AND `+extended+`
	ORDER BY l.until LIMIT $2::bigint`, o)
	// pawl_job_purge
	q.purge = named(withNow+`
	DELETE FROM public.pawl_job WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM public.pawl_job WHERE purge_at IS NOT NULL AND purge_at <= (SELECT now FROM t)
		ORDER BY purge_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED)) RETURNING seq`, o)
	q.buried(o)
	q.excesses(o)
	// pawl_job_due, pawl_job_lease, pawl_lease_until, pawl_job_expiry, pawl_job_purge
	q.nextOfAll = named(withNow+`
	SELECT coalesce(least(
		(SELECT run_at FROM public.pawl_job WHERE state = 1 AND run_at > 0 ORDER BY run_at LIMIT 1),
		(SELECT j.lease_until FROM public.pawl_job j WHERE j.state = 3 AND j.lease_until > 0
			AND (SELECT l.fence FROM public.pawl_lease l WHERE l.seq = j.seq LIMIT 1) IS DISTINCT FROM j.fence
			ORDER BY j.lease_until LIMIT 1),
		(SELECT l.until FROM public.pawl_lease l WHERE l.until IS NOT NULL
			AND (SELECT `+extended+` FROM public.pawl_job j WHERE j.id = l.id LIMIT 1) ORDER BY l.until LIMIT 1),
		(SELECT until FROM public.pawl_claim WHERE until > 0 AND hi > 0 ORDER BY until, fence LIMIT 1),
		(SELECT start_before FROM public.pawl_job WHERE state <= 2 AND start_before IS NOT NULL ORDER BY start_before LIMIT 1),
		(SELECT purge_at FROM public.pawl_job WHERE purge_at IS NOT NULL ORDER BY purge_at LIMIT 1)
	) - t.now, 0) FROM t`, o)
}

// inWindow is whether a unique window keeps a final job.
const inWindow = `coalesce(held, false) AND finished_at + coalesce(uwindow, 0) > (SELECT now FROM t)`

// buried are the statements that bound how long buried jobs stay.
func (q *statements) buried(o *Options) {
	// pawl_job_final
	q.buriedQueues = named(queuesOf("state >= 4")+`
	SELECT q.name FROM q WHERE q.name IS NOT NULL
		AND (SELECT 1 FROM public.pawl_job j WHERE j.state = 5 AND j.state >= 4 AND j.queue = q.name LIMIT 1) = 1`, o)
	q.oldBuried = named(withNow+`
	DELETE FROM public.pawl_job WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM public.pawl_job WHERE state = 5 AND state >= 4 AND queue = $2::text
			AND finished_at <= (SELECT now FROM t) - $3::bigint AND NOT (`+inWindow+`)
		ORDER BY finished_at, id LIMIT $4::bigint FOR UPDATE SKIP LOCKED)) RETURNING seq`, o)
	// pawl_job_final. The oldest job goes first, unless its window keeps it for longer:
	// then up to $4 are looked at.
	const oldest = ` FROM public.pawl_job WHERE state = 5 AND state >= 4 AND queue = a.queue ORDER BY finished_at, id LIMIT `
	const held = `CASE WHEN held THEN coalesce(uwindow, 0) ELSE 0 END`
	q.nextBuried = named(withNow+`
	SELECT coalesce(min(greatest(j.due - t.now, 1)) FILTER (WHERE j.due IS NOT NULL), 0) FROM t, unnest($2::text[]) AS a(queue) CROSS JOIN LATERAL (
		SELECT min(o.due) AS due FROM (SELECT finished_at + greatest($3::bigint, `+held+`) AS due`+oldest+`
			CASE WHEN (SELECT `+held+` > $3::bigint`+oldest+`1) THEN $4::bigint ELSE 1 END) o) j`, o)
}

// queuesOf is a common table expression of the queues that hold a job in some
// states. It hops from name to name in the index of the states, so its cost
// depends on the number of queues and not of jobs.
func queuesOf(states string) string {
	return `WITH RECURSIVE q(name) AS (
		(SELECT queue FROM public.pawl_job WHERE ` + states + ` ORDER BY queue LIMIT 1)
		UNION ALL
		SELECT (SELECT queue FROM public.pawl_job WHERE ` + states + ` AND queue > q.name ORDER BY queue LIMIT 1)
		FROM q WHERE q.name IS NOT NULL)`
}

func (q *statements) reads(o *Options) {
	q.pause = named(`INSERT INTO public.pawl_queue (name, paused) VALUES ($1::text, true)
		ON CONFLICT (name) DO UPDATE SET paused = true`, o)
	q.resume = named(`DELETE FROM public.pawl_queue WHERE name = $1::text`, o)
	q.paused = named(`SELECT name FROM public.pawl_queue WHERE paused`, o)
	// pawl_job_ready, _scheduled, _running, _final
	q.counts = named(withNow+`
	SELECT a.queue,
		(SELECT count(*) FROM public.pawl_job j WHERE j.state = 1 AND j.queue = a.queue),
		(SELECT count(*) FROM public.pawl_job j WHERE j.state = 1 AND j.queue = a.queue AND j.reason IN ('retry', 'rescue')),
		(SELECT count(*) FROM public.pawl_job j WHERE j.state = 2 AND j.queue = a.queue) + f.ready,
		(SELECT count(*) FROM public.pawl_job j WHERE j.state = 3 AND j.queue = a.queue) + f.running,
		(SELECT count(*) FROM public.pawl_job j WHERE j.state = 4 AND j.state >= 4 AND j.queue = a.queue),
		(SELECT count(*) FROM public.pawl_job j WHERE j.state = 5 AND j.state >= 4 AND j.queue = a.queue),
		(SELECT count(*) FROM public.pawl_job j WHERE j.state = 6 AND j.state >= 4 AND j.queue = a.queue),
		coalesce(t.now - least(f.oldest, (SELECT min(j.run_at) FROM public.pawl_job j WHERE j.state = 2 AND j.queue = a.queue)), 0),
		EXISTS (SELECT 1 FROM public.pawl_queue p WHERE p.name = a.queue AND p.paused)
	FROM t, unnest($2::text[]) WITH ORDINALITY AS a(queue, ord) CROSS JOIN LATERAL (
		WITH `+headOf("a.queue")+`
		SELECT count(*) FILTER (WHERE `+unclaimed+`) AS ready, count(*) FILTER (WHERE NOT `+unclaimed+`) AS running,
			min(j.run_at) FILTER (WHERE `+unclaimed+`) AS oldest
		FROM h, public.pawl_job j WHERE j.state = 0 AND j.queue = a.queue) f
	ORDER BY a.ord`, o)
	// pawl_queue_pkey, pawl_job_ready, _scheduled, _running, _final
	q.nextQueue = named(`SELECT coalesce(least(
		(SELECT queue FROM public.pawl_job WHERE state = 0 AND queue > $1::text COLLATE "C" ORDER BY queue LIMIT 1),
		(SELECT name FROM public.pawl_queue WHERE name > $1::text COLLATE "C" ORDER BY name LIMIT 1),
		(SELECT queue FROM public.pawl_job WHERE state = 1 AND queue > $1::text COLLATE "C" ORDER BY queue LIMIT 1),
		(SELECT queue FROM public.pawl_job WHERE state = 2 AND queue > $1::text COLLATE "C" ORDER BY queue LIMIT 1),
		(SELECT queue FROM public.pawl_job WHERE state = 3 AND queue > $1::text COLLATE "C" ORDER BY queue LIMIT 1),
		(SELECT queue FROM public.pawl_job WHERE state >= 4 AND queue > $1::text COLLATE "C" ORDER BY queue LIMIT 1)), '')`, o)
	const size = `coalesce(octet_length(j.payload), 0) + coalesce(octet_length(j.result), 0)`
	page := func(where, order string) string {
		return named(`SELECT `+recordColumns+`, `+leaseColumns+`, `+size+`
		FROM public.pawl_job j `+withLease+`
		WHERE `+where+` AND j.queue = $1::text ORDER BY `+order+` LIMIT $2::bigint`, o)
	}
	q.pageReady = page(`j.state = 2 AND (j.priority, j.run_at, j.seq) > ($3::smallint, $4::bigint, $5::bigint)`, `j.priority, j.run_at, j.seq`)
	q.pageScheduled = page(`j.state = 1 AND (j.run_at, j.seq) > ($3::bigint, $4::bigint)`, `j.run_at, j.seq`)
	q.pageRunning = page(`j.state = 3 AND (j.claimed_at, j.seq) > ($3::bigint, $4::bigint)`, `j.claimed_at, j.seq`)
	q.pageFinal = page(`j.state >= 4 AND j.state = $3::smallint AND (j.finished_at, j.id) > ($4::bigint, $5::text::uuid)`, `j.finished_at, j.id`)
	// pawl_job_fresh, pawl_lease_pkey
	q.pageFresh = named(`WITH `+headOf("$1::text")+`
	SELECT `+recordColumns+`, `+leaseColumns+`, 0, '', 0, 0, `+size+`, j.xid::text FROM h CROSS JOIN LATERAL (
		SELECT j.* FROM public.pawl_job j
		WHERE j.state = 0 AND j.queue = $1::text AND (j.xid, j.seq) > ($3::text::xid8, $4::bigint) AND `+unclaimed+`
		ORDER BY j.xid, j.seq LIMIT $2::bigint) j `+withLease, o)
	// pawl_claim_queue, pawl_job_fresh, pawl_lease_pkey
	q.pageClaimed = named(`SELECT `+recordColumns+`, `+leaseColumns+`, `+claimColumns+`, `+size+`
	FROM public.pawl_claim c CROSS JOIN LATERAL unnest(c.xids, c.seqs) AS u(xid, seq)
	CROSS JOIN LATERAL `+freshOf("*")+` j `+withLease+`
	WHERE c.queue = $1::text AND c.claimed_at > 0 AND c.claimed_at >= $3::bigint AND (c.claimed_at, u.seq) > ($3::bigint, $4::bigint)
	ORDER BY c.claimed_at, u.seq LIMIT $2::bigint`, o)
}
