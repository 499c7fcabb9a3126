package memory

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pawlq/pawl"
)

// A record is one job as the store keeps it. It is small because there may be
// millions: times are microseconds since 1970, what jobs have in common is
// shared, and what few jobs have is apart.
//
// What a record points to (payload, terms, extra and all that extra points
// to) is never changed in place, only replaced. So it can be copied out after
// the lock was released, and an Enqueue can be taken back.
type record struct {
	id      pawl.ID
	queue   *queue
	terms   *terms
	payload []byte
	extra   *extra // nil: all zero
	claim   *claim // the last one; nil if there was none

	seq  int64 // order of insertion
	slot slot

	fence     int64 // of the last claim; current while Running
	lastFence int64 // fence and
	lastVerb  pawl.Verb
	state     pawl.State
	reason    reason
	keyGone   bool // UniqueUntilClaimed: the key was given up for good
	priority  int16

	attempt, rescued int32

	createdAt, runAt     int64
	startedAt, claimedAt int64 // set if there was a claim
	leaseUntil           int64 // set if Running
	finishedAt           int64 // set if final
}

// terms are the settings that most jobs of a queue share.
type terms struct {
	kind                    string
	lease, timeout          time.Duration
	retention               time.Duration
	maxAttempts, maxRescues int
}

// extra is what most jobs do not have.
type extra struct {
	meta         map[string]string
	startBefore  int64 // 0: never
	uniqueKey    string
	uniqueMode   pawl.UniqueMode
	uniqueWindow time.Duration
	counts       pawl.Counts
	failures     []pawl.Failure
	result       []byte
	progress     *pawl.Progress
}

// A claim is one call of Claim, as its jobs remember it.
type claim struct {
	token  int64
	worker string
	first  int64 // fence of its first job
	open   int   // jobs that still run under it
}

// contents is what of a record is copied without the lock.
type contents struct {
	payload []byte
	extra   *extra
}

func contentsOf(q *pawl.Request) contents {
	c := contents{payload: bytes.Clone(q.Payload)}
	if q.UniqueKey != "" || len(q.Meta) > 0 || !q.StartBefore.IsZero() {
		c.extra = &extra{
			meta:         maps.Clone(q.Meta),
			startBefore:  optionalMicros(q.StartBefore),
			uniqueKey:    strings.Clone(q.UniqueKey),
			uniqueMode:   q.UniqueMode,
			uniqueWindow: q.UniqueWindow,
		}
	}
	return c
}

// edit changes the rarely used part of r, by way of a copy.
func (r *record) edit(f func(*extra)) {
	e := r.rare()
	f(&e)
	r.extra = &e
}

// rare returns the rarely used part of r.
func (r *record) rare() extra {
	if r.extra == nil {
		return extra{}
	}
	return *r.extra
}

// count changes the counts of r.
func (r *record) count(f func(*pawl.Counts)) { r.edit(func(e *extra) { f(&e.counts) }) }

// startBefore returns when r must have been claimed, 0 if it need not.
func (r *record) startBefore() int64 {
	if r.extra == nil {
		return 0
	}
	return r.extra.startBefore
}

// fail adds a failure to the history of r.
func (r *record) fail(now int64, text, stack string) {
	f := pawl.Failure{
		At:       fromMicros(now),
		Attempt:  int(r.attempt),
		WorkerID: r.worker(),
		Error:    text,
		Stack:    stack,
	}
	r.edit(func(e *extra) {
		keep := e.failures[max(0, len(e.failures)-pawl.MaxFailures+1):]
		e.failures = append(slices.Clip(keep), f)
	})
}

func (r *record) worker() string {
	if r.claim == nil {
		return ""
	}
	return r.claim.worker
}

// ref names the current claim of r.
func (r *record) ref() pawl.Ref {
	return pawl.Ref{Queue: r.queue.name, ID: r.id, Fence: r.fence}
}

// current reports whether ref is the current claim of r.
func (r *record) current(ref *pawl.Ref) bool {
	return r.state == pawl.Running && r.fence == ref.Fence
}

// place is where r stands among the records of its queue and state.
func (r *record) place() key {
	switch r.state {
	case pawl.Ready:
		return key{int64(r.priority), r.runAt, r.seq}
	case pawl.Scheduled:
		return key{0, r.runAt, r.seq}
	case pawl.Running:
		return key{0, r.fence, 0}
	default:
		return key{0, r.finishedAt, r.seq}
	}
}

// windowEnd is until when a unique window keeps the key and record of r, which
// is final; 0 if it has none.
func (r *record) windowEnd() int64 {
	if r.extra == nil || r.extra.uniqueKey == "" || r.extra.uniqueMode != pawl.UniqueUntilWindow {
		return 0
	}
	return after(r.finishedAt, r.extra.uniqueWindow)
}

// purgeAt is when the record of r, which is Completed or Canceled, goes.
func (r *record) purgeAt() int64 {
	return max(after(r.finishedAt, max(r.terms.retention, 0)), r.windowEnd())
}

// holdsKey reports whether r holds a unique key at now, or would hold it if
// nobody else did.
func (r *record) holdsKey(now int64) bool {
	if r.extra == nil || r.extra.uniqueKey == "" {
		return false
	}
	switch r.extra.uniqueMode {
	case pawl.UniqueUntilClaimed:
		return !r.keyGone
	case pawl.UniqueUntilWindow:
		return !r.state.Final() || now < r.windowEnd()
	default:
		return !r.state.Final()
	}
}

// fill writes r into j. The two then share memory, until detach.
func (r *record) fill(j *pawl.Job) {
	j.Queue, j.ID = r.queue.name, r.id
	j.Kind, j.Payload, j.Priority = r.terms.kind, r.payload, int(r.priority)
	j.State, j.Reason = r.state, r.reason.public()
	j.RunAt, j.CreatedAt = fromMicros(r.runAt), fromMicros(r.createdAt)
	if r.claim != nil {
		j.StartedAt, j.ClaimedAt = fromMicros(r.startedAt), fromMicros(r.claimedAt)
		j.WorkerID = r.claim.worker
	}
	if r.state == pawl.Running {
		j.Fence, j.LeaseUntil = r.fence, fromMicros(r.leaseUntil)
	}
	if r.state.Final() {
		j.FinishedAt = fromMicros(r.finishedAt)
	}
	j.Lease, j.Timeout, j.Retention = r.terms.lease, r.terms.timeout, r.terms.retention
	j.MaxAttempts, j.MaxRescues = r.terms.maxAttempts, r.terms.maxRescues
	j.Attempt, j.Rescued = int(r.attempt), int(r.rescued)
	if r.extra != nil {
		r.extra.fill(j)
	}
}

func (e *extra) fill(j *pawl.Job) {
	j.Meta = e.meta
	if e.startBefore != 0 {
		j.StartBefore = fromMicros(e.startBefore)
	}
	j.UniqueKey, j.UniqueMode, j.UniqueWindow = e.uniqueKey, e.uniqueMode, e.uniqueWindow
	j.Counts, j.Failures, j.Result, j.Progress = e.counts, e.failures, e.result, e.progress
}

// detach gives jobs memory of their own. Their payloads come from one slab:
// the jobs do too, so whoever keeps one of them keeps all anyway.
func detach(jobs []pawl.Job) {
	size := 0
	for i := range jobs {
		size += len(jobs[i].Payload)
	}
	slab := make([]byte, 0, size)
	for i := range jobs {
		j := &jobs[i]
		if j.Payload != nil {
			n := len(slab)
			slab = append(slab, j.Payload...)
			j.Payload = slab[n:len(slab):len(slab)]
		}
		if j.Meta != nil {
			j.Meta = maps.Clone(j.Meta)
		}
		if j.Failures != nil {
			j.Failures = slices.Clone(j.Failures)
		}
		if j.Result != nil {
			j.Result = bytes.Clone(j.Result)
		}
		j.Progress = cloneProgress(j.Progress)
	}
}

func cloneProgress(p *pawl.Progress) *pawl.Progress {
	if p == nil {
		return nil
	}
	c := *p
	c.Counters = maps.Clone(p.Counters)
	return &c
}

// after returns the time d after t, rounded up. No d is long enough to
// overflow.
func after(t int64, d time.Duration) int64 {
	us := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		us++
	}
	return t + us
}

// micros returns t as the store keeps it, rounded up.
func micros(t time.Time) int64 {
	us := t.UnixMicro()
	if t.Nanosecond()%1000 != 0 {
		us++
	}
	return us
}

// optionalMicros is micros with 0 for the zero time.
func optionalMicros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return micros(t)
}

func fromMicros(us int64) time.Time { return time.UnixMicro(us).UTC() }
