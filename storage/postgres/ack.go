package postgres

import (
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pawlq/pawl"
)

// acks are those without a result of claims that the Store remembers: by far the
// most of what is settled. Their statements do not look for jobs, since it is known
// where their rows were, and for claims only once each: a job that is still fresh has
// had no other than the one remembered, and that one if it is still there. It is not
// if the server has lost its commit, by a crash with synchronous_commit off or a
// failover to a standby that was behind.
type acks struct {
	places []int // of outcomes
	tids   []pgtype.TID
	seqs   []int64
	of     []int16 // which of the claims, from 1
	claims []*batch
}

// split parts the acks among the places of a round, of jobs that go and of jobs
// that are kept, from the others.
func (st *settlement) split(round []int) (gone, kept acks, others []int) {
	if st.locked {
		return gone, kept, round
	}
	st.s.batches.mu.Lock()
	defer st.s.batches.mu.Unlock()
	for _, i := range round {
		o := &st.outcomes[i]
		claim, row, ok := st.s.batches.of(o.Ref)
		switch {
		case !ok || o.Verb != pawl.Ack || len(o.Result) > 0:
			others = append(others, i)
		case row.kept:
			kept.add(i, row, claim)
		default:
			gone.add(i, row, claim)
		}
	}
	return gone, kept, others
}

func (a *acks) add(place int, row claimedRow, claim *batch) {
	k := len(a.claims)
	for k > 0 && a.claims[k-1] != claim {
		k--
	}
	if k == 0 {
		a.claims = append(a.claims, claim)
		k = len(a.claims)
	}
	a.places, a.tids, a.seqs, a.of = append(a.places, place), append(a.tids, row.tid), append(a.seqs, row.seq), append(a.of, int16(k))
}

// addAcks puts acks into a pipeline. Those that it could not make at once, for
// whatever reason, get the status of the unsure, and another statement finds out.
func (st *settlement) addAcks(p *pipeline, gone, kept acks) {
	if len(gone.places)+len(kept.places) == 0 {
		return
	}
	p.locked = &st.locked
	p.exec(st.s.q.beginAcks)
	if len(gone.places) > 0 {
		p.each(st.unsure(gone.places), st.s.q.ackGone, gone.tids, gone.seqs, gone.of, gone.fences(), gone.times(), len(gone.places))
	}
	if len(kept.places) > 0 {
		workers := make([]string, len(kept.claims))
		for k, claim := range kept.claims {
			workers[k] = claim.worker
		}
		p.each(st.unsure(kept.places), st.s.q.ackKept, st.s.clock(), kept.tids, kept.seqs, kept.of, kept.fences(), kept.times(), workers,
			len(kept.places))
	}
	p.exec(st.s.q.endAcks)
}

func (a *acks) fences() []int64 {
	fences := make([]int64, len(a.claims))
	for k, claim := range a.claims {
		fences[k] = claim.fence
	}
	return fences
}

// times are when the claims were made. A server that has lost the commit of a claim
// may have given its fence again.
func (a *acks) times() []int64 {
	times := make([]int64, len(a.claims))
	for k, claim := range a.claims {
		times[k] = claim.claimedAt
	}
	return times
}

// unsure takes the places that a statement for acks has not settled.
func (st *settlement) unsure(places []int) func(scanner) error {
	for _, i := range places {
		st.status[i] = 0
	}
	return func(row scanner) error {
		var ord int
		err := row.Scan(&ord)
		if err == nil && ord >= 1 && ord <= len(places) {
			st.status[places[ord-1]] = statusUnsure
		}
		return err
	}
}

// thereClaims are the places of the claims that are there.
func thereClaims(fences, times string) string {
	return `c AS MATERIALIZED (
		SELECT u.ord::smallint AS claim FROM unnest(` + fences + `, ` + times + `) WITH ORDINALITY AS u(fence, at, ord)
		WHERE (SELECT true FROM public.pawl_claim WHERE fence = u.fence AND claimed_at = u.at LIMIT 1))`
}

// unmoved is whether the row j, at one of the ctids of i, was neither changed nor locked
// since its claim. It needs thereClaims.
func unmoved(fences string) string {
	return `j.seq = i.seq AND j.xmax = 0 AND (j.state = 0 AND i.claim IN (SELECT claim FROM c)
		OR j.state = 3 AND j.fence = (` + fences + `)[i.claim])`
}

// leaves is whether an ack removes the record.
const leaves = `retention < 0 AND ` + window + ` = 0`

func (q *statements) acks(o *Options) {
	// A row may be locked at this very moment: settle knows how to go round it. And the
	// planner expects an ack or two, and would look for each row by itself. SET LOCAL
	// would warn in a pipeline, on many servers, that it is in no transaction block; NULL
	// is TO DEFAULT.
	q.beginAcks = `SELECT set_config('lock_timeout', '100ms', true), set_config('enable_nestloop', 'off', true)`
	q.endAcks = `SELECT set_config('lock_timeout', NULL, true), set_config('enable_nestloop', NULL, true)`
	// pawl_claim_pkey, then by ctid
	q.ackGone = named(`WITH `+thereClaims("$4::bigint[]", "$5::bigint[]")+`, i AS MATERIALIZED (
		SELECT * FROM unnest($2::bigint[], $3::smallint[]) WITH ORDINALITY AS i(seq, claim, ord)),
	x AS (DELETE FROM public.pawl_job j USING i WHERE j.ctid = ANY ($1::tid[]) AND `+unmoved("$4::bigint[]")+` AND `+leaves+` RETURNING i.ord)
	SELECT i.ord FROM i WHERE (SELECT count(*) FROM x) < $6::bigint AND i.ord NOT IN (SELECT ord FROM x)`, o)
	q.ackKept = named(withNow+`, `+thereClaims("$5::bigint[]", "$6::bigint[]")+`, i AS MATERIALIZED (
		SELECT * FROM unnest($3::bigint[], $4::smallint[]) WITH ORDINALITY AS i(seq, claim, ord)),
	x AS (UPDATE public.pawl_job j SET state = 4, xid = NULL, fence = ($5::bigint[])[i.claim], worker = ($7::text[])[i.claim],
			claimed_at = ($6::bigint[])[i.claim], started_at = coalesce(j.started_at, ($6::bigint[])[i.claim]),
			last_fence = ($5::bigint[])[i.claim], last_verb = 1, finished_at = t.now,
			purge_at = t.now + greatest(j.retention, `+window+`), held = CASE WHEN `+window+` > 0 THEN j.held END,
			attempt = CASE WHEN j.state = 0 THEN 1 ELSE j.attempt END
		FROM t, i WHERE j.ctid = ANY ($2::tid[]) AND `+unmoved("$5::bigint[]")+` AND NOT (`+leaves+`) RETURNING i.ord)
	SELECT i.ord FROM i WHERE (SELECT count(*) FROM x) < $8::bigint AND i.ord NOT IN (SELECT ord FROM x)`, o)
}
