package mysql

import (
	"slices"

	"github.com/pawlq/pawl"
)

// jobs are the rows of a call that names jobs. Those in locked are locked by
// others, who have them as they are here, at least as far as is committed; the
// rest is ours until the transaction ends.
type jobs struct {
	all    map[pawl.ID]*record
	locked map[pawl.ID]*record
}

// lockJobs locks the jobs of refs. In a caller's transaction it waits for those
// that others have locked.
func (b *batch) lockJobs(refs []pawl.Ref) (*jobs, error) {
	if b.foreign {
		var err error
		if refs, err = b.existing(refs); err != nil {
			return nil, err
		}
	}
	f := &jobs{all: make(map[pawl.ID]*record, len(refs)), locked: make(map[pawl.ID]*record)}
	var seqs []int64
	wanted := make(map[pawl.ID]struct{}, len(refs))
	for _, ref := range refs {
		if _, twice := wanted[ref.ID]; !twice && seqOf(ref.Locator) > 0 {
			seqs = append(seqs, seqOf(ref.Locator))
		}
		wanted[ref.ID] = struct{}{}
	}
	slices.Sort(seqs)
	if err := b.lockInto(f, wanted, b.bySeq(seqs), len(seqs)); err != nil {
		return nil, err
	}
	ids := f.missing(wanted)
	if err := b.lockInto(f, wanted, b.byID(ids), len(ids)); err != nil || b.foreign {
		return f, err
	}
	ids = f.missing(wanted)
	if len(ids) == 0 {
		return f, nil
	}
	left, err := b.records(b.sql("SELECT "+recordColumns+" FROM ").byID("pawl_job", "by_id", ids))
	for _, r := range left {
		f.locked[r.id] = r
	}
	return f, err
}

// existing are the refs whose jobs are there. To lock one that is not would lock
// its place, see probe.go; only a job that is in the snapshot but gone, and one
// whose ref has no Locator, is looked for that way.
func (b *batch) existing(refs []pawl.Ref) ([]pawl.Ref, error) {
	ids := make([]pawl.ID, len(refs))
	for i, ref := range refs {
		ids[i] = ref.ID
	}
	visible, err := b.visible(ids)
	if err != nil {
		return nil, err
	}
	var seqs []int64
	for _, ref := range refs {
		if _, ok := visible[ref.ID]; !ok && seqOf(ref.Locator) > 0 {
			seqs = append(seqs, seqOf(ref.Locator))
		}
	}
	slices.Sort(seqs)
	there, err := b.probeSeqs(slices.Compact(seqs))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(refs), func(ref pawl.Ref) bool {
		_, ok := visible[ref.ID]
		return !ok && seqOf(ref.Locator) > 0 && !slices.Contains(there, seqOf(ref.Locator))
	}), nil
}

func (b *batch) bySeq(seqs []int64) *text {
	return b.forUpdate(b.time(b.sql("SELECT " + recordColumns + ", ")).add(" FROM ").seqs(slices.Compact(seqs)))
}

func (b *batch) byID(ids []pawl.ID) *text {
	return b.forUpdate(b.withTime(ids))
}

// withTime reads jobs by ID, and the time.
func (b *batch) withTime(ids []pawl.ID) *text {
	return b.time(b.sql("SELECT "+recordColumns+", ")).add(" FROM ").byID("pawl_job", "by_id", ids)
}

// locking begins a statement that reads the time too.
func (b *batch) locking(columns, index string) *text {
	return b.time(b.sql(columns).add(", ")).add(" FROM pawl_job FORCE INDEX (").add(index).add(") WHERE ")
}

func (b *batch) forUpdate(t *text) *text {
	if b.foreign {
		return t.add(" FOR UPDATE")
	}
	return t.add(" FOR UPDATE SKIP LOCKED")
}

func (b *batch) lockInto(f *jobs, wanted map[pawl.ID]struct{}, t *text, n int) error {
	if n == 0 {
		return nil
	}
	found, err := b.lock(t)
	for _, r := range found {
		if _, ok := wanted[r.id]; ok {
			f.all[r.id] = r
		}
	}
	return err
}

// lock runs a statement that locking has begun.
func (b *batch) lock(t *text) (found []*record, err error) {
	var now int64
	err = b.each(t, func(row scanner) error {
		r := new(record)
		found = append(found, r)
		return r.scan(row, &now)
	})
	if b.now == 0 {
		b.now = now
	}
	return found, err
}

// missing lists the wanted jobs that were not found, in order of ID.
func (f *jobs) missing(wanted map[pawl.ID]struct{}) (ids []pawl.ID) {
	for id := range wanted {
		if f.all[id] == nil {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

// records lists the locked rows.
func (f *jobs) records() []*record {
	all := make([]*record, 0, len(f.all))
	for _, r := range f.all {
		all = append(all, r)
	}
	return all
}
