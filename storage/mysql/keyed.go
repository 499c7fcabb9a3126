package mysql

import (
	"context"
	"database/sql"
	"time"

	"github.com/pawlq/pawl"
)

// canLook reports whether storeKeyed can store the requests: some have unique keys,
// and nothing is replaced or refused.
func (e *enqueue) canLook() bool {
	keyed := false
	for _, r := range e.reqs {
		if !keepsFirst(r) {
			return false
		}
		keyed = keyed || r.UniqueKey != ""
	}
	return keyed && len(e.reqs) <= maxRows
}

// keepsFirst reports whether nothing but its own ID and key decides what becomes of
// a request.
func keepsFirst(r *pawl.Request) bool { return r.MaxDepth <= 0 && r.OnDuplicate == pawl.KeepFirst }

// storeKeyed looks first, by one statement outside of a transaction. What is there is
// then answered, and most of what is not can be stored without another look.
func (s *Store) storeKeyed(ctx context.Context, e *enqueue, last func() error) error {
	var l *keyLook
	err := s.alone(ctx, func(b *batch) (err error) {
		l, err = b.lookAtKeys(e)
		return err
	})
	if err != nil || len(l.rest) == 0 {
		return err
	}
	part := newEnqueue(make([]*pawl.Request, len(l.rest)))
	for k, i := range l.rest {
		part.reqs[k] = e.reqs[i]
	}
	part.fresh = l.fresh
	err = s.inTx(ctx, func(b *batch) error {
		if b.now == 0 {
			b.now = l.now + time.Since(l.at).Microseconds()
		}
		b.noWait = s.mariaDB
		if err := part.run(b); err != nil {
			return err
		}
		return last()
	})
	for k, i := range l.rest {
		e.receipts[i] = part.receipts[k]
	}
	return err
}

// keyLook is what a look at IDs and keys has seen.
type keyLook struct {
	now   int64
	at    time.Time // when it was seen, by the clock of this process
	rest  []int     // places of requests that are to be stored
	fresh bool      // and meet nothing
}

// lookAtKeys answers the requests whose ID is there or whose key is held.
func (b *batch) lookAtKeys(e *enqueue) (*keyLook, error) {
	l := &keyLook{fresh: true}
	ids := make(map[pawl.ID]struct{}) // of the rest
	err := b.each(b.keyLookText(e.reqs), func(row scanner) error {
		var (
			i          int
			exists     bool
			id         sql.RawBytes
			state      sql.Null[pawl.State]
			moment, uw sql.NullInt64
		)
		if err := row.Scan(&i, &l.now, &exists, &id, &state, &moment, &uw); err != nil {
			return err
		}
		h := &record{state: state.V, moment: moment.Int64, uwindow: uw.Int64, held: state.Valid}
		copy(h.id[:], id)
		_, twice := ids[e.reqs[i].ID] // it will be there by then, whoever holds the key
		switch {
		case exists:
			e.got(i, pawl.Exists, e.reqs[i].ID)
		case h.holdsAt(l.now) && !twice:
			e.got(i, pawl.Duplicate, h.id)
		default:
			ids[e.reqs[i].ID] = struct{}{}
			l.rest = append(l.rest, i)
			l.fresh = l.fresh && id == nil
		}
		return nil
	})
	l.at = time.Now()
	return l, err
}

// keyLookText reads the job that has the ID of each request, and the one that holds its
// key.
func (b *batch) keyLookText(reqs []*pawl.Request) *text {
	t := b.time(b.sql("SELECT v.n, ")).add(", e.seq IS NOT NULL, k.id, h.state, h.moment, h.uwindow FROM JSON_TABLE('[")
	for i, r := range reqs {
		if i > 0 {
			t.add(",")
		}
		t.add("[").num(int64(i)).add(",").hex(r.ID[:]).add(",")
		if r.UniqueKey != "" {
			t.hex([]byte(keyOf(r.Queue, []byte(r.UniqueKey))))
		} else {
			t.add(`""`)
		}
		t.add("]")
	}
	return t.add("]', '$[*]' COLUMNS (n INT PATH '$[0]', i VARCHAR(32) CHARACTER SET ascii PATH '$[1]', h VARCHAR(1000) CHARACTER SET ascii PATH '$[2]')) AS v" +
		" LEFT JOIN pawl_job AS e FORCE INDEX (by_id) ON e.id = UNHEX(v.i)" +
		" LEFT JOIN pawl_key AS k FORCE INDEX (PRIMARY) ON k.k = UNHEX(v.h)" +
		" LEFT JOIN pawl_job AS h FORCE INDEX (by_id) ON h.id = k.id ORDER BY v.n")
}
