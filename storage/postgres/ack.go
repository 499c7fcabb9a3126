package postgres

import "github.com/pawlq/pawl"

// acks are those without a result of claims that the Store remembers: by far the
// most of what is settled. Their statement need not look for claims, since a job
// that is still fresh has had no other than the one remembered.
type acks struct {
	places []int // of outcomes
	ids    []string
	seqs   []int64
	of     []int16 // which of the claims, from 1
	claims []*batch
}

// split parts the acks among the places of a round from the others.
func (st *settlement) split(round []int) (a acks, others []int) {
	for _, i := range round {
		o := &st.outcomes[i]
		claim, seq, ok := st.s.batches.of(o.Ref)
		if !ok || o.Verb != pawl.Ack || len(o.Result) > 0 {
			others = append(others, i)
			continue
		}
		a.add(i, o.Ref.ID, seq, claim)
	}
	return a, others
}

func (a *acks) add(place int, id pawl.ID, seq int64, claim *batch) {
	k := len(a.claims)
	for k > 0 && a.claims[k-1] != claim {
		k--
	}
	if k == 0 {
		a.claims = append(a.claims, claim)
		k = len(a.claims)
	}
	a.places, a.ids, a.of = append(a.places, place), append(a.ids, id.String()), append(a.of, int16(k))
	a.seqs = append(a.seqs, seq)
}

// addAcks puts acks into a pipeline. Those that it could not make at once, for
// whatever reason, get the status of the unsure, and another statement finds out.
func (st *settlement) addAcks(p *pipeline, a acks) {
	if len(a.places) == 0 {
		return
	}
	for _, i := range a.places {
		st.status[i] = 0
	}
	n := len(a.claims)
	fences, claimed, workers := make([]int64, n), make([]int64, n), make([]string, n)
	for k, claim := range a.claims {
		fences[k], claimed[k], workers[k] = claim.fence, claim.claimedAt, claim.worker
	}
	p.each(func(row scanner) error {
		var ord int
		err := row.Scan(&ord)
		if err == nil && ord >= 1 && ord <= len(a.places) {
			st.status[a.places[ord-1]] = statusUnsure
		}
		return err
	}, st.s.q.ack, st.s.clock(), a.ids, a.seqs, a.of, fences, claimed, workers, len(a.ids))
}

// ackSQL acks with one probe of pawl_job_pkey that locks the row, and one write
// by ctid. It returns the places that it did not settle.
const ackSQL = withNow + `, i AS MATERIALIZED (
		SELECT * FROM unnest($2::text[]::uuid[], $3::bigint[], $4::smallint[]) WITH ORDINALITY AS i(id, seq, claim, ord)),
	l AS MATERIALIZED (
		SELECT i.ord, i.claim, j.* FROM i CROSS JOIN LATERAL (
			SELECT ctid AS tid, retention, ` + window + ` AS win FROM public.pawl_job
			WHERE id = i.id AND seq = i.seq AND (state = 0 OR state = 3 AND fence = ($5::bigint[])[i.claim])
			LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) j),
	d AS (DELETE FROM public.pawl_job j USING l WHERE j.ctid = l.tid AND l.retention < 0 AND l.win = 0 RETURNING l.ord),
	u AS (UPDATE public.pawl_job j SET state = 4, xid = NULL, fence = ($5::bigint[])[l.claim], worker = ($7::text[])[l.claim],
			claimed_at = ($6::bigint[])[l.claim], started_at = coalesce(j.started_at, ($6::bigint[])[l.claim]),
			last_fence = ($5::bigint[])[l.claim], last_verb = 1, finished_at = t.now,
			purge_at = t.now + greatest(l.retention, l.win), held = CASE WHEN l.win > 0 THEN j.held END,
			attempt = CASE WHEN j.state = 0 THEN 1 ELSE j.attempt END
		FROM t, l WHERE j.ctid = l.tid AND NOT (l.retention < 0 AND l.win = 0) RETURNING l.ord),
	x AS MATERIALIZED (SELECT ord FROM d UNION ALL SELECT ord FROM u)
	SELECT i.ord FROM i WHERE (SELECT count(*) FROM x) < $8::bigint AND i.ord NOT IN (SELECT ord FROM x)`
