package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pawlq/pawl"
)

// apartSize is the size from which payloads and results get a row of their own,
// so that the rows that claims and settles rewrite stay short.
const apartSize = 1 << 10

// Bits of record.apart.
const (
	payloadApart = 1
	resultApart  = 2
)

// record is a row of the job table without payload and result.
type record struct {
	seq   int64
	id    pawl.ID
	queue string
	kind  string
	state pawl.State
	// rank and at order the jobs of a state, see the schema.
	rank, at, runAt      int64
	priority             int
	reason               string
	fence, lastFence     int64
	lastVerb             pawl.Verb
	attempt, rescued     int
	maxAttempts          int
	maxRescues           int
	lease, timeout       int64
	retention            int64
	createdAt, startedAt int64
	claimedAt            int64
	startBefore, purgeAt int64
	worker               string
	token                int64
	ukey                 string
	umode                pawl.UniqueMode
	uwindow              int64
	held                 bool
	extends              int
	counts               sql.NullString
	failures             int
	meta, progress       sql.NullString
	apart                int
	newFailure           *pawl.Failure // to be stored by save
	idBytes              sql.RawBytes
}

// scan reads a row of recordColumns, and what follows them into more.
func (r *record) scan(rows *sql.Rows, more ...any) error {
	fields := append([]any{
		&r.seq, &r.idBytes, &r.queue, &r.kind, &r.state, &r.rank, &r.at, &r.runAt, &r.priority, &r.reason, &r.fence,
		&r.lastFence, &r.lastVerb, &r.attempt, &r.rescued, &r.maxAttempts, &r.maxRescues, &r.lease, &r.timeout, &r.retention,
		&r.createdAt, &r.startedAt, &r.claimedAt, &r.startBefore, &r.purgeAt, &r.worker, &r.token, &r.ukey, &r.umode, &r.uwindow,
		&r.held, &r.extends, &r.counts, &r.failures, &r.meta, &r.progress, &r.apart,
	}, more...)
	return r.scanRow(rows, fields...)
}

// scanRow reads a row of the job table, whose ID goes to idBytes first.
func (r *record) scanRow(rows *sql.Rows, fields ...any) error {
	err := rows.Scan(fields...)
	if err == nil && copy(r.id[:], r.idBytes) < len(r.id) {
		err = errors.New("the ID is short")
	}
	r.idBytes = nil
	if err != nil && rows.Err() == nil { // else the rows are gone
		err = fmt.Errorf("%w: %w", errDamaged, err)
	}
	return err
}

// place sets the columns that order the job in its state.
func (r *record) place(state pawl.State, at int64) {
	r.state, r.rank, r.at = state, 0, at
	if state == pawl.Ready {
		r.rank = int64(r.priority)
	}
}

// wait makes the job Ready or Scheduled, as its RunAt says.
func (r *record) wait(now int64) {
	r.fence = 0
	if r.runAt > now {
		r.place(pawl.Scheduled, r.runAt)
	} else {
		r.place(pawl.Ready, r.runAt)
	}
}

// finish makes the job final. It reports whether the record is to be kept.
func (r *record) finish(state pawl.State, reason pawl.Reason, now int64) (keep bool) {
	r.place(state, now)
	r.fence, r.reason, r.purgeAt = 0, string(reason), 0
	window := int64(0)
	if r.windowed() {
		window = r.uwindow
	} else {
		r.held = false
	}
	if state == pawl.Buried {
		return true
	}
	r.purgeAt = now + max(r.retention, window)
	return r.retention >= 0 || r.windowed()
}

func (r *record) windowed() bool { return r.ukey != "" && r.umode == pawl.UniqueUntilWindow }

// holdsAt reports whether a record that is marked as holder of its key still
// is: the mark of a window stays when it is over.
func (r *record) holdsAt(now int64) bool {
	return !r.state.Final() || r.at+r.uwindow > now
}

func (r *record) count(add func(*pawl.Counts)) {
	c := r.loadCounts()
	add(&c)
	c.Extends = 0 // has a column of its own
	r.counts = toJSON(countsJSON(c))
}

func (r *record) loadCounts() pawl.Counts {
	var c countsJSON
	fromJSON(r.counts, &c)
	c.Extends = r.extends
	return pawl.Counts(c)
}

func (r *record) fail(now int64, text, stack string) {
	r.failures++
	r.newFailure = &pawl.Failure{At: toTime(now), Attempt: r.attempt, WorkerID: r.worker, Error: text, Stack: stack}
}

// ref is the current claim of a running job.
func (r *record) ref() pawl.Ref {
	ref := pawl.Ref{Queue: r.queue, ID: r.id, Fence: r.fence}
	if r.fence != 0 {
		ref.Locator = locator(r.seq, r.retention < 0)
	}
	return ref
}

// job returns the record as callers see it, without payload, result and
// failures.
func (r *record) job() *pawl.Job {
	j := &pawl.Job{
		Ref: r.ref(), Kind: r.kind, Priority: r.priority, State: r.state, Reason: pawl.Reason(r.reason),
		RunAt: toTime(r.runAt), StartBefore: toTime(r.startBefore), CreatedAt: toTime(r.createdAt),
		StartedAt: toTime(r.startedAt), ClaimedAt: toTime(r.claimedAt),
		Lease: toDuration(r.lease), Timeout: toDuration(r.timeout), Retention: toRetention(r.retention),
		MaxAttempts: r.maxAttempts, MaxRescues: r.maxRescues,
		UniqueKey: r.ukey, UniqueMode: r.umode, UniqueWindow: toDuration(r.uwindow),
		Attempt: r.attempt, Rescued: r.rescued, Counts: r.loadCounts(), WorkerID: r.worker,
	}
	switch {
	case r.state == pawl.Running:
		j.LeaseUntil = toTime(r.at)
	case r.state.Final():
		j.FinishedAt = toTime(r.at)
	}
	fromJSON(r.meta, &j.Meta)
	if r.progress.Valid {
		j.Progress = new(pawl.Progress)
		fromJSON(r.progress, j.Progress)
	}
	return j
}

// countsJSON is how Counts are stored: most are zero.
type countsJSON struct {
	Retries  int `json:"retries,omitempty"`
	Rescues  int `json:"rescues,omitempty"`
	Releases int `json:"releases,omitempty"`
	Snoozes  int `json:"snoozes,omitempty"`
	Skips    int `json:"skips,omitempty"`
	Extends  int `json:"extends,omitempty"`
	Kicks    int `json:"kicks,omitempty"`
}

func toJSON(v any) sql.NullString {
	text, err := json.Marshal(v)
	return sql.NullString{String: string(text), Valid: err == nil}
}

// fromJSON reads what toJSON has written. What a foreign hand has written and
// can't be read counts as nothing, so that it never stops a claim.
func fromJSON(text sql.NullString, v any) {
	if text.Valid {
		_ = json.Unmarshal([]byte(text.String), v)
	}
}

func metaJSON(meta map[string]string) sql.NullString {
	if len(meta) == 0 {
		return sql.NullString{}
	}
	return toJSON(meta)
}

// micros is t in microseconds, rounded up; 0 for the zero time.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	us := t.UnixMicro()
	if t.Nanosecond()%1000 != 0 {
		us++
	}
	return us
}

func toTime(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// microseconds is d rounded up; the special values stay as they are.
func microseconds(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

func toDuration(us int64) time.Duration {
	if us < 0 {
		return pawl.NoTimeout
	}
	return time.Duration(us) * time.Microsecond
}

// toRetention is toDuration for a column whose special value is DeleteNow.
func toRetention(us int64) time.Duration {
	if us < 0 {
		return pawl.DeleteNow
	}
	return toDuration(us)
}

// one loads the record that a statement finds, nil if there is none.
func (b *batch) one(s *statement, args ...any) (*record, error) {
	found, err := b.records(s, args...)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

func (b *batch) records(s *statement, args ...any) ([]*record, error) {
	return records(b.ctx, b.run, s, args...)
}

// records loads the records that a query gives.
func records(ctx context.Context, run reader, s *statement, args ...any) ([]*record, error) {
	rows, err := run.query(ctx, s, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []*record
	for rows.Next() {
		r := new(record)
		if err := r.scan(rows); err != nil {
			return nil, err
		}
		found = append(found, r)
	}
	return found, rows.Err()
}

// find loads a job by its ID, with its row number as a hint.
func (b *batch) find(id pawl.ID, hint int64) (*record, error) {
	if hint > 0 {
		if r, err := b.one(b.q.bySeq, hint, id[:]); r != nil || err != nil {
			return r, err
		}
	}
	return b.one(b.q.byID, id[:])
}

// save writes all of r that can change.
func (b *batch) save(r *record) error {
	if f := r.newFailure; f != nil {
		if err := b.saveFailure(r, f); err != nil {
			return err
		}
	}
	_, err := b.run.exec(b.ctx, b.q.save, r.seq, r.kind, int(r.state), r.rank, r.at, r.runAt, r.priority, r.reason,
		r.fence, r.lastFence, int(r.lastVerb), r.attempt, r.rescued, r.maxAttempts,
		r.maxRescues, r.lease, r.timeout, r.retention, r.startBefore, r.purgeAt,
		int(r.umode), r.uwindow, r.held, r.counts, r.failures, r.meta, r.progress, r.apart)
	return err
}

func (b *batch) saveFailure(r *record, f *pawl.Failure) error {
	r.newFailure = nil
	_, err := b.run.exec(b.ctx, b.q.addFailure, r.seq, r.failures, micros(f.At), f.Attempt, f.WorkerID, f.Error, f.Stack)
	if err == nil && r.failures > pawl.MaxFailures {
		_, err = b.run.exec(b.ctx, b.q.trimFailures, r.seq, r.failures-pawl.MaxFailures)
	}
	return err
}

func (b *batch) remove(seq int64) error {
	_, err := b.run.exec(b.ctx, b.q.remove, seq)
	return err
}

// end saves a job that finish has made final, or removes it.
func (b *batch) end(r *record, keep bool) error {
	if keep {
		return b.save(r)
	}
	return b.remove(r.seq)
}

// setPayload stores a new payload of r beside a save.
func (b *batch) setPayload(r *record, payload []byte) error {
	return b.setBlob(r, payloadApart, payload, b.q.setPayload, b.q.savePayload, b.q.dropPayload)
}

func (b *batch) setResult(r *record, result []byte) error {
	return b.setBlob(r, resultApart, result, b.q.setResult, b.q.saveResult, b.q.dropResult)
}

func (b *batch) setBlob(r *record, bit int, data []byte, inline, apart, drop *statement) error {
	if len(data) > apartSize {
		if _, err := b.run.exec(b.ctx, inline, r.seq, nil); err != nil {
			return err
		}
		r.apart |= bit
		_, err := b.run.exec(b.ctx, apart, r.seq, data)
		return err
	}
	if r.apart&bit != 0 {
		r.apart &^= bit
		if _, err := b.run.exec(b.ctx, drop, r.seq); err != nil {
			return err
		}
	}
	_, err := b.run.exec(b.ctx, inline, r.seq, data)
	return err
}

// fetch reads the payload or result that has a row of its own.
func fetch(ctx context.Context, run reader, s *statement, seq int64) ([]byte, error) {
	all, err := column[[]byte](ctx, run, s, seq)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

// failuresOf reads the history of a job.
func failuresOf(ctx context.Context, run reader, s *statement, seq int64) ([]pawl.Failure, error) {
	rows, err := run.query(ctx, s, seq)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []pawl.Failure
	for rows.Next() {
		var (
			f  pawl.Failure
			at int64
		)
		if err := rows.Scan(&at, &f.Attempt, &f.WorkerID, &f.Error, &f.Stack); err != nil {
			return nil, err
		}
		f.At = toTime(at)
		all = append(all, f)
	}
	return all, rows.Err()
}
