package mysql

import (
	"bytes"
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

// Limits of one statement. What is beyond them goes in the next one of the same
// transaction.
const (
	maxRows = 1000
	maxText = 4 << 20 // a quarter of what servers accept by default
)

// saved are the columns that can change after the insert.
var saved = strings.Split("kind,state,urgency,moment,retrying,wake_at,run_at,priority,reason,last_fence,last_verb,"+
	"attempt,rescued,max_attempts,max_rescues,lease,timeout,retention,start_before,token,umode,uwindow,held,extends,apart,"+
	"counts,failures,meta,progress", ",")

// values appends the columns of a row, in the order of recordColumns.
func (r *record) values(t *text) *text {
	t.add("(").num(r.seq).add(",").bytes(r.id[:]).add(",").name(r.queue).add(",").name(r.kind)
	for _, n := range []int64{int64(r.state), r.urgency, r.moment} {
		t.add(",").num(n)
	}
	t.add(",").flag(r.retrying).add(",").timeOrNull(r.wakeAt)
	t.add(",").num(r.runAt).add(",").num(int64(r.priority)).add(",").name(r.reason)
	for _, n := range []int64{
		r.fence, r.lastFence, int64(r.lastVerb), int64(r.attempt), int64(r.rescued), int64(r.maxAttempts),
		int64(r.maxRescues), r.lease, r.timeout, r.retention, r.createdAt, r.startedAt, r.claimedAt, r.startBefore,
	} {
		t.add(",").num(n)
	}
	t.add(",").bytes(r.worker).add(",").num(r.token).add(",").num(r.mark).add(",").bytes(r.ukey)
	t.add(",").num(int64(r.umode)).add(",").num(r.uwindow).add(",").flag(r.held)
	t.add(",").num(int64(r.extends)).add(",").num(int64(r.apart))
	for _, b := range [][]byte{r.counts, r.failures, r.meta, r.progress} {
		t.add(",").orNull(b)
	}
	return t
}

// flush stores what the call has done to rows that it has locked, in order of
// seq, the payloads and keys that belong to them after that. A row that should have
// gone may stay as it was, see lockIDs.
func (b *batch) flush(records []*record) error {
	var kept, gone []*record
	for _, r := range records {
		switch {
		case !r.dirty || r.stays:
		case !r.gone:
			kept = append(kept, r)
		case r.seq > 0:
			gone = append(gone, r)
		}
	}
	bySeq := func(a, b *record) int { return cmp.Compare(a.seq, b.seq) }
	slices.SortFunc(kept, bySeq)
	slices.SortFunc(gone, bySeq)
	gone, err := b.lockIDs(gone)
	if err != nil {
		return err
	}
	if err := b.save(kept); err != nil {
		return err
	}
	if err := b.delete(gone); err != nil {
		return err
	}
	if err := b.saveBlobs(kept); err != nil {
		return err
	}
	if err := b.dropKeys(append(kept, gone...)); err != nil {
		return err
	}
	for _, r := range records {
		r.dirty, r.dropKey, r.setPayload, r.setResult, r.wasApart = false, false, false, false, 0
	}
	return nil
}

// save writes whole rows, those that store the same blobs together. The rows are
// there and locked, so each meets its own primary key.
func (b *batch) save(records []*record) error {
	type blobs struct{ payload, result bool }
	groups := make(map[blobs][]*record)
	for _, r := range records {
		if r.state.Waiting() { // a claim that has read it before must not take it
			r.token = rand.Int64()
		}
		g := blobs{r.setPayload, r.setResult}
		groups[g] = append(groups[g], r)
	}
	for g, rows := range groups {
		columns := slices.Clone(saved)
		head := "INSERT INTO pawl_job (" + recordColumns
		if g.payload {
			head, columns = head+", payload", append(columns, "payload")
		}
		if g.result {
			head, columns = head+", result", append(columns, "result")
		}
		for i, c := range columns {
			columns[i] = c + " = VALUES(" + c + ")"
		}
		tail := " ON DUPLICATE KEY UPDATE " + strings.Join(columns, ", ")
		err := b.rows(head+") VALUES ", tail, len(rows), func(t *text, i int) {
			r := rows[i].values(t)
			if g.payload {
				r.add(",").orNull(rows[i].inline(payloadPart))
			}
			if g.result {
				r.add(",").orNull(rows[i].inline(resultPart))
			}
			r.add(")")
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// rows sends a statement with n elements, in as many parts as their size asks
// for: none is larger than maxText, but one of a single element.
func (b *batch) rows(head, tail string, n int, element func(t *text, i int)) error {
	for i := 0; i < n; {
		t := b.sql(head)
		for first := i; i < n && i-first < maxRows; i++ {
			buf, args := t.buf, t.args
			if i > first {
				t.add(",")
			}
			if element(t, i); i > first && t.size() > maxText {
				t.buf, t.args = buf, args // it goes in the next part
				break
			}
		}
		if _, err := b.exec(t.add(tail)); err != nil {
			return err
		}
	}
	return nil
}

// blob is the payload or result that is to be stored.
func (r *record) blob(part int) []byte {
	if part == payloadPart {
		return r.payload
	}
	return r.result
}

// inline is blob if that is kept in the row.
func (r *record) inline(part int) []byte {
	if r.apart&part != 0 {
		return nil
	}
	return r.blob(part)
}

func (r *record) store(part int, data []byte) {
	if part == payloadPart {
		r.payload, r.setPayload = data, true
	} else {
		r.result, r.setResult = data, true
	}
	r.dirty = true
	r.wasApart |= r.apart & part
	r.apart &^= part
	if len(data) > apartSize {
		r.apart |= part
	}
}

// saveBlobs stores payloads and results that have a row of their own, and
// removes those that are no longer apart.
func (b *batch) saveBlobs(records []*record) error {
	for _, part := range []int{payloadPart, resultPart} {
		var save []*record
		var drop []pawl.ID
		for _, r := range records {
			set := r.setPayload && part == payloadPart || r.setResult && part == resultPart
			switch {
			case set && r.apart&part != 0:
				save = append(save, r)
			case set && r.wasApart&part != 0: // one that is not there must not be locked
				drop = append(drop, r.id)
			}
		}
		if err := b.dropBlobs(drop, part); err != nil {
			return err
		}
		if err := b.insertBlobs(save, part); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) insertBlobs(records []*record, part int) error {
	return b.rows("REPLACE INTO pawl_blob (id, part, data) VALUES ", "", len(records), func(t *text, i int) {
		r := records[i]
		t.add("(").bytes(r.id[:]).add(",").num(int64(part)).add(",").bytes(r.blob(part)).add(")")
	})
}

func (b *batch) dropBlobs(ids []pawl.ID, part int) error {
	if len(ids) == 0 {
		return nil
	}
	slices.SortFunc(ids, compareIDs)
	t := b.sql("DELETE j FROM ").byID("pawl_blob", "PRIMARY", ids).add(" AND j.part = ").num(int64(part))
	_, err := b.exec(t)
	return err
}

// lockIDs returns the rows that a DELETE need not wait for. The others stay: a transaction
// that has met their ID in an enqueue has that locked, but not the row, until it ends.
func (b *batch) lockIDs(records []*record) (free []*record, err error) {
	if b.foreign {
		return records, nil
	}
	for part := range slices.Chunk(records, maxRows) {
		ids := make([]pawl.ID, len(part))
		for i, r := range part {
			ids[i] = r.id
		}
		slices.SortFunc(ids, compareIDs)
		locked, err := column[uuid.UUID](b, b.forUpdate(b.sql("SELECT j.id FROM ").byID("pawl_job", "by_id", ids)))
		if err != nil {
			return nil, err
		}
		for _, r := range part {
			if r.stays = !slices.Contains(locked, r.id); !r.stays {
				free = append(free, r)
			}
		}
	}
	return free, nil
}

// staying counts the rows that were to go but stay.
func staying(records []*record) (n int) {
	for _, r := range records {
		if r.stays {
			n++
		}
	}
	return n
}

// delete removes rows and their blobs.
func (b *batch) delete(records []*record) error {
	for part := range slices.Chunk(records, maxRows) {
		if _, err := b.exec(b.sql("DELETE j FROM ").seqs(seqsOf(part))); err != nil {
			return err
		}
		for _, blob := range []int{payloadPart, resultPart} {
			var apart []pawl.ID
			for _, r := range part {
				if (r.apart|r.wasApart)&blob != 0 {
					apart = append(apart, r.id)
				}
			}
			if err := b.dropBlobs(apart, blob); err != nil {
				return err
			}
		}
	}
	return nil
}

func seqsOf(records []*record) []int64 {
	seqs := make([]int64, len(records))
	for i, r := range records {
		seqs[i] = r.seq
	}
	slices.Sort(seqs)
	return seqs
}

// dropKeys gives up the keys that records have held.
func (b *batch) dropKeys(records []*record) error {
	holders := make(map[string]*record)
	for _, r := range records {
		if r.dropKey {
			holders[r.key()] = r
		}
	}
	keys := slices.Sorted(maps.Keys(holders))
	for part := range slices.Chunk(keys, maxRows) {
		ids := make([]pawl.ID, len(part))
		for i, k := range part {
			ids[i] = holders[k].id
		}
		// A key is held by one job, so a job's ID is with no other job's key.
		t := b.sql("DELETE j FROM ").byKey(part).add(" WHERE j.id IN (").ids(ids).add(")")
		if _, err := b.exec(t); err != nil {
			return err
		}
	}
	return nil
}

func compareIDs(a, b pawl.ID) int { return bytes.Compare(a[:], b[:]) }
