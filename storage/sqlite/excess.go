package sqlite

import (
	"cmp"
	"context"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/excess"
)

// finalPlace is the place of a final job in its queue and state.
type finalPlace struct{ at, seq int64 }

// sweepExcess deletes final jobs that are too many. They are counted by a reader, so
// that nobody who writes waits for that.
func (s *Store) sweepExcess(ctx context.Context, spec pawl.SweepSpec, sw *pawl.Swept) error {
	n, err := s.round.Sweep(spec, spec.Limit-sw.Purged, excess.Source[finalPlace]{
		Look: func(after string, bounds []excess.Bound) (queue string, cuts []excess.Cut[finalPlace], read int, err error) {
			err = s.read(ctx, func(run reader) (err error) {
				queue, cuts, read, err = lookForExcess(ctx, run, s.q, after, bounds)
				return err
			})
			return queue, cuts, read, err
		},
		Nth: func(c excess.Cut[finalPlace], n int) (p finalPlace, ok bool, err error) {
			err = s.read(ctx, func(run reader) (err error) {
				p, err = placeOf(ctx, run, s.q.nthExcess, c.State, c.Queue, c.Last.at, c.Last.seq, n-1)
				return err
			})
			return p, p != finalPlace{}, err
		},
		Purge: func(c excess.Cut[finalPlace], limit int) (n int, err error) {
			err = s.writer.do(&request{ctx: ctx, class: classSweep, jobs: limit, run: func(b *batch) (err error) {
				n, err = b.purgeExcess(c, limit)
				return err
			}})
			return n, err
		},
	})
	sw.Purged += n
	sw.More = sw.More || sw.Purged >= spec.Limit
	if n == 0 {
		return err
	}
	return cmp.Or(err, s.writer.do(&request{ctx: ctx, class: classSweep, run: func(b *batch) (err error) {
		sw.NextDue, err = b.nextOfAll(spec)
		return err
	}}))
}

// lookForExcess counts in the first queue after the given one.
func lookForExcess(ctx context.Context, run reader, q *statements, after string, bounds []excess.Bound) (queue string, cuts []excess.Cut[finalPlace], read int, err error) {
	if queue, err = nextQueue(ctx, run, q, after); queue == "" || err != nil {
		return "", nil, 0, err
	}
	cuts, read, err = excess.Count(queue, bounds,
		func(state pawl.State, limit int) (int, error) {
			n, err := number(ctx, run, q.atLeast, state, queue, limit)
			return int(n), err
		},
		func(state pawl.State, n int) (finalPlace, error) {
			return placeOf(ctx, run, q.newest, state, queue, n)
		})
	return queue, cuts, read, err
}

// placeOf returns the place that a query gives; the zero place if it gives none.
func placeOf(ctx context.Context, run reader, s *statement, args ...any) (p finalPlace, err error) {
	rows, err := run.query(ctx, s, args...)
	if err != nil {
		return p, err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&p.at, &p.seq); err != nil {
			return p, err
		}
	}
	return p, rows.Err()
}

func (b *batch) purgeExcess(c excess.Cut[finalPlace], limit int) (int, error) {
	last := c.Last
	if c.Exact() { // what was kicked or deleted meanwhile counts
		now, err := placeOf(b.ctx, b.run, b.q.newest, c.State, c.Queue, c.Most)
		if err != nil {
			return 0, err
		}
		if now.at < last.at || now.at == last.at && now.seq < last.seq {
			last = now
		}
	}
	return b.removeBy(b.q.excess, c.State, c.Queue, last.at, last.seq, b.now, limit)
}
