package pawl

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pawlq/pawl/internal/text"
)

// Limits of the contract. An engine may rely on them: the [Queue] refuses what
// is beyond them with an [InvalidError] before any storage is called.
const (
	MaxNameLen    = 200       // bytes of a queue name or kind
	MaxKeyLen     = 255       // bytes of a unique key or worker name; the longest that every engine can index
	MaxMetaSize   = 4 << 10   // bytes of all keys and values of Meta
	MaxPriority   = 1000      // and −MaxPriority is the most urgent
	MaxFailures   = 10        // entries of Job.Failures; the oldest give way
	MaxErrorText  = 2 << 10   // bytes of an error text, and of a stack
	MaxBatch      = 10_000    // requests in one Enqueue
	MaxBatchBytes = 64 << 20  // payload bytes of one Enqueue of several requests
	MaxQueues     = 1000      // queues in one Claim
	MaxStep       = 1000      // jobs in one Claim, Settle, Extend, Sweep, Get, List or Change
	MaxPageBytes  = 16 << 20  // payload bytes of one List page
	MaxCounters   = 32        // entries of Progress.Counters
	MaxKept       = 1_000_000 // MaxCompleted, MaxBuried, MaxCanceled: SQL engines count so far; more is no limit
	MinLease      = 10 * time.Millisecond
	MaxLease      = 24 * time.Hour
	MaxAhead      = 100 * 365 * 24 * time.Hour // how far RunAt, Delay and retention may reach
	timePrecision = time.Microsecond
)

// Storage keeps jobs. It is implemented by the packages under storage, and by
// third parties; package storagetest is this contract in executable form. The
// transition table is in internal/docs/design.md.
//
// All methods may be called concurrently, from any number of processes on one
// storage, and return before long after their context ends. Each change is
// atomic and durable when the method returns nil, as far as the engine's
// stated durability goes. On an error the outcome of the call is unknown unless
// the error is one of this package's: ErrInvalid, ErrFull, ErrUnsupported,
// ErrSchema and ErrClosed mean that nothing changed.
//
// The storage's clock decides what is due. Times are UTC and kept to the
// microsecond. A scheduled job whose time has come is shown as Scheduled until
// a Claim or Sweep has promoted it.
//
// A storage gets only valid arguments with defaults filled in: callers other
// than [Queue] use [Request.Validate]. It keeps no reference to its arguments
// and gives none to its own memory.
type Storage interface {
	Writer

	// Claim makes up to spec.Max jobs Running and returns them, and does not
	// wait for jobs to come. Queues are emptied in the order of spec.Queues,
	// each up to its own number. Within a queue jobs come by Priority, then
	// RunAt, then order of insertion; among concurrent claimers, engines may
	// depart from this by the jobs in flight. Jobs are returned in claim order.
	// Fewer than asked for come only if no more can be claimed, or calls under way
	// have the others in hand: callers that each claim until fewer come leave nothing.
	//
	// A claimed job gets a new fence, Attempt+1, WorkerID, ClaimedAt, the first
	// time StartedAt, and LeaseUntil = now + its own Lease or else spec.Lease.
	// Its Reason and Progress are cleared. With UniqueUntilClaimed the key is
	// given up.
	//
	// Due scheduled jobs of the asked queues are claimable. A job whose
	// StartBefore has come is never returned; it ends as Sweep would end it.
	// A paused queue yields nothing to a Claim that began after Configure
	// returned. An engine may do some of Sweep's work meanwhile.
	//
	// With spec.Repeat, the jobs of any asked queue that are running under
	// spec.Token are returned, if there are any, instead of new ones.
	//
	// A Claim is atomic for each queue, not over several. It is bounded by the
	// number of jobs alone: with payloads of the largest size allowed, MaxStep
	// of them come at once, so callers with big payloads ask for few.
	Claim(ctx context.Context, spec ClaimSpec) (Claimed, error)

	// Extend sets LeaseUntil = now + Renewal.Lease for each current claim,
	// counts it in Counts.Extends, and stores Progress if given. An expired
	// lease that was not yet given away is good again. Refs that are not
	// current come back as lost, in order: either the lease is extended or the
	// job is rescued, never both. Extend never waits for an open transaction of
	// a caller that holds a job: that claim counts as alive.
	Extend(ctx context.Context, renewals []Renewal) (lost []Ref, err error)

	// Sweep does what is due only because time passed, at most spec.Limit jobs
	// of each sort: promotes scheduled jobs, rescues jobs whose lease expired,
	// ends waiting jobs whose StartBefore has come, purges records whose
	// retention is over or that are too many. It needs no leader: any number of
	// processes may sweep.
	// With an error it returns what it is known to have done before.
	//
	// A rescue ends the fence, gives the attempt back, adds 1 to Rescued and
	// Counts.Rescues and an entry to Failures; the job waits again, at once the
	// first time, later after [RescueDelay](Rescued). If Rescued was already
	// MaxRescues, or that is NoRescues, it is Buried with ReasonRescues
	// instead, and Rescued and Counts do not change. A rescue never waits for
	// an open transaction that holds the job, and never reads large payloads.
	Sweep(ctx context.Context, spec SweepSpec) (Swept, error)

	Admin
}

// Writer is the half of a storage that can also run inside a caller's
// transaction. There a call that fails, also because its context ended, has
// changed nothing and the transaction may go on; where that can't be had, the
// error is ErrTxOver, and so is that of every later call.
type Writer interface {
	// Enqueue stores the requests, all or none (the capability table names the
	// exceptions), in order, and returns one receipt each. Per request:
	// an ID that is present changes nothing (Exists); else a UniqueKey that is
	// held gives Duplicate or Replaced; else a queue at MaxDepth gives a
	// FullError for the whole call, or drops a job; else the job is stored.
	// A stored job is Scheduled if its RunAt is after now, else it is Ready
	// with RunAt = now. The requests are not changed.
	//
	// All that is stored is seen at once. Each other answer was true at some moment
	// of the call, not all at the same one if others delete or end jobs meanwhile;
	// but none is Duplicate because of one behind it, and one with the ID of another
	// before it that was stored, or was there, is Exists.
	Enqueue(ctx context.Context, reqs []*Request) ([]Receipt, error)

	// Settle records what became of claims. Each outcome is one conditional
	// write: if its ref is the current claim, the job moves as [Verb] says and
	// the fence ends; if the ref's claim was ended by the same verb before,
	// nothing changes and that is success, so a Settle whose reply was lost can
	// be repeated; otherwise nothing changes and the ref comes back as lost, just
	// as it was given and in order. With Outcome.Repeat a missing job counts as
	// settled. Within one call the same outcome again is success even if the
	// first removed the record.
	//
	// One outcome never hinders another. Outside a transaction Settle does not
	// wait for an open one that holds a job: it settles the others and returns
	// a [BusyError] with the refs that it left.
	Settle(ctx context.Context, outcomes []Outcome) (lost []Ref, err error)
}

// Admin looks at jobs and changes them by hand. Every change ends the fence of
// a running job it touches.
type Admin interface {
	// Get returns the jobs with the IDs, nil where there is none, each as it was
	// at one moment. An empty queue searches all queues, which may cost a call
	// for each.
	Get(ctx context.Context, queue string, ids ...ID) ([]*Job, error)

	// List returns a page of the jobs that match, queue by queue in order of
	// name, in each state by state in the order of [States], and within a
	// state in its own order: Ready as claimed, Scheduled by RunAt, Running by
	// claim, final ones by FinishedAt; ties in order of insertion (for final
	// states, any fixed order). A page may hold fewer jobs than spec.Limit, or
	// none, and still have a Next, because the work per call is bounded. A job
	// that does not move while pages are read is seen exactly once. A Cursor that
	// somebody has made up gives ErrInvalid, or jobs that match the filter.
	List(ctx context.Context, spec ListSpec) (Page, error)

	// Count returns the numbers of the named queues, or of all queues known,
	// by name. A queue is known while it holds a job or a setting.
	Count(ctx context.Context, queues ...string) ([]QueueStats, error)

	// Change applies c.Verb to each of c.IDs and says what became of each, in
	// order. Each is atomic; the whole need not be.
	Change(ctx context.Context, c Change) ([]Changed, error)

	// Configure changes the settings of a queue that are not nil.
	Configure(ctx context.Context, queue string, s QueueSettings) error
}

// Watcher is implemented by storages that can tell when something happened.
// What it tells is a hint: events may be lost, late or doubled.
type Watcher interface {
	// Watch calls f with each event until ctx ends or the source of events is
	// gone for good. f is called from one goroutine at a time and must return
	// at once. Watch recovers lost connections by itself and then sends an
	// EventReady without a queue.
	Watch(ctx context.Context, f func(Event)) error
}

// Cycler is implemented by storages that can settle and claim in one round
// trip. The two have the meaning of Settle followed by Claim, which is made also
// after a BusyError of the Settle and then returned with it.
type Cycler interface {
	Cycle(ctx context.Context, outcomes []Outcome, spec ClaimSpec) (lost []Ref, c Claimed, err error)
}

// Find returns the first storage in the Unwrap chain of s that is a T, such as
// a [Watcher].
func Find[T any](s Storage) (T, bool) {
	for {
		if t, ok := s.(T); ok {
			return t, true
		}
		u, ok := s.(interface{ Unwrap() Storage })
		if !ok {
			var zero T
			return zero, false
		}
		s = u.Unwrap()
	}
}

// ClaimSpec asks for jobs.
type ClaimSpec struct {
	Queues []QueueAsk // in strict order, no name twice, at most MaxQueues
	Max    int        // of all queues together, 1 to MaxStep
	Lease  time.Duration
	Worker string
	// Token is a random number that names this claim; Repeat marks the
	// repetition of a claim whose reply was lost.
	Token  int64
	Repeat bool
}

func (c *ClaimSpec) fillToken() {
	if c.Token == 0 {
		c.Token = rand.Int64()
	}
}

func (c *ClaimSpec) validate() error {
	if len(c.Queues) == 0 || len(c.Queues) > MaxQueues {
		return &InvalidError{"Queues", "1 to 1000"}
	}
	if c.Max < 1 || c.Max > MaxStep {
		return &InvalidError{"Max", "between 1 and 1000"}
	}
	if c.Lease < MinLease || c.Lease > MaxLease {
		return &InvalidError{"Lease", "between 10 ms and 24 h"}
	}
	if !text.IsLine(c.Worker, MaxKeyLen) {
		return &InvalidError{"Worker", "at most 255 bytes of UTF-8 without control characters"}
	}
	names := make(map[string]bool)
	for _, ask := range c.Queues {
		if !text.IsName(ask.Queue, MaxNameLen) {
			return &InvalidError{"Queues", nameLimit}
		}
		if names[ask.Queue] {
			return &InvalidError{"Queues", "without a name twice"}
		}
		names[ask.Queue] = true
		if ask.Max < 1 {
			return &InvalidError{"QueueAsk.Max", "positive"}
		}
	}
	return nil
}

// QueueAsk asks for up to Max jobs of one queue.
type QueueAsk struct {
	Queue string
	Max   int
}

// Claimed is what a Claim returns.
type Claimed struct {
	Jobs []*Job
	// NextDue is how long until the first scheduled job of the asked queues is
	// due, if fewer jobs were found than asked for; 0 means none is known.
	// It is never shorter than the truth by more than a millisecond.
	NextDue time.Duration
}

// Verb is what becomes of a claim.
type Verb uint8

const (
	// Ack completes the job and keeps Result; with DeleteNow the record goes,
	// unless a unique window keeps it.
	Ack Verb = iota + 1
	// Nack records a failure. If Attempt has reached MaxAttempts the job is
	// Buried with ReasonAttempts; else it waits for Delay (Counts.Retries).
	Nack
	// Bury records a failure and moves the job to the dead-letter queue.
	Bury
	// Release hands the job back, its attempt unspent, after Delay, with a new
	// priority if given. Without a Delay it is ready and keeps its RunAt and so its
	// place, whatever the clock was set to meanwhile.
	Release
	// SnoozeFor is Release by the handler's own wish.
	SnoozeFor
	// Skip is Release by a process that does not run the job's kind.
	Skip
)

func (v Verb) String() string {
	return name(int(v), "", "ack", "nack", "bury", "release", "snooze", "skip")
}

// An Outcome settles one claim.
type Outcome struct {
	Ref      Ref
	Verb     Verb
	Delay    time.Duration // Nack, Release, SnoozeFor, Skip
	Priority *int          // Release
	Result   []byte        // Ack
	Error    string        // Nack, Bury
	Stack    string        // Nack, Bury
	Repeat   bool          // an earlier Settle of this outcome may have succeeded
}

// A Renewal extends one claim.
type Renewal struct {
	Ref      Ref
	Lease    time.Duration
	Progress *Progress
}

// SweepSpec bounds a Sweep.
type SweepSpec struct {
	Limit int // 1 to MaxStep
	// BuriedRetention deletes buried jobs that long after FinishedAt; 0 means
	// never. A unique window keeps a record in any case.
	BuriedRetention time.Duration
	// MaxCompleted, MaxBuried and MaxCanceled are how many records of each state
	// each queue keeps, at most MaxKept; 0 means all. Of those whose retention is
	// not over, the ones with the oldest FinishedAt beyond that number are deleted,
	// the oldest first, and however many sweep at once, and whatever is kicked or deleted
	// meanwhile, not one more. Those that a unique window keeps count, and stay.
	//
	// To find what is beyond a number means to read as many entries of an index, so
	// an engine may do it for some queues in each Sweep, and less often the greater
	// the number. Beyond 10,000 it may go on for a while with what it has found,
	// although jobs that ended later were kicked or deleted since.
	MaxCompleted, MaxBuried, MaxCanceled int
}

// Swept says what a Sweep did.
type Swept struct {
	Promoted, Expired, Purged int
	Rescued, Buried           []Ref // by rescue: the refs that ended, with their old fences
	// More says that a limit was reached; NextDue is as in Claimed, over all
	// queues and all that Sweep does.
	More    bool
	NextDue time.Duration
}

// Filter selects jobs. Zero fields match all.
type Filter struct {
	Queue     string
	Kind      string
	States    []State
	UniqueKey string
	WorkerID  string
	// CreatedFrom and CreatedBefore bound CreatedAt: from ≤ t < before.
	CreatedFrom, CreatedBefore time.Time
}

// ListSpec asks for a page of jobs.
type ListSpec struct {
	Filter
	Limit  int    // 1 to MaxStep
	Cursor string // Page.Next of the page before
	// Payloads reads Payload and Result too; a page then ends when it holds
	// MaxPageBytes.
	Payloads bool
}

// Page is a part of a list. Next is empty on the last one.
type Page struct {
	Jobs []*Job
	Next string
}

// QueueStats are the numbers of one queue. Running jobs are those claimed, also
// by a pool that has not yet started them.
type QueueStats struct {
	Queue                                                  string
	Paused                                                 bool
	Scheduled, Ready, Running, Completed, Buried, Canceled int64
	Retrying                                               int64         // of the scheduled: for ReasonRetry or ReasonRescue
	OldestReady                                            time.Duration // how long the longest due ready job has been due
	Waiting                                                int           // claimers waiting in Queue.Claim of this process; the Queue fills it in
}

// ChangeVerb is what Change does to a job.
type ChangeVerb uint8

const (
	// Kick makes a Buried, Canceled or Completed job Ready with RunAt = now,
	// Attempt and Rescued 0, Counts.Kicks+1, and without FinishedAt, Result,
	// Progress, StartBefore and Reason. It takes the unique key again (not with
	// UniqueUntilClaimed) or gives Conflict.
	Kick ChangeVerb = iota + 1
	// Cancel ends a Scheduled, Ready or Running job with ReasonCancel.
	Cancel
	// Delete removes a job of any state.
	Delete
	// Reschedule sets the RunAt of a Scheduled or Ready job, by Delay or RunAt
	// as in a Request; both zero mean now. Reason stays.
	Reschedule
	// Edit rewrites the fields of a Scheduled or Ready job that Change.Edit
	// names.
	Edit
)

func (v ChangeVerb) String() string {
	return name(int(v), "", "kick", "cancel", "delete", "reschedule", "edit")
}

// From lists the states that v applies to.
func (v ChangeVerb) From() []State {
	switch v {
	case Kick:
		return []State{Completed, Buried, Canceled}
	case Cancel:
		return []State{Scheduled, Ready, Running}
	case Reschedule, Edit:
		return []State{Scheduled, Ready}
	default:
		return States()
	}
}

// Change changes jobs by hand.
type Change struct {
	Verb  ChangeVerb
	Queue string  // as in Get
	IDs   []ID    // at most MaxStep
	From  []State // only jobs in these states, all of Verb.From()
	RunAt time.Time
	Delay time.Duration
	Edit  EditFields
}

// EditFields are new values for a waiting job; nil leaves a field as it is.
type EditFields struct {
	Payload     []byte // nil leaves it, empty empties it
	Meta        map[string]string
	Priority    *int
	Timeout     *time.Duration
	Lease       *time.Duration
	MaxAttempts *int
	StartBefore *time.Time
	Retention   *time.Duration
}

// Changed says what became of one ID.
type Changed struct {
	ID     ID
	Status ChangeStatus
	Before State // the state it was in, if found
	Holder ID    // Conflict: who holds the unique key
}

// ChangeStatus is what became of one job in a Change.
type ChangeStatus uint8

const (
	Done       ChangeStatus = iota + 1
	NotFound                // no such job
	WrongState              // not in one of Change.From; nothing changed
	Conflict                // its unique key is held by another job; nothing changed
)

func (s ChangeStatus) String() string {
	return name(int(s), "", "done", "not found", "wrong state", "conflict")
}

// QueueSettings are the stored settings of a queue.
type QueueSettings struct {
	Paused *bool
}

// An Event is a hint that a storage gives.
type Event struct {
	Kind EventKind
	// Queue is where it happened; empty means anywhere.
	Queue string
	// In is when jobs become due (EventReady).
	In time.Duration
	// Ref is the claim that ended (EventEnded).
	Ref Ref
}

// EventKind is the sort of an Event.
type EventKind uint8

const (
	EventReady  EventKind = iota + 1 // jobs can, or In from now will, be claimed
	EventEnded                       // a claim was ended by someone other than its worker
	EventPaused                      // the queue was paused
)

// RescueDelay is how long a job waits after its nth rescue since it was
// enqueued or kicked: nothing after the first, then a random time between d/2
// and d, where d = min(1 s · 2^(n−2), 1 min), so that a job that kills its
// process meets other neighbours each time.
func RescueDelay(n int) time.Duration {
	if n <= 1 {
		return 0
	}
	d := doubled(time.Second, n-2, time.Minute)
	return d/2 + rand.N(d/2+1)
}

// SkipDelay is how long a job waits that was handed back n times before by
// processes that do not run its kind: min(100 ms · 2ⁿ, 1 min).
func SkipDelay(n int) time.Duration { return doubled(100*time.Millisecond, n, time.Minute) }

// Errors that callers decide by. Match them with errors.Is; engines wrap them
// around what their driver said.
var (
	ErrInvalid      = errors.New("pawl: invalid")
	ErrNotFound     = errors.New("pawl: no such job")
	ErrLost         = errors.New("pawl: claim is no longer current")
	ErrConflict     = errors.New("pawl: unique key is held by another job")
	ErrUnsupported  = errors.New("pawl: not supported by this storage")
	ErrSchema       = errors.New("pawl: schema version does not fit")
	ErrFull         = errors.New("pawl: queue is full")
	ErrNotCommitted = errors.New("pawl: settled in a transaction that was not committed")
	// ErrTooManyWaiters means that Options.MaxWaiters callers wait already, in
	// Claim or for room.
	ErrTooManyWaiters = errors.New("pawl: too many callers wait")
	ErrClosed         = errors.New("pawl: closed")
	// ErrTxOver means that the caller's transaction can't go on (deadlock,
	// serialization failure, busy snapshot) and should be begun anew by the
	// caller; a [Writer] that returned it refuses further calls.
	ErrTxOver = errors.New("pawl: transaction is over")
)

// InvalidError names the field that is wrong and the limit it breaks.
type InvalidError struct {
	Field string
	Limit string
}

func (e *InvalidError) Error() string { return fmt.Sprintf("pawl: %s must be %s", e.Field, e.Limit) }

// Is reports that e is ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// ConflictError names the job that holds the unique key.
type ConflictError struct{ ID ID }

func (e *ConflictError) Error() string { return fmt.Sprintf("%v: %v", ErrConflict, e.ID) }

// Is reports that e is ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// FullError names the queue that is full.
type FullError struct {
	Queue string
	Limit int
}

func (e *FullError) Error() string {
	return fmt.Sprintf("%v: %q holds %d waiting jobs", ErrFull, e.Queue, e.Limit)
}

// Is reports that e is ErrFull.
func (e *FullError) Is(target error) bool { return target == ErrFull }

// BusyError names the claims that a Settle left undecided because open
// transactions hold their jobs; all others of the call were settled. Settle
// them again later.
type BusyError struct{ Refs []Ref }

func (e *BusyError) Error() string {
	return fmt.Sprintf("pawl: %d jobs are held by open transactions", len(e.Refs))
}

// SchemaError says which schema version a storage has and which it needs.
type SchemaError struct{ Have, Want int }

func (e *SchemaError) Error() string {
	how := "run the migrations"
	if e.Have > e.Want {
		how = "this program is older than its database"
	}
	return fmt.Sprintf("%v: version %d, need %d: %s", ErrSchema, e.Have, e.Want, how)
}

// Is reports that e is ErrSchema.
func (e *SchemaError) Is(target error) bool { return target == ErrSchema }
