package mysql

import (
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/pawlq/pawl"
	clean "github.com/pawlq/pawl/internal/text"
)

// apartSize is the size from which payloads and results get a row of their own.
const apartSize = 1 << 10

// Bits of record.apart, and the parts of pawl_blob.
const (
	payloadPart = 1
	resultPart  = 2
)

// record is a row of the job table without payload and result, except those
// that are to be stored.
type record struct {
	seq     int64
	id      pawl.ID
	queue   string
	kind    string
	state   pawl.State
	urgency int64
	// moment orders the jobs of a state, see the schema.
	moment               int64
	retrying             bool
	wakeAt               int64 // 0: never
	runAt                int64
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
	startBefore          int64
	worker               []byte
	token, mark          int64
	ukey                 []byte
	umode                pawl.UniqueMode
	uwindow              int64
	held                 bool
	extends              int
	apart                int
	counts               []byte
	failures             []byte
	meta, progress       []byte

	payload, result []byte
	// What save has to do beside the row.
	setPayload, setResult bool
	wasApart              int // parts that were apart before they were set
	dropKey               bool
	dirty, gone           bool
	stays                 bool // it was to go, but an open transaction has its ID
}

const recordColumns = `seq, id, queue, kind, state, urgency, moment, retrying, wake_at, run_at, priority, reason, fence,
	last_fence, last_verb, attempt, rescued, max_attempts, max_rescues, lease, timeout, retention, created_at,
	started_at, claimed_at, start_before, worker, token, mark, ukey, umode, uwindow, held, extends, apart, counts,
	failures, meta, progress`

// scan reads a row of recordColumns, and what follows them into more.
func (r *record) scan(row scanner, more ...any) error {
	var (
		id   sql.RawBytes
		wake sql.NullInt64
	)
	fields := [64]any{
		&r.seq, &id, &r.queue, &r.kind, &r.state, &r.urgency, &r.moment, &r.retrying, &wake, &r.runAt, &r.priority,
		&r.reason, &r.fence, &r.lastFence, &r.lastVerb, &r.attempt, &r.rescued, &r.maxAttempts, &r.maxRescues,
		&r.lease, &r.timeout, &r.retention, &r.createdAt, &r.startedAt, &r.claimedAt, &r.startBefore, &r.worker,
		&r.token, &r.mark, &r.ukey, &r.umode, &r.uwindow, &r.held, &r.extends, &r.apart, &r.counts, &r.failures,
		&r.meta, &r.progress,
	}
	n := copy(fields[recordFields:], more)
	if err := row.Scan(fields[:recordFields+n]...); err != nil {
		return err
	}
	if copy(r.id[:], id) < len(r.id) {
		return errors.New("the ID of a job is short")
	}
	r.wakeAt = wake.Int64
	if r.claimedAt == 0 {
		r.worker = nil // it is claimRoom
	}
	return nil
}

const recordFields = 39

// place sets the columns that order the job in its state, and when a sweep has
// to do with it.
func (r *record) place(state pawl.State, moment int64) {
	r.state, r.urgency, r.moment, r.retrying, r.wakeAt = state, 0, moment, false, 0
	switch state {
	case pawl.Ready:
		r.urgency, r.wakeAt = int64(r.priority), r.startBefore
	case pawl.Scheduled:
		r.retrying = r.reason == string(pawl.ReasonRetry) || r.reason == string(pawl.ReasonRescue)
		r.wakeAt = sooner(moment, r.startBefore)
	}
}

// wait makes the job Ready or Scheduled, as its RunAt says.
func (r *record) wait(now int64) {
	r.dirty = true
	if r.runAt > now {
		r.place(pawl.Scheduled, r.runAt)
	} else {
		r.place(pawl.Ready, r.runAt)
	}
}

// finish makes the job final, or marks it as gone.
func (r *record) finish(state pawl.State, reason pawl.Reason, now int64) {
	r.place(state, now)
	r.reason, r.dirty = string(reason), true
	window := int64(0)
	if r.windowed() {
		window = r.uwindow
	} else {
		r.giveUpKey()
	}
	if state == pawl.Buried {
		return
	}
	r.wakeAt = now + max(r.retention, window)
	if r.retention < 0 && !r.windowed() {
		r.gone = true
	}
}

func (r *record) giveUpKey() {
	if r.held {
		r.held, r.dropKey, r.dirty = false, true, true
	}
}

// remove marks the job as gone.
func (r *record) remove() {
	r.giveUpKey()
	r.gone, r.dirty = true, true
}

func (r *record) windowed() bool { return len(r.ukey) > 0 && r.umode == pawl.UniqueUntilWindow }

// holdsAt reports whether a record that is marked as holder of its key still
// is: the mark of a window stays when it is over.
func (r *record) holdsAt(now int64) bool {
	return r.held && (!r.state.Final() || r.moment+r.uwindow > now)
}

// key is the row of pawl_key that a job holds.
func (r *record) key() string { return keyOf(r.queue, r.ukey) }

func keyOf(queue string, ukey []byte) string { return queue + "\x00" + string(ukey) }

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
	var all []failureJSON
	fromJSON(r.failures, &all)
	all = append(all, failureJSON{
		At: now, Attempt: r.attempt, Worker: string(r.worker),
		Error: clean.Clean(text, pawl.MaxErrorText), Stack: clean.Clean(stack, pawl.MaxErrorText),
	})
	if extra := len(all) - pawl.MaxFailures; extra > 0 {
		all = slices.Delete(all, 0, extra)
	}
	r.failures = toJSON(all)
}

// current reports whether fence names the claim that the job runs under.
func (r *record) current(fence int64) bool { return r.state == pawl.Running && r.fence == fence }

// ref is the current claim of a running job.
func (r *record) ref() pawl.Ref {
	ref := pawl.Ref{Queue: r.queue, ID: r.id}
	if r.state == pawl.Running {
		ref.Fence, ref.Locator = r.fence, locator(r)
	}
	return ref
}

// job returns the record as callers see it, without payload and result.
func (r *record) job() *pawl.Job {
	j := &pawl.Job{
		Ref: r.ref(), Kind: r.kind, Priority: r.priority, State: r.state, Reason: pawl.Reason(r.reason),
		RunAt: toTime(r.runAt), StartBefore: toTime(r.startBefore), CreatedAt: toTime(r.createdAt),
		StartedAt: toTime(r.startedAt), ClaimedAt: toTime(r.claimedAt),
		Lease: toDuration(r.lease), Timeout: toDuration(r.timeout), Retention: toRetention(r.retention),
		MaxAttempts: r.maxAttempts, MaxRescues: r.maxRescues,
		UniqueKey: string(r.ukey), UniqueMode: r.umode, UniqueWindow: toDuration(r.uwindow),
		Attempt: r.attempt, Rescued: r.rescued, Counts: r.loadCounts(), WorkerID: string(r.worker),
		Failures: r.loadFailures(),
	}
	switch {
	case r.state == pawl.Running:
		j.LeaseUntil = toTime(r.wakeAt)
	case r.state.Final():
		j.FinishedAt = toTime(r.moment)
	}
	fromJSON(r.meta, &j.Meta)
	if len(r.progress) > 0 {
		j.Progress = new(pawl.Progress)
		fromJSON(r.progress, j.Progress)
	}
	return j
}

func (r *record) loadFailures() []pawl.Failure {
	if len(r.failures) == 0 {
		return nil
	}
	var stored []failureJSON
	fromJSON(r.failures, &stored)
	all := make([]pawl.Failure, len(stored))
	for i, f := range stored {
		all[i] = pawl.Failure{At: toTime(f.At), Attempt: f.Attempt, WorkerID: f.Worker, Error: f.Error, Stack: f.Stack}
	}
	return all
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

// failureJSON is how a Failure is stored.
type failureJSON struct {
	At      int64  `json:"at"`
	Attempt int    `json:"n"`
	Worker  string `json:"by,omitempty"`
	Error   string `json:"error,omitempty"`
	Stack   string `json:"stack,omitempty"`
}

func toJSON(v any) []byte {
	text, _ := json.Marshal(v) // strings, numbers and times that came from the server always encode
	return text
}

// fromJSON reads what toJSON has written. What a foreign hand has written and
// can't be read counts as nothing, so that it never stops a claim.
func fromJSON(text []byte, v any) {
	if len(text) > 0 {
		_ = json.Unmarshal(text, v)
	}
}

func metaJSON(meta map[string]string) []byte {
	if len(meta) == 0 {
		return nil
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

// microseconds is d rounded up; the special values become -1.
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

// sooner is the earlier of two times, of which 0 is none.
func sooner(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
