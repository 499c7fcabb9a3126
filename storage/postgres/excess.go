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
		Nth:   w.nthExcess,
		Purge: w.deleteExcess,
	})
	w.swept.Purged += n
	w.full(w.swept.Purged)
	w.s.pace.Swept(w.swept.Purged >= w.spec.Limit)
	return err
}

// lookForExcess counts in the first queue after the given one, which is a statement of its
// own: its name must be known also if counting fails.
func (w *sweep) lookForExcess(after string, bounds []excess.Bound) (queue string, cuts []excess.Cut[finalPlace], read int, err error) {
	err = w.s.read(w.ctx, func(row scanner) error { return row.Scan(&queue) }, w.s.q.nextFinal, after)
	if err != nil || queue == "" {
		return "", nil, 0, err
	}
	states, most := make([]int16, len(bounds)), make([]int64, len(bounds))
	for i, b := range bounds {
		states[i], most[i] = int16(b.State), int64(b.Most)
	}
	err = w.s.read(w.ctx, func(row scanner) error {
		var (
			ord int
			n   int64
		)
		c := excess.Cut[finalPlace]{Queue: queue}
		if err := row.Scan(&ord, &n, &c.Last.finishedAt, &c.Last.id); err != nil {
			return err
		}
		c.Bound = bounds[ord-1]
		read += int(n)
		if c.Last.id != "" {
			read += c.Most
			cuts = append(cuts, c)
		}
		return nil
	}, w.s.q.lookForExcess, queue, states, most)
	return queue, cuts, read, err
}

func (w *sweep) nthExcess(c excess.Cut[finalPlace], n int) (p finalPlace, ok bool, err error) {
	err = w.s.read(w.ctx, func(row scanner) error {
		ok = true
		return row.Scan(&p.finishedAt, &p.id)
	}, w.s.q.nthExcess, c.Queue, int16(c.State), c.Last.finishedAt, c.Last.id, n)
	return p, ok, err
}

func (w *sweep) deleteExcess(c excess.Cut[finalPlace], limit int) (int, error) {
	args := []any{w.s.clock(), c.Queue, int16(c.State), c.Last.finishedAt, c.Last.id}
	if c.Exact() {
		return w.deleteBy(w.s.q.excessNow, limit, append(args, c.Most)...)
	}
	return w.deleteBy(w.s.q.excess, limit, args...)
}

// excesses are the statements that find and delete what is beyond a number.
func (q *statements) excesses(o *Options) {
	// pawl_job_final
	q.nextFinal = named(`SELECT queue FROM public.pawl_job WHERE state >= 4 AND queue > $1::text COLLATE "C" ORDER BY queue LIMIT 1`, o)
	// pawl_job_final. It reads as many entries as are kept, and as many again to find
	// the place if there are more.
	const final = ` FROM public.pawl_job j WHERE j.state >= 4 AND j.state = b.state AND j.queue = $1::text`
	q.lookForExcess = named(`SELECT b.ord, c.n, coalesce(x.finished_at, 0), coalesce(x.id::text, '')
	FROM unnest($2::smallint[], $3::bigint[]) WITH ORDINALITY AS b(state, most, ord)
	CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT 1`+final+` LIMIT b.most + 1) m) c
	LEFT JOIN LATERAL (SELECT j.finished_at, j.id`+final+`
		ORDER BY j.finished_at DESC, j.id DESC OFFSET b.most LIMIT 1) x ON c.n > b.most`, o)
	// pawl_job_final
	q.nthExcess = named(`SELECT finished_at, id::text FROM public.pawl_job j WHERE state >= 4 AND state = $2::smallint AND queue = $1::text
		AND (finished_at, id) <= ($3::bigint, $4::text::uuid) ORDER BY finished_at, j.id OFFSET $5::bigint - 1 LIMIT 1`, o)
	upTo := func(with, and, limit string) string {
		return named(withNow+with+`
	DELETE FROM public.pawl_job WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM public.pawl_job WHERE state >= 4 AND state = $3::smallint AND queue = $2::text
			AND (finished_at, id) <= ($4::bigint, $5::text::uuid)`+and+` AND NOT (`+inWindow+`)
		ORDER BY finished_at, id LIMIT `+limit+`::bigint FOR UPDATE SKIP LOCKED)) RETURNING seq`, o)
	}
	q.excess = upTo("", "", "$6")
	// It finds the place itself, so that what was kicked or deleted by then counts.
	q.excessNow = upTo(`, l AS MATERIALIZED (
		SELECT finished_at, id FROM public.pawl_job WHERE state >= 4 AND state = $3::smallint AND queue = $2::text
		ORDER BY finished_at DESC, id DESC OFFSET $6::bigint LIMIT 1)`,
		` AND (finished_at, id) <= ((SELECT finished_at FROM l), (SELECT id FROM l))`, "$7")
}
