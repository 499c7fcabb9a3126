package storagetest

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// A record is what a storage should hold of one job: what readers see, and
// beside it what only the storage knows. Its methods are the transition table.
type record struct {
	pawl.Job
	part      int   // of its queue
	taken     bool  // the unique key was taken and not given up; a window may have ended since
	seq       int   // order of insertion
	order     int64 // order of claims, if running
	token     int64 // of the claim, if running
	lastFence int64 // of the last accepted settle
	lastVerb  pawl.Verb
}

func newRecord(q *pawl.Request, seq int, now time.Time) *record {
	r := &record{seq: seq}
	r.ID, r.Queue, r.CreatedAt = q.ID, q.Queue, now
	r.rewrite(q, now)
	return r
}

// rewrite takes all fields of a request: those of a new job, or of one that is
// replaced.
func (r *record) rewrite(q *pawl.Request, now time.Time) {
	r.Kind, r.Priority = q.Kind, q.Priority
	r.Payload, r.Meta = slices.Clone(q.Payload), maps.Clone(q.Meta)
	r.StartBefore, r.Lease, r.Timeout, r.Retention = q.StartBefore.UTC(), q.Lease, q.Timeout, q.Retention
	r.MaxAttempts, r.MaxRescues = q.MaxAttempts, q.MaxRescues
	r.UniqueKey, r.UniqueMode, r.UniqueWindow = q.UniqueKey, q.UniqueMode, q.UniqueWindow
	r.taken = q.UniqueKey != ""
	r.Attempt, r.Rescued, r.Reason, r.Progress = 0, 0, "", nil
	r.waitUntil(dueTime(q.RunAt, q.Delay, now), now)
}

// dueTime is RunAt, rounded up to the microsecond, or now + delay.
func dueTime(runAt time.Time, delay time.Duration, now time.Time) time.Time {
	if runAt.IsZero() {
		runAt = now.Add(delay)
	}
	return roundUp(runAt.UTC())
}

func roundUp(t time.Time) time.Time {
	if down := t.Truncate(time.Microsecond); down.Before(t) {
		return down.Add(time.Microsecond)
	}
	return t
}

func (r *record) waitUntil(t, now time.Time) {
	r.State, r.RunAt = pawl.Scheduled, t
	if !t.After(now) {
		r.State, r.RunAt = pawl.Ready, now
	}
}

// holds reports whether the job has its unique key.
func (r *record) holds(now time.Time) bool {
	return r.taken && (!r.State.Final() || now.Before(r.FinishedAt.Add(r.window())))
}

// window is how long a final job keeps its key and so its record.
func (r *record) window() time.Duration {
	if r.UniqueKey == "" || r.UniqueMode != pawl.UniqueUntilWindow {
		return 0
	}
	return r.UniqueWindow
}

func (r *record) claim(spec pawl.ClaimSpec, fence int64, now time.Time) {
	lease := or(r.Lease, spec.Lease)
	r.State, r.Reason, r.Progress = pawl.Running, "", nil
	r.Fence, r.order, r.token, r.WorkerID = fence, fence, spec.Token, spec.Worker
	r.ClaimedAt, r.LeaseUntil = now, now.Add(lease)
	r.Attempt++
	if r.StartedAt.IsZero() {
		r.StartedAt = now
	}
	if r.UniqueMode == pawl.UniqueUntilClaimed {
		r.taken = false
	}
}

func (r *record) endFence() { r.Fence, r.LeaseUntil = 0, time.Time{} }

// settle reports whether the record stays.
func (r *record) settle(o pawl.Outcome, now time.Time) (stays bool) {
	r.lastFence, r.lastVerb = r.Fence, o.Verb
	switch o.Verb {
	case pawl.Ack:
		r.Result = slices.Clone(o.Result)
		return r.end(pawl.Completed, "", now)
	case pawl.Bury:
		r.fail(o.Error, o.Stack, now)
		return r.end(pawl.Buried, pawl.ReasonBury, now)
	case pawl.Nack:
		return r.nack(o, now)
	}
	r.release(o, now)
	return true
}

func (r *record) nack(o pawl.Outcome, now time.Time) (stays bool) {
	r.fail(o.Error, o.Stack, now)
	if r.MaxAttempts != pawl.Unlimited && r.Attempt >= r.MaxAttempts {
		return r.end(pawl.Buried, pawl.ReasonAttempts, now)
	}
	r.endFence()
	r.Counts.Retries++
	r.Reason = pawl.ReasonRetry
	r.waitUntil(roundUp(now.Add(o.Delay)), now)
	return true
}

// release is Release, SnoozeFor and Skip.
func (r *record) release(o pawl.Outcome, now time.Time) {
	r.endFence()
	r.Attempt--
	switch o.Verb {
	case pawl.Release:
		r.Reason = pawl.ReasonRelease
		r.Counts.Releases++
		if o.Priority != nil {
			r.Priority = *o.Priority
		}
	case pawl.SnoozeFor:
		r.Reason = pawl.ReasonSnooze
		r.Counts.Snoozes++
	case pawl.Skip:
		r.Reason = pawl.ReasonSkip
		r.Counts.Skips++
	}
	if o.Delay > 0 {
		r.waitUntil(roundUp(now.Add(o.Delay)), now)
		return
	}
	r.State = pawl.Ready
}

func (r *record) fail(text, stack string, now time.Time) {
	r.Failures = append(slices.Clone(r.Failures), pawl.Failure{
		At: now, Attempt: r.Attempt, WorkerID: r.WorkerID, Error: text, Stack: stack,
	})
	r.Failures = r.Failures[max(0, len(r.Failures)-pawl.MaxFailures):]
}

// end makes the job final and reports whether its record stays.
func (r *record) end(s pawl.State, why pawl.Reason, now time.Time) (stays bool) {
	r.endFence()
	r.State, r.Reason, r.FinishedAt = s, why, now
	if r.window() == 0 {
		r.taken = false
	}
	return s == pawl.Buried || r.Retention != pawl.DeleteNow || r.taken
}

func (r *record) extend(n pawl.Renewal, now time.Time) {
	r.LeaseUntil = now.Add(n.Lease)
	r.Counts.Extends++
	if n.Progress != nil {
		p := *n.Progress
		p.At, p.Counters = now, maps.Clone(p.Counters)
		r.Progress = &p
	}
}

func (r *record) rescue(now time.Time) {
	r.fail(leaseExpired, "", now)
	r.Attempt--
	if r.MaxRescues == pawl.NoRescues || r.Rescued >= r.MaxRescues {
		r.end(pawl.Buried, pawl.ReasonRescues, now)
		return
	}
	r.endFence()
	r.Rescued++
	r.Counts.Rescues++
	r.Reason = pawl.ReasonRescue
	r.waitUntil(roundUp(now.Add(pawl.RescueDelay(r.Rescued))), now)
}

// leaseExpired is the text of the failure that a rescue adds.
const leaseExpired = "lease expired"

func (r *record) kick(now time.Time) {
	r.State, r.RunAt, r.Reason = pawl.Ready, now, ""
	r.Attempt, r.Rescued = 0, 0
	r.Counts.Kicks++
	r.FinishedAt, r.StartBefore = time.Time{}, time.Time{}
	r.Result, r.Progress = nil, nil
	r.taken = r.UniqueKey != "" && r.UniqueMode != pawl.UniqueUntilClaimed
}

func (r *record) edit(e pawl.EditFields) {
	if e.Payload != nil {
		r.Payload = slices.Clone(e.Payload)
	}
	if e.Meta != nil {
		r.Meta = maps.Clone(e.Meta)
	}
	set(&r.Priority, e.Priority)
	set(&r.Timeout, e.Timeout)
	set(&r.Lease, e.Lease)
	set(&r.MaxAttempts, e.MaxAttempts)
	set(&r.StartBefore, e.StartBefore)
	set(&r.Retention, e.Retention)
}

func set[T any](field *T, v *T) {
	if v != nil {
		*field = *v
	}
}

// expired reports whether the job waits beyond its StartBefore.
func (r *record) expired(now time.Time) bool {
	return r.State.Waiting() && !r.StartBefore.IsZero() && !r.StartBefore.After(now)
}

func (r *record) due(now time.Time) bool {
	return r.State == pawl.Ready || r.State == pawl.Scheduled && !r.RunAt.After(now)
}

// abandoned reports whether the job's lease has ended under it.
func (r *record) abandoned(now time.Time) bool {
	return r.State == pawl.Running && !r.LeaseUntil.After(now)
}

// over reports whether the record's time is up.
func (r *record) over(buried time.Duration, now time.Time) bool {
	keep := r.Retention
	switch {
	case !r.State.Final(), r.State == pawl.Buried && buried == 0:
		return false
	case r.State == pawl.Buried:
		keep = buried
	}
	return !r.FinishedAt.Add(max(keep, r.window())).After(now)
}

// earlier is the order in which ready jobs are claimed.
func (r *record) earlier(o *record) int {
	return cmp.Or(r.rank(o), r.seq-o.seq)
}
