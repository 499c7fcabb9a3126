package mysql

import (
	"math/rand/v2"
	"slices"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

// A probe finds rows that others have committed after the snapshot of a caller's
// transaction was taken. A locking read would see them too, but at REPEATABLE READ
// it locks the place of each row that is not there, and so, at the end of an index,
// all enqueues until the transaction ends. So rows are inserted for what is looked
// for, and those that could be are taken back: the others are there.

const (
	probeBegin = "SAVEPOINT pawl_probe"
	probeUndo  = "ROLLBACK TO SAVEPOINT pawl_probe"
)

// probe runs f, and undoes what it has inserted.
func (b *batch) probe(f func() error) error {
	if _, err := b.exec(b.sql(probeBegin)); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err // the whole call is undone
	}
	_, err := b.exec(b.sql(probeUndo))
	return err
}

// insertProbes inserts rows whose number or ID is free. The numbers may be none.
func (b *batch) insertProbes(seqs []int64, ids []pawl.ID, mark int64) (last int64, err error) {
	t := b.sql("INSERT IGNORE INTO pawl_job (seq, id, queue, kind, state, urgency, moment, run_at, priority, max_attempts," +
		" max_rescues, lease, timeout, retention, created_at, mark) VALUES ")
	at := 0
	list(t, ids, func(id pawl.ID) {
		t.add("(")
		if seqs == nil {
			t.add("NULL")
		} else {
			t.num(seqs[at])
		}
		t.add(",").bytes(id[:]).add(",x'',x'',5,0,0,0,0,0,0,0,0,0,0,").num(mark).add(")")
		at++
	})
	res, err := b.result(t)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

// probeIDs says which IDs are there.
func (b *batch) probeIDs(ids []pawl.ID) (there []pawl.ID, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	err = b.probe(func() error {
		mark := rand.Int64()
		if _, err := b.insertProbes(nil, ids, mark); err != nil {
			return err
		}
		free, err := column[uuid.UUID](b, b.sql("SELECT j.id FROM ").byID("pawl_job", "by_id", ids).add(" WHERE mark = ").num(mark))
		there = without(ids, free)
		return err
	})
	return there, err
}

// probeSeqs says which numbers of jobs are there. Those that were never given, as
// in a ref that somebody has made up, are not: to insert one would move the
// counter there.
func (b *batch) probeSeqs(seqs []int64) (there []int64, err error) {
	if len(seqs) == 0 {
		return nil, nil
	}
	err = b.probe(func() error {
		next, err := b.insertProbes(nil, []pawl.ID{uuid.New()}, 0)
		if err != nil {
			return err
		}
		seqs := slices.DeleteFunc(slices.Clone(seqs), func(n int64) bool { return n >= next })
		if len(seqs) == 0 {
			return nil
		}
		ids := make([]pawl.ID, len(seqs))
		for i := range ids {
			ids[i] = uuid.New()
		}
		mark := rand.Int64()
		if _, err := b.insertProbes(seqs, ids, mark); err != nil {
			return err
		}
		free, err := column[int64](b, b.sql("SELECT j.seq FROM ").seqs(seqs).add(" WHERE mark = ").num(mark))
		there = without(seqs, free)
		return err
	})
	return there, err
}

// probeKeys says which unique keys somebody holds.
func (b *batch) probeKeys(keys []string) (there []string, err error) {
	nobody := make([]byte, len(pawl.ID{}))
	err = b.probe(func() error {
		t := b.sql("INSERT IGNORE INTO pawl_key (k, id) VALUES ")
		list(t, keys, func(k string) { t.add("(").bytes([]byte(k)).add(",").bytes(nobody).add(")") })
		if _, err := b.exec(t); err != nil {
			return err
		}
		free, err := column[string](b, b.sql("SELECT j.k FROM ").byKey(keys).add(" WHERE j.id = ").bytes(nobody))
		there = without(keys, free)
		return err
	})
	return there, err
}

// without are the elements of all that are not in some.
func without[T comparable](all, some []T) []T {
	set := make(map[T]struct{}, len(some))
	for _, v := range some {
		set[v] = struct{}{}
	}
	return slices.DeleteFunc(slices.Clone(all), func(v T) bool { _, ok := set[v]; return ok })
}
