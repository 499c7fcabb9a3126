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
		Look:  w.lookForExcess,
		Purge: w.deleteExcess,
	})
	w.swept.Purged += n
	w.full(w.swept.Purged)
	w.s.pace.Swept(w.swept.Purged >= w.spec.Limit)
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

func (w *sweep) deleteExcess(c excess.Cut[finalPlace], limit int) (int, error) {
	last := c.Last
	err := w.s.read(w.ctx, func(row scanner) error {
		var far finalPlace
		err := row.Scan(&far.finishedAt, &far.id)
		if far.finishedAt < last.finishedAt || far.finishedAt == last.finishedAt && far.id < last.id {
			last = far
		}
		return err
	}, w.s.q.oldest, c.Queue, int16(c.State), excess.Hold)
	if err != nil {
		return 0, err
	}
	return w.deleteBy(w.s.q.excess, limit, w.s.clock(), c.Queue, int16(c.State), last.finishedAt, last.id)
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
	// pawl_job_final
	q.oldest = named(`SELECT finished_at, id::text FROM public.pawl_job WHERE state >= 4 AND state = $2::smallint AND queue = $1::text
		ORDER BY finished_at, id OFFSET $3::bigint LIMIT 1`, o)
	q.excess = named(withNow+`
	DELETE FROM public.pawl_job WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM public.pawl_job WHERE state >= 4 AND state = $3::smallint AND queue = $2::text
			AND (finished_at, id) <= ($4::bigint, $5::text::uuid) AND NOT (`+inWindow+`)
		ORDER BY finished_at, id LIMIT $6::bigint FOR UPDATE SKIP LOCKED)) RETURNING seq`, o)
}
