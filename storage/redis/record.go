package redis

import (
	"encoding/binary"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

// Fields of a record, in the order of lua/lib.lua. A body has a head of the first
// of them, then an array of kind, timeout and metadata, then the payload.
const (
	fState = iota
	fPriority
	fRunAt
	fSeq
	fCreated
	fRetention
	fMaxAttempts
	fMaxRescues
	fLease
	fAttempt
	fFence
	fStarted
	fClaimed
	fUntil
	fWorker
	fToken
	fLastFence
	fLastVerb
	fFinished
	fRescued
	fReason
	fBefore
	fKey
	fMode
	fWindow
	fHeld
	fRetries
	fRescues
	fReleases
	fSnoozes
	fSkips
	fExtends
	fKicks
	fFailed
	fResult
	fProgress
	numFields
)

// Fields of a short record, in the order of lua/lib.lua. It is that of a job that was claimed
// once, and maybe acked.
const (
	sState = iota
	sClaimed
	sWorker
	sAt
	sFence
	shortFields
)

// reasons are the reasons by number, as lua/lib.lua has them.
var reasons = [...]pawl.Reason{
	"", pawl.ReasonRetry, pawl.ReasonRescue, pawl.ReasonRelease, pawl.ReasonSnooze, pawl.ReasonSkip,
	pawl.ReasonAttempts, pawl.ReasonRescues, pawl.ReasonBury, pawl.ReasonCancel, pawl.ReasonExpired, pawl.ReasonDropped,
}

// stored is what a script returns of one job.
type stored struct {
	state, body, failures, progress, result string
}

// job puts a job together. With an error it is what could be read of it: all but kind,
// payload and what is beside them, if there is a record.
func (p *stored) job(t tag, id pawl.ID) (*pawl.Job, error) {
	queue, locator := t.split()
	j := &pawl.Job{Ref: pawl.Ref{Queue: queue, ID: id}}
	body := reader{data: []byte(p.body)}
	head := readFields(&body)
	if p.state != "" {
		head = readState(&reader{data: []byte(p.state)}, head)
	}
	fill(j, head)
	if j.State == pawl.Running {
		j.Locator = locator
	}
	if p.result != "" {
		j.Result = []byte(p.result)
	}
	j.Failures = parseFailures(p.failures)
	j.Progress = parseProgress(p.progress)
	readStatic(&body, j)
	if body.err != nil {
		j.Kind, j.Timeout, j.Meta = "", 0, nil
		return j, body.err
	}
	if len(body.data) > 0 {
		j.Payload = body.data
	}
	return j, nil
}

// readState reads a record. A short one says what a head does not.
func readState(r *reader, head [numFields]value) [numFields]value {
	n := r.array()
	if n != shortFields {
		return readValues(r, n)
	}
	s := readValues(r, n)
	head[fState], head[fAttempt].n, head[fWorker] = s[sState], 1, s[sWorker]
	head[fStarted], head[fClaimed] = s[sClaimed], s[sClaimed]
	if pawl.State(s[sState].n) == pawl.Running {
		head[fUntil], head[fFence] = s[sAt], s[sFence]
	} else {
		head[fFinished] = s[sAt]
	}
	return head
}

func readFields(r *reader) [numFields]value { return readValues(r, r.array()) }

func readValues(r *reader, n int) (f [numFields]value) {
	for i := 0; i < n && r.err == nil; i++ {
		v := r.value()
		if i < len(f) {
			f[i] = v
		}
	}
	return f
}

func fill(j *pawl.Job, f [numFields]value) {
	at := func(i int) time.Time { return toTime(f[i].n) }
	count := func(i int) int { return int(f[i].n) }
	j.State, j.Priority = pawl.State(f[fState].n), count(fPriority)
	if n := f[fReason].n; n > 0 && int(n) < len(reasons) {
		j.Reason = reasons[n]
	}
	j.RunAt, j.CreatedAt, j.StartBefore = at(fRunAt), at(fCreated), at(fBefore)
	j.StartedAt, j.ClaimedAt = at(fStarted), at(fClaimed)
	j.Retention, j.Lease = toDuration(f[fRetention].n), toDuration(f[fLease].n)
	j.MaxAttempts, j.MaxRescues = count(fMaxAttempts), count(fMaxRescues)
	j.Attempt, j.Rescued, j.WorkerID = count(fAttempt), count(fRescued), string(f[fWorker].s)
	j.UniqueKey, j.UniqueMode = string(f[fKey].s), pawl.UniqueMode(f[fMode].n)
	j.UniqueWindow = toDuration(f[fWindow].n)
	j.Counts = pawl.Counts{
		Retries: count(fRetries), Rescues: count(fRescues), Releases: count(fReleases), Snoozes: count(fSnoozes),
		Skips: count(fSkips), Extends: count(fExtends), Kicks: count(fKicks),
	}
	switch {
	case j.State == pawl.Running:
		j.Fence, j.LeaseUntil = f[fFence].n, at(fUntil)
	case j.State.Final():
		j.FinishedAt = at(fFinished)
	}
}

// appendStatic writes what of a body only this package reads.
func appendStatic(m *message, q *pawl.Request) {
	m.array(3)
	m.string(q.Kind)
	m.int(microseconds(q.Timeout))
	m.bytes(metaBytes(q.Meta))
}

func readStatic(r *reader, j *pawl.Job) {
	if r.array() != 3 {
		r.err = errDamaged
		return
	}
	j.Kind = string(r.value().s)
	j.Timeout = toDuration(r.value().n)
	meta := reader{data: r.value().s}
	if len(meta.data) == 0 {
		return
	}
	n := meta.array() / 2
	j.Meta = make(map[string]string, min(n, len(meta.data)))
	for i := 0; i < n && meta.err == nil; i++ {
		k := string(meta.value().s)
		j.Meta[k] = string(meta.value().s)
	}
	if meta.err != nil {
		r.err = meta.err
	}
}

// metaBytes is metadata as an array of keys and values in turn.
func metaBytes(meta map[string]string) []byte {
	if len(meta) == 0 {
		return nil
	}
	var m message
	m.array(2 * len(meta))
	for k, v := range meta {
		m.string(k)
		m.string(v)
	}
	return m
}

func parseFailures(text string) []pawl.Failure {
	if text == "" {
		return nil
	}
	r := reader{data: []byte(text)}
	var all []pawl.Failure
	for range r.array() {
		if r.array() != 5 {
			break
		}
		at, attempt, worker := r.value(), r.value(), r.value()
		message, stack := r.value(), r.value()
		if r.err != nil {
			break
		}
		all = append(all, pawl.Failure{
			At: toTime(at.n), Attempt: int(attempt.n), WorkerID: string(worker.s), Error: string(message.s), Stack: string(stack.s),
		})
	}
	return all
}

// progressJSON is how a progress is stored, after its time in eight bytes.
type progressJSON struct {
	Percent  float64          `json:"percent"`
	Stage    string           `json:"stage,omitempty"`
	Message  string           `json:"message,omitempty"`
	Counters map[string]int64 `json:"counters,omitempty"`
}

func progressBytes(p *pawl.Progress) []byte {
	if p == nil {
		return nil
	}
	text, err := json.Marshal(progressJSON{p.Percent, p.Stage, p.Message, p.Counters})
	if err != nil {
		return nil // strings and finite numbers always encode
	}
	return text
}

// parseProgress reads a progress. What a foreign hand has written and can't be
// read counts as none, so that it never stops a claim.
func parseProgress(text string) *pawl.Progress {
	if len(text) < 8 {
		return nil
	}
	var p progressJSON
	if json.Unmarshal([]byte(text[8:]), &p) != nil {
		return nil
	}
	at := int64(binary.BigEndian.Uint64([]byte(text[:8])))
	return &pawl.Progress{Percent: p.Percent, Stage: p.Stage, Message: p.Message, Counters: p.Counters, At: toTime(at)}
}

// parseID takes the sixteen bytes of an ID.
func parseID(v any) (pawl.ID, error) {
	id, err := uuid.FromBytes([]byte(str(v)))
	if err != nil {
		return id, errReply
	}
	return id, nil
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
