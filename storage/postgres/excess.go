package postgres

import "github.com/pawlq/pawl/internal/excess"

// finalPlace is the place of a final job in its queue and state.
type finalPlace struct {
	finishedAt int64
	id         string
}

// purgeExcess deletes final jobs that are too many.
func (w *sweep) purgeExcess() error {
	n, err := w.s.round.Sweep(w.spec, w.spec.Limit-w.swept.Purged, excess.Source[finalPlace]{
		Look: w.lookForExcess,
		Purge: func(c excess.Cut[finalPlace], limit int) (int, error) {
			return w.deleteBy(w.s.q.excess, w.s.clock(), c.Queue, int16(c.State), c.Last.finishedAt, c.Last.id, excess.Hold, limit)
		},
	})
	w.swept.Purged += n
	w.full(w.swept.Purged)
	return err
}

// lookForExcess counts in the first queue after the given one.
func (w *sweep) lookForExcess(after string, bounds []excess.Bound) (queue string, cuts []excess.Cut[finalPlace], read int, err error) {
	states, most := make([]int16, len(bounds)), make([]int64, len(bounds))
	for i, b := range bounds {
		states[i], most[i] = int16(b.State), int64(b.Most)
	}
	err = w.s.read(w.ctx, func(row scanner) error {
		var (
			ord int
			n   int64
			c   excess.Cut[finalPlace]
		)
		if err := row.Scan(&c.Queue, &ord, &n, &c.Last.finishedAt, &c.Last.id); err != nil {
			return err
		}
		queue, c.Bound = c.Queue, bounds[ord-1]
		read += int(n)
		if c.Last.id != "" {
			read += c.Most
			cuts = append(cuts, c)
		}
		return nil
	}, w.s.q.lookForExcess, after, states, most)
	return queue, cuts, read, err
}

// excesses are the statements that find and delete what is beyond a number.
func (q *statements) excesses(o *Options) {
	// pawl_job_final. It reads as many entries as are kept, and as many again to find
	// the place if there are more.
	const final = ` FROM public.pawl_job j WHERE j.state >= 4 AND j.state = b.state AND j.queue = q.name`
	q.lookForExcess = named(`SELECT q.name, b.ord, c.n, coalesce(x.finished_at, 0), coalesce(x.id::text, '')
	FROM (SELECT queue AS name FROM public.pawl_job WHERE state >= 4 AND queue > $1::text COLLATE "C" ORDER BY queue LIMIT 1) q
	CROSS JOIN unnest($2::smallint[], $3::bigint[]) WITH ORDINALITY AS b(state, most, ord)
	CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT 1`+final+` LIMIT b.most + 1) m) c
	LEFT JOIN LATERAL (SELECT j.finished_at, j.id`+final+`
		ORDER BY j.finished_at DESC, j.id DESC OFFSET b.most LIMIT 1) x ON c.n > b.most`, o)
	// pawl_job_final. It goes up to a place and looks at no more than $6 jobs.
	q.excess = named(withNow+`, x AS MATERIALIZED (
		SELECT finished_at, id FROM (
			SELECT $4::bigint AS finished_at, $5::text::uuid AS id
			UNION ALL
			(SELECT finished_at, id FROM public.pawl_job WHERE state >= 4 AND state = $3::smallint AND queue = $2::text
				ORDER BY finished_at, id OFFSET $6::bigint LIMIT 1)) ends
		ORDER BY finished_at, id LIMIT 1)
	DELETE FROM public.pawl_job WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM public.pawl_job WHERE state >= 4 AND state = $3::smallint AND queue = $2::text
			AND (finished_at, id) <= (SELECT finished_at, id FROM x) AND NOT (`+inWindow+`)
		ORDER BY finished_at, id LIMIT $7::bigint FOR UPDATE SKIP LOCKED)) RETURNING seq`, o)
}
