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
		Purge: func(c excess.Cut[place], limit int) (int, error) {
			last := c.Last
			err := s.reading(ctx, func(b *batch) (err error) {
				last, err = b.endOfStep(c)
				return err
			})
			if err != nil {
				return 0, err
			}
			return s.remove(ctx, limit, func(b *batch, limit int) (int, error) {
				return b.purgeUpTo(c.Queue, c.State, last, limit)
			})
		},
	})
}

// lookForExcess counts in the first queue after the given one.
func (b *batch) lookForExcess(after string, bounds []excess.Bound) (queue string, cuts []excess.Cut[place], read int, err error) {
	if queue, err = b.nextQueue(after); queue == "" || err != nil {
		return "", nil, 0, err
	}
	for _, bound := range bounds {
		t := b.inState(b.sql("SELECT COUNT(*) FROM (SELECT 1"), queue, bound.State)
		n, err := b.number(t.add(" LIMIT ").num(int64(bound.Most) + 1).add(") AS m"))
		if err != nil {
			return "", nil, 0, err
		}
		if read += int(n); n <= int64(bound.Most) {
			continue
		}
		c := excess.Cut[place]{Queue: queue, Bound: bound}
		t = b.inState(b.sql("SELECT moment, seq"), queue, bound.State).add(" ORDER BY moment DESC, seq DESC LIMIT 1 OFFSET ")
		if c.Last, err = b.placeOf(t.num(int64(bound.Most))); err != nil {
			return "", nil, 0, err
		}
		read += bound.Most
		cuts = append(cuts, c)
	}
	return queue, cuts, read, nil
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

// endOfStep is up to where to look for jobs to delete.
func (b *batch) endOfStep(c excess.Cut[place]) (place, error) {
	t := b.inState(b.sql("SELECT moment, seq"), c.Queue, c.State)
	far, err := b.placeOf(t.add(" ORDER BY moment, seq LIMIT 1 OFFSET ").num(excess.Hold))
	if far.moment > 0 && (far.moment < c.Last.moment || far.moment == c.Last.moment && far.seq < c.Last.seq) {
		return far, err
	}
	return c.Last, err
}

// purgeUpTo removes final jobs of a queue up to a place, but for those that a unique
// window keeps.
func (b *batch) purgeUpTo(queue string, state pawl.State, last place, limit int) (int, error) {
	t := b.locking("SELECT "+recordColumns, "place").add("queue = ").name(queue).add(" AND state = ").num(int64(state))
	t.add(" AND urgency = 0 AND moment <= ").num(last.moment).add(" AND (moment < ").num(last.moment).add(" OR seq <= ").num(last.seq)
	t.add(") AND (umode <> 2 OR ukey = '' OR moment + uwindow <= ").num(b.now)
	found, err := b.lock(b.forUpdate(t.add(") ORDER BY moment, seq LIMIT ").num(int64(limit))))
	if err != nil {
		return 0, err
	}
	return len(found), b.purge(found)
}
