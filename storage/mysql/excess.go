package mysql

import (
	"context"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/excess"
)

// place is that of a final job in its queue and state.
type place struct{ moment, seq int64 }

// sweepExcess deletes final jobs that are too many. What counts holds no lock.
func (s *Store) sweepExcess(ctx context.Context, spec pawl.SweepSpec, limit int) (int, error) {
	return s.round.Sweep(spec, limit, excess.Source[place]{
		Look: func(after string, bounds []excess.Bound) (queue string, cuts []excess.Cut[place], read int, err error) {
			err = s.reading(ctx, func(b *batch) (err error) {
				queue, cuts, read, err = b.lookForExcess(after, bounds)
				return err
			})
			return queue, cuts, read, err
		},
		Nth: func(c excess.Cut[place], n int) (p place, ok bool, err error) {
			err = s.reading(ctx, func(b *batch) (err error) {
				p, err = b.nthExcess(c, n)
				return err
			})
			return p, p != place{}, err
		},
		Purge: func(c excess.Cut[place], limit int) (int, error) {
			return s.remove(ctx, limit, func(b *batch, limit int) (int, error) { return b.purgeExcess(c, limit) })
		},
	})
}

// lookForExcess counts in the first queue after the given one.
func (b *batch) lookForExcess(after string, bounds []excess.Bound) (queue string, cuts []excess.Cut[place], read int, err error) {
	if queue, err = b.nextQueue(after); queue == "" || err != nil {
		return "", nil, 0, err
	}
	cuts, read, err = excess.Count(queue, bounds,
		func(state pawl.State, limit int) (int, error) {
			t := b.inState(b.sql("SELECT COUNT(*) FROM (SELECT 1"), queue, state)
			n, err := b.number(t.add(" LIMIT ").num(int64(limit)).add(") AS m"))
			return int(n), err
		},
		func(state pawl.State, n int) (place, error) { return b.newestFinal(queue, state, n) })
	return queue, cuts, read, err
}

// newestFinal is the place that n newer final jobs follow.
func (b *batch) newestFinal(queue string, state pawl.State, n int) (place, error) {
	t := b.inState(b.sql("SELECT moment, seq"), queue, state)
	return b.placeOf(t.add(" ORDER BY moment DESC, seq DESC LIMIT 1 OFFSET ").num(int64(n)))
}

// nthExcess is the place of the nth final job of a cut; the zero place if it has less.
func (b *batch) nthExcess(c excess.Cut[place], n int) (place, error) {
	t := b.inState(b.sql("SELECT moment, seq"), c.Queue, c.State).upTo(c.Last)
	return b.placeOf(t.add(" ORDER BY moment, seq LIMIT 1 OFFSET ").num(int64(n - 1)))
}

// upTo adds the condition that a final job is not behind a place.
func (t *text) upTo(p place) *text {
	t.add(" AND moment <= ").num(p.moment)
	return t.add(" AND (moment < ").num(p.moment).add(" OR seq <= ").num(p.seq).add(")")
}

func (b *batch) inState(t *text, queue string, state pawl.State) *text {
	t.add(" FROM pawl_job FORCE INDEX (place) WHERE queue = ").name(queue)
	return t.add(" AND state = ").num(int64(state)).add(" AND urgency = 0")
}

// placeOf returns the place that a query gives; the zero place if it gives none.
func (b *batch) placeOf(t *text) (p place, err error) {
	err = b.each(t, func(row scanner) error { return row.Scan(&p.moment, &p.seq) })
	return p, err
}

func (b *batch) purgeExcess(c excess.Cut[place], limit int) (int, error) {
	last := c.Last
	if c.Exact() { // what was kicked or deleted meanwhile counts
		now, err := b.newestFinal(c.Queue, c.State, c.Most)
		if err != nil {
			return 0, err
		}
		if now.moment < last.moment || now.moment == last.moment && now.seq < last.seq {
			last = now
		}
	}
	return b.purgeUpTo(c.Queue, c.State, last, limit)
}

// purgeUpTo removes final jobs of a queue up to a place, but for those that a unique
// window keeps.
func (b *batch) purgeUpTo(queue string, state pawl.State, last place, limit int) (int, error) {
	t := b.locking("SELECT "+recordColumns, "place").add("queue = ").name(queue).add(" AND state = ").num(int64(state))
	t.add(" AND urgency = 0").upTo(last).add(" AND (umode <> 2 OR ukey = '' OR moment + uwindow <= ").num(b.now)
	found, err := b.lock(b.forUpdate(t.add(") ORDER BY moment, seq LIMIT ").num(int64(limit))))
	if err != nil {
		return 0, err
	}
	return b.purge(found)
}
