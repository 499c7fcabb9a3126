package mysql

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// The fast way claims and acks by statements that say under which condition they
// change a row, instead of locking the rows first. It needs a server that can
// bound how long one statement waits for a lock, as MariaDB can: a row that an
// open transaction has locked must not hold up the rest. Whatever it can't do, or
// finds otherwise than it was, is left to the slow way, which can do all.

const (
	// shortWait is for rows that another claim is about to take, or has lost: the
	// server keeps some of those locked until its commit. It is in seconds.
	shortWait = "SET STATEMENT innodb_lock_wait_timeout = 1 FOR "
	// slowTime is how long claims go the slow way after one of them waited in
	// vain: whoever has locked the row may have it for long.
	slowTime = 10 * time.Second
)

// errSlow says that the slow way is to be gone.
var errSlow = errors.New("pawl/mysql: rows are not as they were expected")

// inTxFast is inTx for what can be done in both ways.
func (s *Store) inTxFast(ctx context.Context, f func(b *batch) error) error {
	if s.mariaDB && time.Now().UnixNano() >= s.slowUntil.Load() {
		err := s.inTx(ctx, func(b *batch) error {
			b.fast = true
			return f(b)
		})
		if !errors.Is(err, errSlow) {
			return err
		}
	}
	return s.inTx(ctx, f)
}

// goSlow has claims go the slow way for a while.
func (s *Store) goSlow() { s.slowUntil.Store(time.Now().Add(slowTime).UnixNano()) }

// execFast runs a statement of the fast way.
func (b *batch) execFast(t *text) (int64, error) {
	n, err := b.exec(t)
	if code(err) == codeLockTimeout {
		return 0, errSlow
	}
	return n, err
}

// How a job's row changes with an ack, as its locator tells.
const (
	ackSlow    = iota // in more than a few columns
	ackDeletes        // it goes
	ackKeeps          // it stays
)

// ackKind is how an ack without a result changes the row.
func (r *record) ackKind() int64 {
	switch {
	case len(r.ukey) > 0, r.apart&resultPart != 0, r.retention < 0 && r.apart != 0:
		return ackSlow
	case r.retention < 0:
		return ackDeletes
	}
	return ackKeeps
}

// The locator of a claim is the row's number and its ackKind. Both are only
// hints: the row decides.
func locator(r *record) int64 { return r.seq<<2 | r.ackKind() }

func seqOf(locator int64) int64 { return locator >> 2 }

// fastAcks are the places of outcomes that the fast way can settle, by ackKind;
// ok is false if there are others.
func (st *settlement) fastAcks() (places [3][]int, ok bool) {
	seen := make(map[pawl.ID]struct{}, len(st.todo))
	for _, i := range st.todo {
		o := &st.outcomes[i]
		kind := o.Ref.Locator & 3
		_, twice := seen[o.Ref.ID]
		if o.Verb != pawl.Ack || len(o.Result) > 0 || o.Ref.Locator <= 0 || kind == ackSlow || kind > ackKeeps || twice {
			return places, false
		}
		seen[o.Ref.ID] = struct{}{}
		places[kind] = append(places[kind], i)
	}
	return places, true
}

// ackFast settles all, or fails with errSlow.
func (st *settlement) ackFast(b *batch, places [3][]int) error {
	if len(places[ackDeletes]) > 0 {
		t := st.claims(b.sql(shortWait+"DELETE j FROM "), places[ackDeletes])
		n, err := b.execFast(t.add(" AND j.retention < 0 AND j.ukey = '' AND j.apart = 0"))
		if err == nil && int(n) < len(places[ackDeletes]) {
			err = errSlow
		}
		if err != nil {
			return err
		}
	}
	if len(places[ackKeeps]) > 0 {
		// A join takes its conditions before SET.
		t := st.claims(b.sql(shortWait+"UPDATE "), places[ackKeeps]).add(" AND j.retention >= 0 AND j.ukey = '' AND j.apart < 2")
		b.time(t.add(" SET j.state = 4, j.last_fence = j.fence, j.last_verb = 1, j.moment = "))
		n, err := b.execFast(b.time(t.add(", j.wake_at = j.retention + ")))
		if err == nil && int(n) < len(places[ackKeeps]) {
			err = errSlow
		}
		if err != nil {
			return err
		}
	}
	for _, i := range st.todo {
		st.verdicts[i] = applied
	}
	return nil
}

// claims appends a join with the rows of claims that are current.
func (st *settlement) claims(t *text, places []int) *text {
	places = slices.Clone(places)
	ref := func(i int) *pawl.Ref { return &st.outcomes[i].Ref }
	slices.SortFunc(places, func(a, b int) int { return cmp.Compare(ref(a).Locator, ref(b).Locator) })
	t.add("JSON_TABLE('[")
	list(t, places, func(i int) {
		t.add("[").num(seqOf(ref(i).Locator)).add(",").num(ref(i).Fence).add(`,"`)
		t.buf = hex.AppendEncode(t.buf, ref(i).ID[:])
		t.add(`"]`)
	})
	t.add("]', '$[*]' COLUMNS (s BIGINT PATH '$[0]', f BIGINT PATH '$[1]', h VARCHAR(32) CHARACTER SET ascii PATH '$[2]')) AS v")
	return t.add(" STRAIGHT_JOIN pawl_job AS j FORCE INDEX (PRIMARY) ON j.seq = v.s AND j.fence = v.f AND j.id = UNHEX(v.h)" +
		" AND j.state = 3")
}
