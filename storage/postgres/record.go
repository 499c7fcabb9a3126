package postgres

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pawlq/pawl"
)

// record is a row of the job table, with what pawl_lease has on it.
type record struct {
	seq                             int64
	id                              pawl.ID
	queue, kind                     string
	state                           pawl.State
	priority                        int
	reason                          string
	runAt, startBefore              int64
	createdAt, startedAt, claimedAt int64
	finishedAt, leaseUntil, purgeAt int64
	lease, timeout, retention       int64
	fence                           int64
	attempt, rescued                int
	maxAttempts, maxRescues         int
	ukey                            string
	umode                           pawl.UniqueMode
	uwindow                         int64
	held                            bool
	counts                          pawl.Counts
	worker                          string
	failures                        []string
	meta                            string
	payload, result                 []byte
	size                            int // bytes of payload and result, when they are not read

	extendedFence, extendedUntil int64 // of the claim that was extended last
	progress                     string
	progressAt                   int64

	tid   pgtype.TID // of a job that is being claimed: where its row is
	fresh bool       // it is in the fresh lane, by its row
	xid   string     // of the transaction that enqueued it; only of a fresh one that is listed

	failure    *pawl.Failure // to be stored by save
	newPayload bool          // payload is to be stored by save
	newMeta    bool
	noResult   bool // result is to be cleared by save
}

// recordColumns are the columns of a record of the row j, in the order of
// record.scan.
const recordColumns = `j.seq, j.id, j.queue, j.kind, j.state, j.priority, coalesce(j.reason, ''),
	j.run_at, coalesce(j.start_before, 0), j.created_at, coalesce(j.started_at, 0), coalesce(j.claimed_at, 0),
	coalesce(j.finished_at, 0), coalesce(j.lease_until, 0), coalesce(j.purge_at, 0),
	coalesce(j.lease, 0), coalesce(j.timeout, 0), j.retention, coalesce(j.fence, 0),
	j.attempt, j.rescued, j.max_attempts, j.max_rescues,
	coalesce(j.ukey, ''), coalesce(j.umode, 0), coalesce(j.uwindow, 0), coalesce(j.held, false),
	coalesce(j.retries, 0), coalesce(j.rescues, 0), coalesce(j.releases, 0), coalesce(j.snoozes, 0),
	coalesce(j.skips, 0), coalesce(j.kicks, 0),
	coalesce(j.worker, ''), j.failures::text[], coalesce(j.meta::text, '')`

// leaseColumns are those that a record has from the row l of pawl_lease.
const leaseColumns = `coalesce(l.extends, 0), coalesce(l.fence, 0), coalesce(l.until, 0), coalesce(l.progress::text, ''),
	coalesce(l.progress_at, 0)`

// scan reads a row of recordColumns, and what follows them into more.
func (r *record) scan(rows scanner, more ...any) error {
	var state, umode int16
	fields := []any{
		&r.seq, (*[16]byte)(&r.id), &r.queue, &r.kind, &state, &r.priority, &r.reason,
		&r.runAt, &r.startBefore, &r.createdAt, &r.startedAt, &r.claimedAt, &r.finishedAt, &r.leaseUntil, &r.purgeAt,
		&r.lease, &r.timeout, &r.retention, &r.fence, &r.attempt, &r.rescued, &r.maxAttempts, &r.maxRescues,
		&r.ukey, &umode, &r.uwindow, &r.held,
		&r.counts.Retries, &r.counts.Rescues, &r.counts.Releases, &r.counts.Snoozes, &r.counts.Skips, &r.counts.Kicks,
		&r.worker, &r.failures, &r.meta,
	}
	err := rows.Scan(append(fields, more...)...)
	r.state, r.umode = pawl.State(state), pawl.UniqueMode(umode)
	return err
}

func (r *record) leaseFields() []any {
	return []any{&r.counts.Extends, &r.extendedFence, &r.extendedUntil, &r.progress, &r.progressAt}
}

// claimed is what a record in the fresh lane has from the row of its claim.
type claimed struct {
	fence     int64
	worker    string
	claimedAt int64
	lease     int64 // of a job that has none of its own
}

func (c *claimed) fields() []any { return []any{&c.fence, &c.worker, &c.claimedAt, &c.lease} }

// derive makes a row in the fresh lane into what it stands for.
func (r *record) derive(c *claimed) {
	if r.state != 0 {
		return
	}
	r.fresh = true
	r.state = pawl.Ready
	if c.fence == 0 {
		return
	}
	r.state, r.attempt, r.fence, r.worker = pawl.Running, 1, c.fence, c.worker
	r.startedAt, r.claimedAt, r.leaseUntil = c.claimedAt, c.claimedAt, c.claimedAt+cmp.Or(r.lease, c.lease)
}

// scanFresh reads a row of readFresh or foundFresh, which c has claimed.
func (r *record) scanFresh(row scanner, c *claimed) error {
	err := row.Scan(&r.tid, &r.seq, (*[16]byte)(&r.id), &r.kind, &r.runAt, &r.createdAt, &r.lease, &r.timeout, &r.retention,
		&r.maxAttempts, &r.maxRescues, &r.meta, &r.payload)
	r.derive(c)
	return err
}

// until is when the lease of a running job ends.
func (r *record) until() int64 {
	if r.extendedFence == r.fence && r.extendedUntil > 0 {
		return r.extendedUntil
	}
	return r.leaseUntil
}

// ref is the current claim of a running job.
func (r *record) ref() pawl.Ref {
	ref := pawl.Ref{Queue: r.queue, ID: r.id}
	if r.state == pawl.Running {
		ref.Fence = r.fence
	}
	return ref
}

// wait makes the job Ready or Scheduled, as its RunAt says.
func (r *record) wait(now int64) {
	r.state = pawl.Ready
	if r.runAt > now {
		r.state = pawl.Scheduled
	}
	r.finishedAt, r.purgeAt = 0, 0
}

// finish makes the job final. It reports whether the record is to be kept.
func (r *record) finish(state pawl.State, reason pawl.Reason, now int64) (keep bool) {
	r.state, r.reason, r.finishedAt, r.purgeAt = state, string(reason), now, 0
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

// job returns the record as callers see it.
func (r *record) job() *pawl.Job {
	j := &pawl.Job{
		Ref: r.ref(), Kind: r.kind, Priority: r.priority, State: r.state, Reason: pawl.Reason(r.reason),
		Payload: r.payload, Result: r.result,
		RunAt: toTime(r.runAt), StartBefore: toTime(r.startBefore), CreatedAt: toTime(r.createdAt),
		StartedAt: toTime(r.startedAt), ClaimedAt: toTime(r.claimedAt),
		Lease: toDuration(r.lease), Timeout: toDuration(r.timeout), Retention: toDuration(r.retention),
		MaxAttempts: r.maxAttempts, MaxRescues: r.maxRescues,
		UniqueKey: r.ukey, UniqueMode: r.umode, UniqueWindow: toDuration(r.uwindow),
		Attempt: r.attempt, Rescued: r.rescued, Counts: r.counts, WorkerID: r.worker,
	}
	switch {
	case r.state == pawl.Running:
		j.LeaseUntil = toTime(r.until())
	case r.state.Final():
		j.FinishedAt = toTime(r.finishedAt)
	}
	for _, text := range r.failures {
		j.Failures = append(j.Failures, parseFailure(text))
	}
	parse(r.meta, &j.Meta)
	if r.progress != "" && r.extendedFence == r.fence {
		p := new(progressJSON)
		parse(r.progress, p)
		j.Progress = p.progress()
		j.Progress.At = toTime(r.progressAt)
	}
	return j
}

// failureJSON is how a failure is stored.
type failureJSON struct {
	At      int64  `json:"at"`
	Attempt int    `json:"attempt"`
	Worker  string `json:"worker"`
	Error   string `json:"error"`
	Stack   string `json:"stack,omitempty"`
}

func parseFailure(text string) pawl.Failure {
	var f failureJSON
	parse(text, &f)
	return pawl.Failure{At: toTime(f.At), Attempt: f.Attempt, WorkerID: f.Worker, Error: f.Error, Stack: f.Stack}
}

// progressJSON is how a progress is stored. Its time has a column of its own.
type progressJSON struct {
	Percent  float64          `json:"percent"`
	Stage    string           `json:"stage,omitempty"`
	Message  string           `json:"message,omitempty"`
	Counters map[string]int64 `json:"counters,omitempty"`
}

func (p *progressJSON) progress() *pawl.Progress {
	return &pawl.Progress{Percent: p.Percent, Stage: p.Stage, Message: p.Message, Counters: p.Counters}
}

func toJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return "" // strings and finite numbers always encode
	}
	return string(text)
}

// parse reads what toJSON has written. What a foreign hand has written and
// can't be read counts as nothing, so that it never stops a claim.
func parse(text string, v any) {
	if text != "" {
		_ = json.Unmarshal([]byte(text), v)
	}
}

func metaJSON(meta map[string]string) string {
	if len(meta) == 0 {
		return ""
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
		return int64(d)
	}
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

func toDuration(us int64) time.Duration {
	if us < 0 {
		return time.Duration(us)
	}
	return time.Duration(us) * time.Microsecond
}
