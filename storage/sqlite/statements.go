package sqlite

import (
	"fmt"
	"strings"
)

// A statement is one SQL text. Each begins with a comment that names the
// indexes it must use, says "rowid" for a search by seq, and "sort" if no index
// gives the order; a test holds the query planner to it.
type statement struct{ text string }

// insertSizes are the numbers of rows of the prepared inserts. 100 rows are as
// fast as more, and the steps between keep small groups from single inserts.
var insertSizes = [...]int{100, 25, 5, 1}

// statements are all that the store runs on its tables, with its prefix.
type statements struct {
	prefix string
	all    []*statement

	insert [len(insertSizes)]*statement

	// settings
	version, fence, setFence, lock, paused, pause, resume *statement
	// claims
	promote, expired, claim, claimedBy, nextDue *statement
	// settles
	ackKeep, ackDelete, extend, release, save, remove *statement
	// finds
	bySeq, byID, holder, inserted, depth, leastUrgent, nextScheduled *statement
	// blobs
	savePayload, dropPayload, setPayload, saveResult, dropResult, setResult, addFailure, trimFailures *statement
	// sweeps
	promoteAll, expiredLeases, purge                            *statement
	oldBuried, buriedQueues, atLeast, newest, nthExcess, excess *statement
	nextScheduledAny, nextLease, oldestBuried, nextBuried       *statement
	nextExpiry, nextPurge                                       *statement
	// damage
	damaged, mend, lastFailure *statement
	// reads
	full, payload, result, failures                       *statement
	count, countReady, retrying, nextQueue, page, running *statement
}

// recordColumns are the columns of a record, in the order of record.fields.
const recordColumns = `seq, id, queue, kind, state, rank, at, run_at, priority, reason, fence,
	last_fence, last_verb, attempt, rescued, max_attempts, max_rescues, lease, timeout, retention,
	created_at, started_at, claimed_at, start_before, purge_at, worker, token, ukey, umode, uwindow,
	held, extends, counts, failures, meta, progress, apart`

// claimColumns are those of a claimed job that Claim does not know itself, in
// the order of record.scanClaimed.
const claimColumns = `seq, id, kind, priority, run_at, start_before, created_at, started_at, lease, timeout,
	retention, max_attempts, max_rescues, attempt, rescued, ukey, umode, uwindow, held, extends, counts,
	failures, meta, apart, payload`

// queuesOf is a common table expression of the queues that hold a job of a
// state. It hops from name to name in the index, so its cost depends on the
// number of queues and not of jobs.
func queuesOf(state string) string {
	return `WITH RECURSIVE q(name) AS (
		SELECT min(queue) FROM pawl_job INDEXED BY pawl_job_place WHERE state = ` + state + `
		UNION ALL
		SELECT (SELECT min(queue) FROM pawl_job INDEXED BY pawl_job_place WHERE state = ` + state + ` AND queue > q.name)
		FROM q WHERE q.name IS NOT NULL)
	`
}

func newStatements(prefix string) *statements {
	q := &statements{prefix: prefix}
	for i, n := range insertSizes {
		q.insert[i] = q.insertRows(n)
	}
	q.settings()
	q.claims()
	q.settles()
	q.finds()
	q.blobs()
	q.sweeps()
	q.damage()
	q.reads()
	return q
}

func (q *statements) add(text string) *statement {
	s := &statement{withPrefix(text, q.prefix)}
	q.all = append(q.all, s)
	return s
}

// withPrefix puts the prefix in the place of the default one.
func withPrefix(text, prefix string) string {
	return strings.ReplaceAll(text, DefaultPrefix, prefix)
}

// insertRows inserts n jobs of one shape: its 19 fields are bound once,
// and each row only brings what is its own. An ID that is present is passed
// over.
func (q *statements) insertRows(n int) *statement {
	const shared = "?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19"
	var b strings.Builder
	b.WriteString(`-- no search
		INSERT INTO pawl_job (queue, kind, state, rank, at, run_at, priority, lease, timeout, retention,
			max_attempts, max_rescues, start_before, created_at, ukey, umode, uwindow, held, apart,
			id, meta, payload) VALUES `)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		p := 20 + i*3
		fmt.Fprintf(&b, "(%s, ?%d, ?%d, ?%d)", shared, p, p+1, p+2)
	}
	b.WriteString(" ON CONFLICT (id) DO NOTHING")
	return q.add(b.String())
}

func (q *statements) settings() {
	q.version = q.add(`-- rowid
		SELECT version FROM pawl_meta WHERE one = 1`)
	q.fence = q.add(`-- rowid
		SELECT fence FROM pawl_meta WHERE one = 1`)
	q.setFence = q.add(`-- rowid
		UPDATE pawl_meta SET fence = ?1 WHERE one = 1`)
	// Takes the write lock and changes nothing.
	q.lock = q.add(`-- rowid
		UPDATE pawl_meta SET fence = fence WHERE one = 0`)
	q.paused = q.add(`-- no search: a short table
		SELECT name FROM pawl_queue WHERE paused = 1`)
	q.pause = q.add(`-- no search
		INSERT INTO pawl_queue (name, paused) VALUES (?1, 1) ON CONFLICT (name) DO UPDATE SET paused = 1`)
	q.resume = q.add(`-- PRIMARY KEY
		DELETE FROM pawl_queue WHERE name = ?1`)
}

func (q *statements) claims() {
	q.promote = q.add(`-- pawl_job_place, rowid
		UPDATE pawl_job SET state = 2, rank = priority WHERE seq IN (
			SELECT seq FROM pawl_job INDEXED BY pawl_job_place
			WHERE state = 1 AND queue = ?1 AND rank = 0 AND at <= ?2 ORDER BY at, seq LIMIT ?3)`)
	q.expired = q.add(`-- pawl_job_expiry
		SELECT ` + recordColumns + ` FROM pawl_job INDEXED BY pawl_job_expiry
		WHERE start_before > 0 AND state <= 2 AND start_before <= ?1 ORDER BY start_before LIMIT ?2`)
	q.claim = q.add(`-- pawl_job_place, rowid
		UPDATE OR FAIL pawl_job SET state = 3, rank = 0, at = ?1 + CASE WHEN lease > 0 THEN lease ELSE ?2 END,
			fence = ?3, attempt = attempt + 1, worker = ?4, token = ?5, claimed_at = ?1,
			started_at = CASE WHEN started_at > 0 THEN started_at ELSE ?1 END, reason = '', progress = NULL
		WHERE seq IN (
			SELECT seq FROM pawl_job INDEXED BY pawl_job_place
			WHERE state = 2 AND queue = ?6 AND (start_before = 0 OR start_before > ?1)
			ORDER BY rank, at, seq LIMIT ?7)
		RETURNING ` + claimColumns)
	q.claimedBy = q.add(`-- pawl_job_place, sort
		SELECT ` + recordColumns + ` FROM pawl_job INDEXED BY pawl_job_place
		WHERE state = 3 AND queue = ?1 AND token = ?2 ORDER BY priority, run_at, seq LIMIT ?3`)
	q.nextDue = q.add(`-- pawl_job_place
		SELECT at FROM pawl_job INDEXED BY pawl_job_place
		WHERE state = 1 AND queue = ?1 AND rank = 0 ORDER BY at LIMIT 1`)
}

func (q *statements) settles() {
	q.ackKeep = q.add(`-- rowid
		UPDATE pawl_job SET state = 4, at = ?1, fence = 0, last_fence = ?3, last_verb = 1,
			purge_at = ?1 + retention, held = 0, result = ?5
		WHERE seq = ?2 AND fence = ?3 AND id = ?4 AND state = 3 AND retention >= 0 AND umode <> 2`)
	q.ackDelete = q.add(`-- rowid
		DELETE FROM pawl_job
		WHERE seq = ?1 AND fence = ?2 AND id = ?3 AND state = 3 AND retention < 0 AND umode <> 2`)
	q.extend = q.add(`-- rowid
		UPDATE pawl_job SET at = ?1, extends = extends + 1, progress = coalesce(?2, progress)
		WHERE seq = ?3 AND fence = ?4 AND id = ?5 AND state = 3`)
	q.release = q.add(`-- rowid
		UPDATE pawl_job SET held = 0 WHERE seq = ?1`)
	q.save = q.add(`-- rowid
		UPDATE pawl_job SET kind = ?2, state = ?3, rank = ?4, at = ?5, run_at = ?6, priority = ?7, reason = ?8,
			fence = ?9, last_fence = ?10, last_verb = ?11, attempt = ?12, rescued = ?13, max_attempts = ?14,
			max_rescues = ?15, lease = ?16, timeout = ?17, retention = ?18, start_before = ?19, purge_at = ?20,
			umode = ?21, uwindow = ?22, held = ?23, counts = ?24, failures = ?25, meta = ?26, progress = ?27,
			apart = ?28
		WHERE seq = ?1`)
	q.remove = q.add(`-- rowid
		DELETE FROM pawl_job WHERE seq = ?1`)
}

func (q *statements) finds() {
	q.bySeq = q.add(`-- rowid
		SELECT ` + recordColumns + ` FROM pawl_job WHERE seq = ?1 AND id = ?2`)
	q.byID = q.add(`-- pawl_job_id
		SELECT ` + recordColumns + ` FROM pawl_job WHERE id = ?1`)
	q.holder = q.add(`-- pawl_job_key
		SELECT ` + recordColumns + ` FROM pawl_job WHERE queue = ?1 AND ukey = ?2 AND held = 1`)
	q.inserted = q.add(`-- rowid
		SELECT seq, id FROM pawl_job WHERE seq > ?1 AND seq <= ?2`)
	q.depth = q.add(`-- pawl_job_place
		SELECT count(*) FROM (
			SELECT 1 FROM pawl_job INDEXED BY pawl_job_place WHERE state IN (1, 2) AND queue = ?1 LIMIT ?2)`)
	q.leastUrgent = q.add(`-- pawl_job_place
		SELECT ` + recordColumns + ` FROM pawl_job INDEXED BY pawl_job_place
		WHERE state = 2 AND queue = ?1 AND rank = (
			SELECT max(rank) FROM pawl_job INDEXED BY pawl_job_place WHERE state = 2 AND queue = ?1)
		ORDER BY at, seq LIMIT 1`)
	q.nextScheduled = q.add(`-- pawl_job_place
		SELECT ` + recordColumns + ` FROM pawl_job INDEXED BY pawl_job_place
		WHERE state = 1 AND queue = ?1 AND rank = 0 ORDER BY at, seq LIMIT 1`)
}

func (q *statements) blobs() {
	q.savePayload = q.add(`-- no search
		INSERT INTO pawl_payload (seq, data) VALUES (?1, ?2) ON CONFLICT (seq) DO UPDATE SET data = ?2`)
	q.dropPayload = q.add(`-- rowid
		DELETE FROM pawl_payload WHERE seq = ?1`)
	q.setPayload = q.add(`-- rowid
		UPDATE pawl_job SET payload = ?2 WHERE seq = ?1`)
	q.saveResult = q.add(`-- no search
		INSERT INTO pawl_result (seq, data) VALUES (?1, ?2) ON CONFLICT (seq) DO UPDATE SET data = ?2`)
	q.dropResult = q.add(`-- rowid
		DELETE FROM pawl_result WHERE seq = ?1`)
	q.setResult = q.add(`-- rowid
		UPDATE pawl_job SET result = ?2 WHERE seq = ?1`)
	q.addFailure = q.add(`-- no search
		INSERT INTO pawl_failure (seq, n, at, attempt, worker, error, stack) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)`)
	q.trimFailures = q.add(`-- PRIMARY KEY
		DELETE FROM pawl_failure WHERE seq = ?1 AND n <= ?2`)
}

func (q *statements) sweeps() {
	q.promoteAll = q.add(`-- pawl_job_place, rowid
		UPDATE pawl_job SET state = 2, rank = priority WHERE seq IN (
			` + queuesOf("1") + `
			SELECT j.seq FROM q CROSS JOIN pawl_job AS j INDEXED BY pawl_job_place
			WHERE j.state = 1 AND j.queue = q.name AND j.rank = 0 AND j.at <= ?1 LIMIT ?2)
		RETURNING queue`)
	// A lease that ended while the write lock was held by another, between ?3
	// and ?4, or soon after, could not be extended: it gets a heartbeat more.
	// The length of a lease that was extended is not kept; claimed_at gives the
	// most it can be, or less than 0 after a step of the clock.
	q.expiredLeases = q.add(`-- pawl_job_place
		` + queuesOf("3") + `
		SELECT ` + recordColumns + ` FROM q CROSS JOIN pawl_job AS j INDEXED BY pawl_job_place
		WHERE j.state = 3 AND j.queue = q.name AND j.rank = 0 AND j.at <= ?1
			AND (j.at < ?3 OR ?1 >= ?4 + CASE WHEN j.lease > 0 THEN min(j.lease, ?5)
				WHEN j.at > j.claimed_at THEN min(j.at - j.claimed_at, ?5) ELSE ?5 END)
		LIMIT ?2`)
	q.purge = q.add(`-- pawl_job_purge
		SELECT seq FROM pawl_job INDEXED BY pawl_job_purge
		WHERE purge_at > 0 AND purge_at <= ?1 ORDER BY purge_at LIMIT ?2`)
	q.oldBuried = q.add(`-- pawl_job_place
		SELECT seq FROM pawl_job INDEXED BY pawl_job_place
		WHERE state = 5 AND queue = ?1 AND rank = 0 AND at <= ?2 AND (umode <> 2 OR at + uwindow <= ?3)
		ORDER BY at, seq LIMIT ?4`)
	// What is beyond a number: whether there is more than that, where the newest of it
	// is, and where to end a step. Each reads as many entries of the index.
	const final = ` FROM pawl_job INDEXED BY pawl_job_place WHERE state = ?1 AND queue = ?2 AND rank = 0`
	q.atLeast = q.add(`-- pawl_job_place
		SELECT count(*) FROM (SELECT 1` + final + ` LIMIT ?3)`)
	q.newest = q.add(`-- pawl_job_place
		SELECT at, seq` + final + ` ORDER BY at DESC, seq DESC LIMIT 1 OFFSET ?3`)
	q.nthExcess = q.add(`-- pawl_job_place
		SELECT at, seq` + final + ` AND (at, seq) <= (?3, ?4) ORDER BY at, seq LIMIT 1 OFFSET ?5`)
	q.excess = q.add(`-- pawl_job_place
		SELECT seq` + final + ` AND (at, seq) <= (?3, ?4) AND (umode <> 2 OR at + uwindow <= ?5)
		ORDER BY at, seq LIMIT ?6`)
	q.buriedQueues = q.add(`-- pawl_job_place
		` + queuesOf("5") + `
		SELECT name FROM q WHERE name IS NOT NULL`)
	q.nextScheduledAny = q.next("1")
	q.nextLease = q.next("3")
	q.oldestBuried = q.add(`-- pawl_job_place, rowid
		` + queuesOf("5") + `
		SELECT q.name, at, ` + window + ` FROM q CROSS JOIN pawl_job WHERE seq =
			(SELECT seq FROM pawl_job INDEXED BY pawl_job_place WHERE state = 5 AND queue = q.name AND rank = 0 ORDER BY at, seq LIMIT 1)`)
	// It reads as many jobs of a queue as it is told.
	q.nextBuried = q.add(`-- pawl_job_place
		SELECT min(due) FROM (SELECT at + max(?2, ` + window + `) AS due
			FROM pawl_job INDEXED BY pawl_job_place WHERE state = 5 AND queue = ?1 AND rank = 0 ORDER BY at, seq LIMIT ?3)`)
	q.nextExpiry = q.add(`-- pawl_job_expiry
		SELECT min(start_before) FROM pawl_job INDEXED BY pawl_job_expiry WHERE start_before > 0 AND state <= 2`)
	q.nextPurge = q.add(`-- pawl_job_purge
		SELECT min(purge_at) FROM pawl_job INDEXED BY pawl_job_purge WHERE purge_at > 0`)
}

// window is how long a final job keeps its unique key.
const window = `iif(umode = 2, uwindow, 0)`

// next finds the earliest time of a state over all queues.
func (q *statements) next(state string) *statement {
	return q.add(`-- pawl_job_place
		` + queuesOf(state) + `
		SELECT min((SELECT min(at) FROM pawl_job INDEXED BY pawl_job_place
			WHERE state = ` + state + ` AND queue = q.name AND rank = 0))
		FROM q WHERE q.name IS NOT NULL`)
}

func (q *statements) reads() {
	q.full = q.add(`-- pawl_job_id
		SELECT ` + recordColumns + `, payload, result FROM pawl_job WHERE id = ?1`)
	q.payload = q.add(`-- rowid
		SELECT data FROM pawl_payload WHERE seq = ?1`)
	q.result = q.add(`-- rowid
		SELECT data FROM pawl_result WHERE seq = ?1`)
	q.failures = q.add(`-- PRIMARY KEY
		SELECT at, attempt, worker, error, stack FROM pawl_failure WHERE seq = ?1 ORDER BY n`)
	q.count = q.add(`-- pawl_job_place
		SELECT count(*) FROM pawl_job INDEXED BY pawl_job_place WHERE state = ?1 AND queue = ?2`)
	q.countReady = q.add(`-- pawl_job_place
		SELECT count(*), coalesce(min(at), 0) FROM pawl_job INDEXED BY pawl_job_place WHERE state = 2 AND queue = ?1`)
	q.retrying = q.add(`-- pawl_job_retrying
		SELECT count(*) FROM pawl_job INDEXED BY pawl_job_retrying
		WHERE state = 1 AND reason IN ('retry', 'rescue') AND queue = ?1`)
	q.nextQueue = q.add(`-- pawl_job_place, PRIMARY KEY
		SELECT min(name) FROM (
			SELECT min(queue) AS name FROM pawl_job INDEXED BY pawl_job_place WHERE state = 1 AND queue > ?1
			UNION ALL SELECT min(queue) FROM pawl_job INDEXED BY pawl_job_place WHERE state = 2 AND queue > ?1
			UNION ALL SELECT min(queue) FROM pawl_job INDEXED BY pawl_job_place WHERE state = 3 AND queue > ?1
			UNION ALL SELECT min(queue) FROM pawl_job INDEXED BY pawl_job_place WHERE state = 4 AND queue > ?1
			UNION ALL SELECT min(queue) FROM pawl_job INDEXED BY pawl_job_place WHERE state = 5 AND queue > ?1
			UNION ALL SELECT min(queue) FROM pawl_job INDEXED BY pawl_job_place WHERE state = 6 AND queue > ?1
			UNION ALL SELECT min(name) FROM pawl_queue WHERE name > ?1)`)
	q.page = q.add(`-- pawl_job_place
		SELECT ` + recordColumns + ` FROM pawl_job INDEXED BY pawl_job_place
		WHERE state = ?1 AND queue = ?2 AND (rank, at, seq) > (?3, ?4, ?5)
		ORDER BY rank, at, seq LIMIT ?6`)
	// Running jobs are ordered by claim, which no index has: they are as many
	// as there are workers at most, and the sort keeps only a page of them.
	q.running = q.add(`-- pawl_job_place, sort
		SELECT ` + recordColumns + ` FROM pawl_job INDEXED BY pawl_job_place
		WHERE state = ?1 AND queue = ?2 AND (claimed_at, seq) > (?4, ?5) AND ?3 = ?3
		ORDER BY claimed_at, seq LIMIT ?6`)
}
