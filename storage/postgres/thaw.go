package postgres

import (
	"context"

	"github.com/pawlq/pawl"
)

// The fresh lane is in the order of the server's transaction ids. After the tables
// were restored from a dump, or taken over by a replica that applies statements,
// those begin anew, and what is fresh would lie before its head or beyond all
// snapshots. Then all of it moves to the placed lane, which knows no such ids.

func (q *statements) thaws(o *Options) {
	q.system = `SELECT system_identifier FROM pg_control_system()`
	q.knownSystem = named(`SELECT coalesce(system, 0) FROM public.pawl_meta`, o)
	q.noteSystem = named(`UPDATE public.pawl_meta SET system = $1::bigint WHERE system IS DISTINCT FROM $1::bigint`, o)
	// Lets no claim move a head meanwhile.
	q.freeze = named(`LOCK TABLE public.pawl_head IN EXCLUSIVE MODE`, o)
	// pawl_job_fresh, for each job of each claim
	q.thawClaimed = named(`UPDATE public.pawl_job j SET state = 3, xid = NULL, attempt = 1, fence = c.fence, token = c.token,
			worker = c.worker, claimed_at = c.claimed_at, started_at = c.claimed_at,
			lease_until = c.claimed_at + coalesce(j.lease, c.lease)
		FROM (SELECT c.*, j.tid FROM public.pawl_claim c CROSS JOIN LATERAL unnest(c.xids, c.seqs) AS u(xid, seq)
			CROSS JOIN LATERAL `+freshOf("ctid AS tid")+` j) c
		WHERE j.ctid = c.tid`, o)
	// pawl_job_fresh, all of it
	q.thawReady = named(`UPDATE public.pawl_job SET state = 2, xid = NULL WHERE state = 0`, o)
	q.noClaims = named(`DELETE FROM public.pawl_claim`, o)
	q.noHeads = named(`DELETE FROM public.pawl_head`, o)
}

// checkSystem thaws if the server is another than that which the tables were
// used on last. A role may have no right to know.
func (s *Store) checkSystem(ctx context.Context) error {
	run := native{q: s.pool}
	var now, known int64
	if err := run.each(ctx, func(row scanner) error { return row.Scan(&now) }, s.q.system); err != nil {
		if code(err) == codeNoRight {
			return nil
		}
		return err
	}
	if err := run.each(ctx, func(row scanner) error { return row.Scan(&known) }, s.q.knownSystem); err != nil {
		return err
	}
	switch known {
	case now:
		return nil
	case 0:
		return run.exec(ctx, s.q.noteSystem, now)
	}
	return s.thaw(ctx, func(run runner) error { return run.exec(ctx, s.q.noteSystem, now) })
}

// thaw empties the fresh lane, and does more in the same transaction.
func (s *Store) thaw(ctx context.Context, more func(run runner) error) error {
	s.o.Logger.WarnContext(ctx, "pawl/postgres: transaction ids have begun anew, as after a restore; "+
		"jobs of the fresh lane move to the other")
	err := s.inTx(ctx, func(run runner) error {
		for _, sql := range []string{s.q.freeze, s.q.thawClaimed, s.q.thawReady, s.q.noClaims, s.q.noHeads} {
			if err := run.exec(ctx, sql); err != nil {
				return err
			}
		}
		return more(run)
	})
	if err == nil {
		s.publish(&events{other: []pawl.Event{{Kind: pawl.EventReady}}})
	}
	return err
}
