package mysql

import (
	"cmp"
	"database/sql"
	"maps"
	"slices"
	"strings"

	"github.com/pawlq/pawl"
)

// holders loads the jobs that hold keys. With lock, others can't change them nor
// take their keys until the transaction ends.
//
// Who locks a job and its key takes the job first, as a settle does.
func (b *batch) holders(keys []string, lock bool) (map[string]*record, error) {
	keys = slices.Clone(keys)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	if b.latest {
		var err error
		if keys, err = b.probeKeys(keys); err != nil || len(keys) == 0 {
			return nil, err
		}
	}
	held, err := b.held(keys, false)
	if len(held) == 0 || err != nil {
		return nil, err
	}
	ids := make([]pawl.ID, 0, len(held))
	for _, id := range held {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, compareIDs)
	t := b.sql("SELECT "+recordColumns+" FROM ").byID("pawl_job", "by_id", ids)
	if lock {
		t.add(" FOR UPDATE")
	} else if b.latest {
		t.add(" LOCK IN SHARE MODE") // what is committed, not what an old snapshot holds
	}
	found, err := b.records(t)
	if err != nil {
		return nil, err
	}
	if lock {
		if held, err = b.held(slices.Sorted(maps.Keys(held)), true); err != nil {
			return nil, err
		}
	}
	all := make(map[string]*record, len(found))
	for _, r := range found {
		all[r.key()] = r
	}
	var moved []string // meanwhile
	for key, id := range held {
		if r := all[key]; r == nil || r.id != id {
			delete(all, key)
			moved = append(moved, key)
		}
	}
	switch {
	case len(moved) == 0:
		return all, nil
	case lock:
		return all, b.dropOrphans(moved, held)
	}
	again, err := b.holders(moved, true)
	maps.Copy(all, again)
	return all, err
}

// dropOrphans gives up keys, which are locked, whose jobs are not there. Somebody has
// deleted those by hand; nobody else would give the keys up.
func (b *batch) dropOrphans(keys []string, held map[string]pawl.ID) error {
	var orphans []*record
	var ids []pawl.ID
	for _, k := range keys {
		queue, ukey, _ := strings.Cut(k, "\x00")
		orphans = append(orphans, &record{id: held[k], queue: queue, ukey: []byte(ukey), dropKey: true})
		ids = append(ids, held[k])
	}
	slices.SortFunc(ids, compareIDs)
	there, err := b.probeIDs(slices.Compact(ids))
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return errAgain
	}
	return b.dropKeys(orphans)
}

// held reads who holds keys, which are in order.
func (b *batch) held(keys []string, lock bool) (map[string]pawl.ID, error) {
	t := b.sql("SELECT k, id FROM ").byKey(keys)
	if lock {
		t.add(" FOR UPDATE")
	} else if b.latest {
		t.add(" LOCK IN SHARE MODE")
	}
	all := make(map[string]pawl.ID)
	err := b.each(t, func(row scanner) error {
		var k string
		var id sql.RawBytes
		err := row.Scan(&k, &id)
		if err == nil {
			all[k] = pawl.ID(id)
		}
		return err
	})
	return all, err
}

// insertKeys takes keys that nobody holds. It fails if somebody was faster.
func (b *batch) insertKeys(records []*record) error {
	records = slices.Clone(records)
	slices.SortFunc(records, func(x, y *record) int { return cmp.Compare(x.key(), y.key()) })
	return b.rows("INSERT INTO pawl_key (k, id) VALUES ", "", len(records), func(t *text, i int) {
		t.add("(").bytes([]byte(records[i].key())).add(",").bytes(records[i].id[:]).add(")")
	})
}
