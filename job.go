package pawl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/pawlq/pawl/internal/text"
)

// ID names one job: a UUID of version 7 (RFC 9562), made by the [Queue] before
// the job is stored, so that it is known before any commit.
type ID = uuid.UUID

// Values of fields whose zero value already means "the default". They are typed,
// and differ where the type is the same, so that none passes for another.
const (
	Unlimited int           = -1 // MaxAttempts: never buried for its failures; MaxDepth: no limit
	NoRescues int           = -2 // MaxRescues: buried as soon as a worker dies with it
	NoTimeout time.Duration = -1 // Timeout: the handler may run for ever
	DeleteNow time.Duration = -2 // Retention: the record goes in the step that ends the job
)

// A Request asks for one job. The zero value of every field but Kind is a
// default. Enqueue reads requests and never writes to them, so one request may
// be enqueued many times.
type Request struct {
	// ID is the job's name; zero lets the Queue make one. Enqueueing an ID that
	// its queue still holds, running, waiting or retained, changes nothing,
	// which is how an enqueue whose outcome is unknown is repeated safely.
	// Whoever makes IDs by hand must not use one ID in two queues.
	ID ID

	// Queue is where the job waits: 1 to 200 letters, digits, '_', '-', '.' or
	// ':'. Empty means "default".
	Queue string

	// Kind tells workers which handler runs the job; same alphabet and length
	// as Queue. Required.
	Kind string

	// Payload is opaque to pawl and comes back byte for byte, at most
	// Options.MaxPayload bytes.
	Payload []byte

	// Meta travels with the job beside its payload (trace context, tenant), at
	// most 4 KiB of keys and values together, both valid UTF-8.
	Meta map[string]string

	// Priority is the urgency, from −1000 (first) over 0 (normal) to 1000
	// (last), like nice(1). Some systems count the other way.
	Priority int

	// Delay is how long after the enqueue the job becomes due, by the storage's
	// clock; RunAt is the same as a point in time, rounded up to the
	// microsecond. At most one of them may be set; a past time means now. Both
	// reach at most 100 years ahead, and no time is before 1970.
	Delay time.Duration
	RunAt time.Time

	// StartBefore ends the job as Canceled, with reason expired, if it is still
	// or again waiting at that time. Zero means never.
	StartBefore time.Time

	// Lease is how long a claim lasts unless it is extended, 10 ms to 24 h.
	// Zero leaves it to the claimer.
	Lease time.Duration

	// Timeout bounds one run of the handler. Zero leaves it to the [Kind] that
	// runs the job, and then to Options.Timeout.
	Timeout time.Duration

	// MaxAttempts is how many runs may fail before the job is buried. Zero
	// means Options.MaxAttempts, Unlimited never.
	MaxAttempts int

	// MaxRescues is how many times the job may be taken back from a worker that
	// died before it is buried. Zero means Options.MaxRescues; with NoRescues
	// and MaxAttempts 1 the job runs at most once.
	MaxRescues int

	// UniqueKey, if set, lets its queue hold only one job with that key, for as
	// long as UniqueMode says: 1 to 255 bytes of UTF-8 without control
	// characters. OnDuplicate tells what becomes of a second one.
	UniqueKey    string
	UniqueMode   UniqueMode
	UniqueWindow time.Duration // UniqueUntilWindow only
	OnDuplicate  OnDuplicate

	// MaxDepth refuses the job when its queue already holds that many waiting
	// (ready or scheduled) jobs; WhenFull tells how. Zero means Options.Depth,
	// and Options.WhenFull or else Reject.
	MaxDepth int
	WhenFull WhenFull

	// Retention keeps the record of a completed or canceled job that long.
	// Zero means Options.Retention, DeleteNow not at all.
	Retention time.Duration

	// Err is what went wrong while the request was built, such as an encode
	// error; Enqueue returns it.
	Err error
}

// UniqueMode tells how long a job holds its UniqueKey. The key is taken and
// given up in the same atomic step as the change of state.
type UniqueMode uint8

const (
	// UniqueUntilFinal holds the key until the job is completed, buried or
	// canceled. A kick takes it again, or fails with a [ConflictError].
	UniqueUntilFinal UniqueMode = iota
	// UniqueUntilClaimed gives the key up at the first claim, for good, or when
	// the job ends before one.
	UniqueUntilClaimed
	// UniqueUntilWindow holds the key until UniqueWindow after the job became
	// final, and keeps the record at least that long.
	UniqueUntilWindow
)

// OnDuplicate tells what Enqueue does with a request whose UniqueKey is held.
type OnDuplicate uint8

const (
	// KeepFirst leaves the holder as it is; the receipt names it.
	KeepFirst OnDuplicate = iota
	// Replace rewrites a waiting holder in place, under its own ID, as if just
	// enqueued; its CreatedAt, Counts and Failures stay. A holder that is
	// running or final is kept.
	Replace
)

// WhenFull tells what Enqueue does with a job whose queue is at MaxDepth.
type WhenFull uint8

const (
	// Reject refuses the whole call with a [FullError].
	Reject WhenFull = iota + 1
	// DropOldest first cancels, with reason dropped, the waiting job of least
	// urgency that became due first; if none is ready, the scheduled job due
	// next.
	DropOldest
	// Block waits for room until the context ends, whose error is then returned
	// together with the [FullError]: nothing was stored. Without a FullError it
	// ended inside a call of the storage, and as after any error the outcome is
	// unknown.
	//
	// It does not wait, but rejects, in a transaction, when the call also has jobs
	// for the queue that are to be rejected, when it has more jobs for a queue than
	// that may hold, and with ErrTooManyWaiters beyond Options.MaxWaiters.
	//
	// Those that wait in one Queue are tried in the order in which they came, and
	// one that comes later after them; but one for which there is room goes before
	// those that need more, so a batch may wait for as long as smaller ones come, and
	// what takes no room, an ID or a key that is there, or finds the queue empty, does
	// not wait. There is no order over processes, nor with enqueues that do not Block:
	// each takes the room that it finds. Storages do not see Block.
	//
	// A handler should not Block on a queue that its own workers empty: once it runs
	// in all their slots and waits, nobody makes room, until its Timeout.
	Block
)

// A Receipt says what Enqueue did with one request. With an error its Status is 0,
// and ID and Queue are those of the request: what became of it is found out by
// enqueueing it with that ID once more.
type Receipt struct {
	ID     ID // the job in the storage: the request's own, or the holder of its key
	Queue  string
	Status ReceiptStatus
}

// ReceiptStatus is what became of a request.
type ReceiptStatus uint8

const (
	Stored    ReceiptStatus = iota + 1 // a new job
	Exists                             // the ID was there already; nothing changed
	Duplicate                          // another job holds the key; nothing changed
	Replaced                           // the waiting holder of the key was rewritten
)

func (s ReceiptStatus) String() string {
	return name(int(s), "", "stored", "exists", "duplicate", "replaced")
}

// State is where a job is in its life.
type State uint8

const (
	Scheduled State = iota + 1 // waits for its time
	Ready                      // may be claimed
	Running                    // claimed by a worker under a lease
	Completed                  // acked; final
	Buried                     // in the dead-letter queue until kicked or deleted; final
	Canceled                   // given up by hand, by expiry or by a full queue; final
)

// States lists all states in the order in which List walks them.
func States() []State {
	return []State{Scheduled, Ready, Running, Completed, Buried, Canceled}
}

// Waiting reports whether s is Scheduled or Ready.
func (s State) Waiting() bool { return s == Scheduled || s == Ready }

// Final reports whether s is Completed, Buried or Canceled.
func (s State) Final() bool { return s >= Completed && s <= Canceled }

func (s State) String() string {
	return name(int(s), "", "scheduled", "ready", "running", "completed", "buried", "canceled")
}

// MarshalText returns the name of s.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText accepts the names that String returns.
func (s *State) UnmarshalText(text []byte) error {
	for _, c := range States() {
		if c.String() == string(text) {
			*s = c
			return nil
		}
	}
	return &InvalidError{Field: "State", Limit: "one of scheduled, ready, running, completed, buried, canceled"}
}

// Reason says why a job is in its present state. It is empty for a job that
// was enqueued or kicked, is running, or completed.
type Reason string

const (
	ReasonRetry    Reason = "retry"    // waiting: its last run failed
	ReasonRescue   Reason = "rescue"   // waiting: its last worker died
	ReasonRelease  Reason = "release"  // waiting: handed back
	ReasonSnooze   Reason = "snooze"   // waiting: asked to run again later
	ReasonSkip     Reason = "skip"     // waiting: claimed by a process that can't run its kind
	ReasonAttempts Reason = "attempts" // buried: MaxAttempts runs failed
	ReasonRescues  Reason = "rescues"  // buried: MaxRescues rescues spent
	ReasonBury     Reason = "bury"     // buried: by its worker
	ReasonCancel   Reason = "cancel"   // canceled: by hand
	ReasonExpired  Reason = "expired"  // canceled: StartBefore passed
	ReasonDropped  Reason = "dropped"  // canceled: made room in a full queue
)

// A Ref names one claim of one job. Whatever a worker writes about a job
// carries it, and storage refuses one that is not current. It is plain data:
// it may be sent to another process and used there.
type Ref struct {
	Queue string
	ID    ID
	// Fence is given once: it grows with every claim of the ID, even when the
	// job was deleted and its ID enqueued again meanwhile.
	Fence int64
	// Locator is an engine's own short cut to the record; 0 is always valid.
	Locator int64
}

// A Job is the record that storage keeps. What Claim, Get and List return
// belongs to the caller; changing it changes nothing in the storage.
type Job struct {
	Ref // Fence and Locator are those of the current claim, if it is running

	Kind     string
	Payload  []byte
	Meta     map[string]string
	Priority int

	State  State
	Reason Reason

	RunAt       time.Time // when it becomes, or became, due
	StartBefore time.Time
	CreatedAt   time.Time
	StartedAt   time.Time // first claim
	ClaimedAt   time.Time // last claim
	FinishedAt  time.Time
	LeaseUntil  time.Time // running only

	Lease       time.Duration // 0: the claimer's
	Timeout     time.Duration // 0: the worker's
	Retention   time.Duration
	MaxAttempts int
	MaxRescues  int

	UniqueKey    string
	UniqueMode   UniqueMode
	UniqueWindow time.Duration

	// Attempt is the number of the present or last run since the job was
	// enqueued or last kicked, from 1. Runs that were handed back (released,
	// snoozed, skipped, rescued) do not count.
	Attempt int
	// Rescued counts the rescues since it was enqueued or last kicked.
	Rescued int
	Counts  Counts

	WorkerID string // who claimed it last
	Failures []Failure
	Result   []byte
	Progress *Progress

	claimed time.Time // when this Queue got the claim; zero if it did not, or read the job since
	verb    uint32    // atomic: the Verb a Tx recorded for this claim
	tried   uint32    // atomic: the Verb of a settle by hand whose outcome is unknown
}

// Counts are what has happened to a job in all its life; a kick does not reset
// them. A job has run at most 1 + Retries + Rescues + Releases + Snoozes +
// Skips + Kicks times.
type Counts struct {
	Retries  int // failed runs that were followed by a return to waiting
	Rescues  int // returns to waiting because a lease expired
	Releases int
	Snoozes  int
	Skips    int
	Extends  int
	Kicks    int
}

// A Failure is one entry of a job's history: a nack, a burial or a rescue. A
// job keeps its last [MaxFailures].
type Failure struct {
	At       time.Time
	Attempt  int
	WorkerID string
	Error    string // at most MaxErrorText bytes
	Stack    string // at most MaxErrorText bytes; panics only
}

// Progress is what a handler says about its run. It is kept until it is
// overwritten, or the job is claimed again.
type Progress struct {
	Percent  float64 // 0 to 100
	Stage    string  // at most 200 bytes
	Message  string  // at most 1,000 bytes
	Counters map[string]int64
	At       time.Time // set by the storage
}

// SettledInTx reports whether a [Tx] has recorded an outcome for this claim,
// and which. A pool then verifies that the transaction was committed instead
// of settling.
func (j *Job) SettledInTx() (Verb, bool) {
	v := Verb(atomic.LoadUint32(&j.verb))
	return v, v != 0
}

// A Kind is how a process runs the jobs of one kind. Package task makes kinds
// from typed handlers, package worker runs them.
type Kind struct {
	Name  string // empty: all kinds that no other Kind names
	Queue string // where its jobs are enqueued by default; empty means DefaultQueue

	// Run does the work. Its result is kept with a completed job. Returned
	// errors are read as [OutcomeOf] says.
	Run func(ctx context.Context, j *Job) (result []byte, err error)

	Timeout time.Duration // of jobs that have none; 0 means Options.Timeout
	Backoff Backoff       // nil means Options.Backoff

	// OnError, if not nil, is called after each failed run, OnBury after a job
	// was buried, also by a rescue. They must not block for long: a pool that
	// stops waits for them no longer than for handlers, and ends ctx.
	OnError func(ctx context.Context, j *Job, err error)
	OnBury  func(ctx context.Context, j *Job, err error)
}

// Permanent wraps err so that the job is buried at once, whatever attempts it
// has left. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// Snooze returns an error that makes the job run again after d without
// spending an attempt. It may be wrapped, to say why.
func Snooze(d time.Duration) error { return &snoozeError{max(d, 0)} }

// RetryAfter wraps err so that the next attempt comes after d instead of after
// the backoff. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{max(d, 0), err}
}

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

type snoozeError struct{ d time.Duration }

func (e *snoozeError) Error() string { return fmt.Sprintf("pawl: snooze for %v", e.d) }

type retryAfterError struct {
	d time.Duration
	error
}

func (e *retryAfterError) Unwrap() error { return e.error }

// OutcomeOf turns what a handler returned into the outcome of its claim: nil
// acks; [Permanent] buries; [Snooze] hands the job back unspent; any other
// error nacks, after the delay of [RetryAfter] or else of backoff.
func OutcomeOf(j *Job, err error, backoff Backoff) Outcome {
	o := Outcome{Ref: j.Ref}
	var (
		permanent *permanentError
		snooze    *snoozeError
		after     *retryAfterError
	)
	switch {
	case err == nil:
		o.Verb = Ack
		return o
	case errors.As(err, &permanent):
		o.Verb = Bury
	case errors.As(err, &snooze):
		o.Verb, o.Delay = SnoozeFor, snooze.d
		return o
	case errors.As(err, &after):
		o.Verb, o.Delay = Nack, after.d
	default:
		o.Verb, o.Delay = Nack, backoff.Delay(j.Attempt, err)
	}
	o.Error = err.Error()
	return o
}

func name(i int, names ...string) string {
	if i <= 0 || i >= len(names) {
		return fmt.Sprintf("invalid(%d)", i)
	}
	return names[i]
}

// Validate reports what in r is beyond the limits of the contract, as an
// [InvalidError] that names the field. It expects defaults to be filled in,
// which [Queue.Prepare] does, and leaves the size of the payload to the Queue.
func (r *Request) Validate() error {
	switch {
	case r.Err != nil:
		return fmt.Errorf("%w: request of kind %q: %w", ErrInvalid, r.Kind, r.Err)
	case r.ID == ID{}:
		return &InvalidError{"ID", "set"}
	case !text.IsName(r.Queue, MaxNameLen):
		return &InvalidError{"Queue", nameLimit}
	case !text.IsName(r.Kind, MaxNameLen):
		return &InvalidError{"Kind", nameLimit}
	case r.Priority < -MaxPriority || r.Priority > MaxPriority:
		return &InvalidError{"Priority", "between -1000 and 1000"}
	case r.MaxAttempts < 1 && r.MaxAttempts != Unlimited:
		return &InvalidError{"MaxAttempts", "positive, or Unlimited"}
	case r.MaxRescues < 1 && r.MaxRescues != NoRescues:
		return &InvalidError{"MaxRescues", "positive, or NoRescues"}
	case r.MaxDepth < 1 && r.MaxDepth != Unlimited:
		return &InvalidError{"MaxDepth", "positive, or Unlimited"}
	case r.WhenFull < Reject || r.WhenFull > Block:
		return &InvalidError{"WhenFull", "Reject, DropOldest or Block"}
	}
	return cmp.Or(r.validateTimes(), r.validateKey(), validateMeta(r.Meta))
}

const nameLimit = "1 to 200 letters, digits, '_', '-', '.' or ':'"

func (r *Request) validateTimes() error {
	switch {
	case r.Delay < 0 || r.Delay > MaxAhead:
		return &InvalidError{"Delay", "between 0 and 100 years"}
	case r.Delay > 0 && !r.RunAt.IsZero():
		return &InvalidError{"RunAt", "zero when Delay is set"}
	case !r.RunAt.IsZero() && !inReach(r.RunAt):
		return &InvalidError{"RunAt", timeLimit}
	case !r.StartBefore.IsZero() && !inReach(r.StartBefore):
		return &InvalidError{"StartBefore", timeLimit}
	case !r.StartBefore.IsZero() && !r.StartBefore.After(r.RunAt):
		return &InvalidError{"StartBefore", "after RunAt"}
	case r.Retention <= 0 && r.Retention != DeleteNow, r.Retention > MaxAhead:
		return &InvalidError{"Retention", "positive and within 100 years, or DeleteNow"}
	}
	return cmp.Or(validateLease(r.Lease), validateTimeout(r.Timeout))
}

const timeLimit = "after 1970 and within 100 years"

// inReach reports whether t can be kept as a positive number of microseconds
// since 1970 and lies at most MaxAhead ahead.
func inReach(t time.Time) bool {
	return t.After(time.Unix(0, 0)) && time.Until(t) <= MaxAhead
}

func (r *Request) validateKey() error {
	switch {
	case !text.IsLine(r.UniqueKey, MaxKeyLen):
		return &InvalidError{"UniqueKey", "at most 255 bytes of UTF-8 without control characters"}
	case r.UniqueMode > UniqueUntilWindow:
		return &InvalidError{"UniqueMode", "UniqueUntilFinal, UniqueUntilClaimed or UniqueUntilWindow"}
	case r.OnDuplicate > Replace:
		return &InvalidError{"OnDuplicate", "KeepFirst or Replace"}
	case r.UniqueKey == "" && (r.UniqueMode != UniqueUntilFinal || r.OnDuplicate != KeepFirst):
		return &InvalidError{"UniqueKey", "set when UniqueMode or OnDuplicate is"}
	case r.UniqueMode == UniqueUntilWindow && (r.UniqueWindow <= 0 || r.UniqueWindow > MaxAhead):
		return &InvalidError{"UniqueWindow", "positive and within 100 years"}
	case r.UniqueMode != UniqueUntilWindow && r.UniqueWindow != 0:
		return &InvalidError{"UniqueWindow", "zero unless UniqueMode is UniqueUntilWindow"}
	}
	return nil
}

// The validators below return error, not *InvalidError, for cmp.Or to see a
// nil interface.

func validateLease(d time.Duration) error {
	if d != 0 && (d < MinLease || d > MaxLease) {
		return &InvalidError{"Lease", "between 10 ms and 24 h"}
	}
	return nil
}

func validateTimeout(d time.Duration) error {
	if d < 0 && d != NoTimeout || d > MaxAhead {
		return &InvalidError{"Timeout", "positive and within 100 years, or NoTimeout"}
	}
	return nil
}

func validateMeta(meta map[string]string) error {
	size := 0
	for k, v := range meta {
		size += len(k) + len(v)
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return &InvalidError{"Meta", "valid UTF-8"}
		}
	}
	if size > MaxMetaSize {
		return &InvalidError{"Meta", "at most 4096 bytes"}
	}
	return nil
}

func (p *Progress) validate() error {
	switch {
	case p == nil:
		return nil
	case !(p.Percent >= 0 && p.Percent <= 100):
		return &InvalidError{"Progress.Percent", "between 0 and 100"}
	case !text.IsLine(p.Stage, maxStage):
		return &InvalidError{"Progress.Stage", "at most 200 bytes of UTF-8 without control characters"}
	case !text.IsLine(p.Message, maxMessage):
		return &InvalidError{"Progress.Message", "at most 1000 bytes of UTF-8 without control characters"}
	case len(p.Counters) > MaxCounters:
		return &InvalidError{"Progress.Counters", "at most 32 entries"}
	}
	for k := range p.Counters {
		if k == "" || !text.IsLine(k, maxStage) {
			return &InvalidError{"Progress.Counters", "named by 1 to 200 bytes of UTF-8 without control characters"}
		}
	}
	return nil
}

const (
	maxStage   = 200
	maxMessage = 1000
)

// ceil rounds t up to the precision that storages keep, so that no job runs
// early, and to UTC.
func ceil(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	if down := t.Truncate(timePrecision); !down.Equal(t) {
		t = down.Add(timePrecision)
	}
	return t.Round(0).UTC()
}
