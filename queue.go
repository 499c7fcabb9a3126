// Package pawl is a background-job queue that lives in your program and keeps
// its jobs in the database you already have.
//
// A [Queue] is the way in. It fills in defaults, validates and delegates to a
// [Storage], of which there is one for each database under storage. Package
// task gives jobs Go types, package worker runs them:
//
//	store, err := sqlite.Open(ctx, "app.db", nil)
//	q := pawl.New(store, nil)
//	receipt, err := q.Enqueue(ctx, task.New(Welcome{UserID: 7}))
//	err = worker.New(q, tasks, nil).Run(ctx)
//
// # The life of a job
//
// A job is a kind, a payload, and a time before which it must not run. It is
// Scheduled until that time and Ready from then on. A worker claims it for the
// length of a lease and it is Running; the worker extends the lease for as long
// as it works. Then it settles the claim: an ack completes the job; a nack lets
// it wait for its next attempt, or buries it if that was the last; a release
// hands it back unspent. Buried jobs are the dead-letter queue: they stay until
// someone kicks or deletes them.
//
// If the lease ends because the worker has died, any other process that looks
// after the storage takes the job back, which is called a rescue. So a job runs
// at least once, and sometimes again.
//
// # Fences
//
// Each claim has a [Ref] with a fence that is given only once. Every write about
// a claim carries it, and every settle, rescue and change by hand ends it. A
// worker that was paused or cut off and comes back finds its fence ended: it gets
// [ErrLost] and can change nothing.
//
// # Transactions
//
// With a storage that has transactions, [Queue.WithTx] enqueues and acks within
// yours:
//
//	_, err = q.WithTx(store.Tx(tx)).Enqueue(ctx, task.New(Welcome{UserID: 7}))
//
// The job exists if and only if the transaction commits. An ack in the handler's
// transaction makes the handler's effects in that database happen exactly once.
//
// # Errors
//
// Errors that a caller decides by are values and types of this package and are
// matched with errors.Is and errors.As. After any other error the outcome of a
// call is unknown; repeating it is safe: an enqueue by its ID, a settle by its
// fence, a claim by its token.
package pawl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/pawlq/pawl/internal/hold"
	"github.com/pawlq/pawl/internal/names"
	"github.com/pawlq/pawl/internal/room"
	"github.com/pawlq/pawl/internal/text"
	"github.com/pawlq/pawl/internal/wake"
)

// DefaultQueue is where requests without a queue go.
const DefaultQueue = "default"

// Options set the defaults of a [Queue]. The zero value of each field is a
// default itself; nil Options are all zero.
type Options struct {
	// Logger gets what no return value can say. Payloads are never logged.
	// nil means slog.Default().
	Logger *slog.Logger

	// MaxPayload bounds payloads and results, in bytes. 0 means 1 MiB.
	MaxPayload int

	// Defaults of requests that leave the field zero.
	MaxAttempts int           // 0 means 25
	MaxRescues  int           // 0 means 5
	Retention   time.Duration // 0 means 24 h
	WhenFull    WhenFull      // 0 means Reject

	// Timeout bounds a run where neither the job nor its Kind says. 0 means
	// 30 min.
	Timeout time.Duration

	// Depth limits the waiting jobs of queues by name; "" names all others.
	// Without an entry there is no limit. What becomes of a job beyond it,
	// WhenFull says; in a transaction Block is Reject.
	Depth map[string]int

	// MaxQueues bounds how many different queues this Queue may enqueue to, so
	// that names made of data do not fill the storage: a request for one more is
	// invalid. 0 means no bound. A queue counts, for as long as the Queue lives,
	// from the first enqueue on that succeeded, also in a transaction that is rolled
	// back later. Those of other Queues, processes, or times before do not count.
	MaxQueues int

	// MaxWaiters bounds the callers that wait in Claim of this Queue at the same time, and
	// apart from them the enqueues that wait for room, see [Block]; one more gets
	// ErrTooManyWaiters. 0 means 10,000: each claimer looks at the storage once in
	// Poll.
	MaxWaiters int

	// ExtendLimits bound the Extends of a claim by hand.
	ExtendLimits ExtendLimits

	// Lease is how long a claim lasts that is not extended, where the job does
	// not say. 0 means 30 s.
	Lease time.Duration

	// Backoff is the delay of failed jobs. nil means Exponential{} (1 s
	// doubling up to 1 h).
	Backoff Backoff

	// BuriedRetention bounds how long buried jobs stay in the dead-letter queues,
	// see [SweepSpec]. 0 means no bound.
	BuriedRetention time.Duration

	// MaxCompleted, MaxBuried and MaxCanceled bound the records of each state in
	// each queue, in jobs; the ones that ended first go, also before their
	// Retention is over, and their results and IDs with them: to enqueue such an
	// ID again makes a new job. The next sweep sees to it, so between two there may
	// be more. 0 means no bound, and so does more than MaxKept (1,000,000), which is
	// logged. All processes should have the same: the lowest one counts. See
	// [SweepSpec] for what a bound costs.
	MaxCompleted, MaxBuried, MaxCanceled int

	// Poll is how often a waiting Claim or Wait looks by itself, for what no
	// event told. 0 means 1 s.
	Poll time.Duration

	// WorkerID names this process in records. Empty means host-pid-random.
	WorkerID string

	// Middleware wraps Enqueue, the first outermost.
	Middleware []EnqueueMiddleware
}

// ExtendLimits bound how often and how long a claim is extended by hand, so
// that a worker that goes on touching a job it does nothing for loses it. The
// zero value of each field is no bound. They hold for the claim, with whichever
// Job of its ID and fence it is extended. Each Queue counts its own calls, those
// that failed too, for 10,000 claims at a time: beyond that it forgets up to a
// quarter of them, those whose leases end first. Pools do not mind them: Timeout
// bounds what their heartbeats keep.
//
// An Extend beyond them is an [InvalidError]. Its Field is "ExtendLimits.Every" if
// the call may be made again later, and "ExtendLimits.Count" or
// "ExtendLimits.Total" if there is no more for this claim.
type ExtendLimits struct {
	Count int // Extends of one claim

	// Total is how long after the claim a lease may reach: the last Extend gets
	// what is left. The clock is that of this process, also where another made
	// the claim. A Job made of a Ref alone does not say when it was claimed: if it
	// was not extended with another one, the time begins with its first Extend.
	Total time.Duration

	Every time.Duration // between two
}

// EnqueueFunc stores requests.
type EnqueueFunc func(ctx context.Context, reqs []*Request) ([]Receipt, error)

// EnqueueMiddleware wraps the storing of requests, to add trace context,
// encrypt payloads, check tenancy. It sees copies with IDs and defaults filled
// in and may set all fields but IDs, without writing into Payload; they are
// validated after it.
type EnqueueMiddleware func(next EnqueueFunc) EnqueueFunc

// A Queue is the way into a storage: it fills in defaults, validates and
// delegates. It holds many queues, told apart by name. A Queue is safe for
// concurrent use and needs no closing.
type Queue struct {
	storage Storage
	opts    Options
	log     *slog.Logger
	enqueue EnqueueFunc
	ends    wake.Set[ID] // those who Wait for jobs
	rooms   room.Lines
	names   names.Set
	holds   hold.Set[claimKey]
	hub     hub
	began   time.Time
	swept   atomic.Int64 // when a claimer last began a sweep, in ns since began
}

// New returns a Queue on s, which must not be nil.
func New(s Storage, o *Options) *Queue {
	if s == nil {
		panic("pawl: New without a Storage")
	}
	q := &Queue{storage: s, opts: o.withDefaults(), began: time.Now()}
	q.swept.Store(-int64(sweepEvery))
	q.log = q.opts.Logger
	q.enqueue = q.middleware(q.enqueueBlocking)
	q.hub.storage = s
	q.hub.most = q.opts.MaxWaiters
	return q
}

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	if d.Logger == nil {
		d.Logger = slog.Default()
	}
	if d.Backoff == nil {
		d.Backoff = Exponential{}
	}
	if d.WorkerID == "" {
		host, _ := os.Hostname()
		d.WorkerID = fmt.Sprintf("%s-%d-%06x", text.Clean(host, MaxNameLen), os.Getpid(), rand.N(1<<24))
	}
	d.WorkerID = text.Clean(d.WorkerID, MaxKeyLen)
	d.MaxPayload, d.Poll, d.MaxWaiters = max(d.MaxPayload, 0), max(d.Poll, 0), max(d.MaxWaiters, 0)
	d.BuriedRetention = max(d.BuriedRetention, 0)
	for _, kept := range []*int{&d.MaxCompleted, &d.MaxBuried, &d.MaxCanceled} {
		if *kept > MaxKept {
			d.Logger.Warn("pawl: a number of records to keep is too great and counts as none", "number", *kept, "most", MaxKept)
			*kept = 0
		}
		*kept = max(*kept, 0)
	}
	setDefault(&d.MaxPayload, 1<<20)
	setDefault(&d.WhenFull, Reject)
	setDefault(&d.MaxWaiters, 10_000)
	setDefault(&d.MaxAttempts, 25)
	setDefault(&d.MaxRescues, 5)
	setDefault(&d.Timeout, 30*time.Minute)
	setDefault(&d.Retention, 24*time.Hour)
	setDefault(&d.Lease, 30*time.Second)
	setDefault(&d.Poll, time.Second)
	d.Lease = min(max(d.Lease, MinLease), MaxLease)
	return d
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Storage returns the storage that New was given.
func (q *Queue) Storage() Storage { return q.storage }

// Options returns the options with defaults filled in.
func (q *Queue) Options() Options { return q.opts }

// Enqueue stores one job. The receipt says whether it was stored, was there
// already, or is a duplicate of which job. On an error other than ErrInvalid,
// ErrFull, ErrClosed the outcome is unknown; enqueueing the request again with
// the ID of the receipt, which is set even then, is safe.
func (q *Queue) Enqueue(ctx context.Context, r *Request) (Receipt, error) {
	return enqueueOne(ctx, q.EnqueueMany, r)
}

// EnqueueMany stores up to [MaxBatch] jobs, all or none (but see the capability
// table), and returns one receipt each, in order.
func (q *Queue) EnqueueMany(ctx context.Context, reqs []*Request) ([]Receipt, error) {
	return q.enqueueBy(ctx, q.enqueue, reqs)
}

// Prepare returns copies of the requests as a storage gets them: with IDs and
// defaults filled in, and validated. It is for those who test storages or
// write to one directly.
func (q *Queue) Prepare(reqs ...*Request) ([]*Request, error) {
	if slices.Contains(reqs, nil) {
		return nil, errNilRequest
	}
	filled := q.fill(reqs)
	err := q.validate(filled)
	return unblocked(filled), err
}

var errNilRequest = &InvalidError{"request", "given; it is nil"}

func enqueueOne(ctx context.Context, many EnqueueFunc, r *Request) (Receipt, error) {
	receipts, err := many(ctx, []*Request{r})
	if len(receipts) == 0 {
		return Receipt{}, err
	}
	return receipts[0], err
}

// enqueueBy returns receipts that carry the IDs even on an error, so that the
// caller can find out what became of them.
func (q *Queue) enqueueBy(ctx context.Context, store EnqueueFunc, reqs []*Request) ([]Receipt, error) {
	if len(reqs) == 0 {
		return nil, nil
	}
	if len(reqs) > MaxBatch {
		return nil, &InvalidError{"requests", "at most 10000 in one call"}
	}
	if slices.Contains(reqs, nil) {
		return nil, errNilRequest
	}
	filled := q.fill(reqs)
	receipts, err := store(ctx, filled)
	if err == nil {
		return receipts, nil
	}
	receipts = make([]Receipt, len(filled))
	for i, r := range filled {
		receipts[i] = Receipt{ID: r.ID, Queue: r.Queue}
	}
	return receipts, err
}

func (q *Queue) middleware(store EnqueueFunc) EnqueueFunc {
	next := func(ctx context.Context, reqs []*Request) ([]Receipt, error) {
		if err := q.validate(reqs); err != nil {
			return nil, err
		}
		done, err := q.admit(reqs)
		if err != nil {
			return nil, err
		}
		err = errPanic // until store has returned
		defer func() { done(err) }()
		var receipts []Receipt
		receipts, err = store(ctx, reqs)
		return receipts, err
	}
	for _, m := range slices.Backward(q.opts.Middleware) {
		next = m(next)
	}
	return next
}

var errPanic = errors.New("pawl: panic in the storage")

// admit refuses requests for queues beyond Options.MaxQueues. done is to be told what
// became of the others.
func (q *Queue) admit(reqs []*Request) (done func(err error), err error) {
	if q.opts.MaxQueues <= 0 {
		return func(error) {}, nil
	}
	queues := make([]string, len(reqs))
	for i, r := range reqs {
		queues[i] = r.Queue
	}
	tried, excess := q.names.Try(queues, q.opts.MaxQueues)
	if tried == nil {
		return nil, &InvalidError{"Queue", fmt.Sprintf(
			"one of the %d that Options.MaxQueues lets this Queue enqueue to, and %q is one more", q.opts.MaxQueues, excess)}
	}
	return func(err error) { tried(err == nil) }, nil
}

// enqueueBlocking stores requests, of which those with Block wait for room.
// What this process claims, cancels, deletes or sweeps makes room at once; what
// others do is found by polling, with growing pauses.
func (q *Queue) enqueueBlocking(ctx context.Context, reqs []*Request) ([]Receipt, error) {
	plain := unblocked(reqs)
	slack := q.awaited(reqs)
	behind := slack != nil
	if behind {
		plain = modest(plain, slack)
	}
	receipts, err := q.storage.Enqueue(ctx, plain)
	if !errors.Is(err, ErrFull) {
		return receipts, err
	}
	if plain = unblocked(reqs); !behind {
		slack = slackOf(reqs)
	}
	if !waitsFor(slack, err) {
		return receipts, err
	}
	w, first, joined := q.rooms.Join(slack, q.opts.MaxWaiters)
	if !joined {
		return nil, fmt.Errorf("%w: %w", ErrTooManyWaiters, fullError(plain, err))
	}
	defer func() {
		q.rooms.Leave(w, func(queue string) bool {
			return slices.ContainsFunc(receipts, func(r Receipt) bool { return r.Queue == queue && r.Status == Stored })
		})
	}()
	poll := wake.NewPoll(q.opts.Poll)
	for {
		if first { // else those who wait are tried before
			receipts, err = q.storage.Enqueue(ctx, plain)
			if !waitsFor(slack, err) {
				return receipts, err
			}
			q.rooms.PassOn(w, fullQueue(err))
		}
		if ctxErr := q.rooms.Wait(ctx, w, poll); ctxErr != nil {
			return nil, fmt.Errorf("%w: %w", ctxErr, fullError(plain, err))
		}
		first = true
	}
}

// awaited returns the slack of requests if others wait for room in one of its queues.
func (q *Queue) awaited(reqs []*Request) map[string]int {
	if q.rooms.Empty() {
		return nil
	}
	if slack := slackOf(reqs); q.rooms.Awaited(slack) {
		return slack
	}
	return nil
}

// modest returns the requests as they may be stored although others wait for
// room: if they take none, because the ID or the key is there already, or if
// nothing waits in the queue.
func modest(plain []*Request, slack map[string]int) []*Request {
	plain = slices.Clone(plain)
	for i, r := range plain {
		if _, waits := slack[r.Queue]; waits && r.WhenFull == Reject && r.MaxDepth != Unlimited {
			plain[i] = new(*r)
			plain[i].MaxDepth = 1
		}
	}
	return plain
}

// fullError returns err with the limit that the request has.
func fullError(plain []*Request, err error) error {
	var full *FullError
	if !errors.As(err, &full) {
		return err
	}
	for _, r := range plain {
		if r.Queue == full.Queue && r.WhenFull == Reject && r.MaxDepth != Unlimited {
			return &FullError{r.Queue, r.MaxDepth}
		}
	}
	return err
}

// enqueueRejecting stores requests in a transaction, which must not be held open
// to wait for room.
func enqueueRejecting(store EnqueueFunc) EnqueueFunc {
	return func(ctx context.Context, reqs []*Request) ([]Receipt, error) {
		return store(ctx, unblocked(reqs))
	}
}

// unblocked returns the requests as storages know them, without Block.
func unblocked(reqs []*Request) []*Request {
	plain := reqs
	for i, r := range reqs {
		if r.WhenFull != Block {
			continue
		}
		if &plain[0] == &reqs[0] {
			plain = slices.Clone(reqs)
		}
		plain[i] = new(*r)
		plain[i].WhenFull = Reject
	}
	return plain
}

// slackOf returns the queues for whose room the requests wait, and how many
// waiting jobs each may hold for all of its requests to fit. It is empty if one of
// the queues, of those that do not wait too, could not even be empty enough.
func slackOf(reqs []*Request) map[string]int {
	slack, rejects, jobs := map[string]int{}, map[string]bool{}, map[string]int{}
	for _, r := range reqs {
		jobs[r.Queue]++
		if r.MaxDepth == Unlimited || r.WhenFull == DropOldest {
			continue
		}
		s := r.MaxDepth - jobs[r.Queue]
		if s < 0 {
			return nil
		}
		if old, ok := slack[r.Queue]; !ok || s < old {
			slack[r.Queue] = s
		}
		rejects[r.Queue] = rejects[r.Queue] || r.WhenFull == Reject
	}
	maps.DeleteFunc(slack, func(queue string, _ int) bool { return rejects[queue] })
	return slack
}

// waitsFor reports whether err says that one of the queues is full.
func waitsFor(slack map[string]int, err error) bool {
	_, ok := slack[fullQueue(err)]
	return ok
}

// fullQueue is the queue that err says is full, if it is such an error.
func fullQueue(err error) string {
	var full *FullError
	if !errors.As(err, &full) {
		return ""
	}
	return full.Queue
}

func (q *Queue) fill(reqs []*Request) []*Request {
	copies := make([]Request, len(reqs))
	filled := make([]*Request, len(reqs))
	for i, r := range reqs {
		copies[i] = *r
		if len(q.opts.Middleware) > 0 {
			copies[i].Meta = maps.Clone(r.Meta)
		}
		q.fillOne(&copies[i])
		filled[i] = &copies[i]
	}
	return filled
}

func (q *Queue) fillOne(r *Request) {
	if r.ID == (ID{}) {
		r.ID = uuid.Must(uuid.NewV7()) // fails only without a source of randomness
	}
	setDefault(&r.Queue, DefaultQueue)
	setDefault(&r.MaxAttempts, q.opts.MaxAttempts)
	setDefault(&r.MaxRescues, q.opts.MaxRescues)
	setDefault(&r.Retention, q.opts.Retention)
	setDefault(&r.WhenFull, q.opts.WhenFull)
	if r.MaxDepth == 0 {
		r.MaxDepth = q.depth(r.Queue)
	}
	r.RunAt, r.StartBefore = ceil(r.RunAt), ceil(r.StartBefore)
}

func (q *Queue) depth(queue string) int {
	if n, ok := q.opts.Depth[queue]; ok {
		return n
	}
	if n, ok := q.opts.Depth[""]; ok {
		return n
	}
	return Unlimited
}

func (q *Queue) validate(reqs []*Request) error {
	size := 0
	for _, r := range reqs {
		if err := r.Validate(); err != nil {
			return err
		}
		if len(r.Payload) > q.opts.MaxPayload {
			return &InvalidError{"Payload", fmt.Sprintf("at most %d bytes", q.opts.MaxPayload)}
		}
		size += len(r.Payload)
	}
	if size > MaxBatchBytes && len(reqs) > 1 {
		return &InvalidError{"requests", "at most 64 MiB of payload in one call"}
	}
	return nil
}

// WithTx returns the Queue's writing half inside a caller's transaction: w
// comes from the storage's own Tx or SQLTx method. What it writes is seen, and
// its jobs run, only after the caller has committed. What q itself writes is no
// part of the transaction and, on SQLite, waits for its end.
func (q *Queue) WithTx(w Writer) *Tx {
	if w == nil {
		panic("pawl: WithTx without a Writer")
	}
	return &Tx{q: q, w: w, enqueue: q.middleware(enqueueRejecting(w.Enqueue))}
}

// A Tx enqueues and settles inside a caller's transaction. It must be used as
// the transaction may be: not concurrently, not after its end.
type Tx struct {
	q       *Queue
	w       Writer
	enqueue EnqueueFunc
}

// Enqueue is [Queue.Enqueue] in the transaction.
func (tx *Tx) Enqueue(ctx context.Context, r *Request) (Receipt, error) {
	return enqueueOne(ctx, tx.EnqueueMany, r)
}

// EnqueueMany is [Queue.EnqueueMany] in the transaction.
func (tx *Tx) EnqueueMany(ctx context.Context, reqs []*Request) ([]Receipt, error) {
	return tx.q.enqueueBy(ctx, tx.enqueue, reqs)
}

// Ack completes the job if and when the transaction commits, which makes the
// effects of the handler in this database happen exactly once. The pool that
// runs the handler verifies the commit.
func (tx *Tx) Ack(ctx context.Context, j *Job, result []byte) error {
	return tx.settle(ctx, j, Outcome{Ref: j.Ref, Verb: Ack, Result: result})
}

// Nack is [Queue.Nack] in the transaction.
func (tx *Tx) Nack(ctx context.Context, j *Job, cause error) error {
	if cause == nil {
		return errNilCause
	}
	return tx.settle(ctx, j, OutcomeOf(j, cause, tx.q.opts.Backoff))
}

// Bury is [Queue.Bury] in the transaction.
func (tx *Tx) Bury(ctx context.Context, j *Job, cause error) error {
	return tx.settle(ctx, j, buryOutcome(j, cause))
}

func (tx *Tx) settle(ctx context.Context, j *Job, o Outcome) error {
	if err := tx.q.cleanOutcome(&o); err != nil {
		return err
	}
	lost, err := tx.w.Settle(ctx, []Outcome{o})
	if err != nil {
		return err
	}
	if len(lost) > 0 {
		return ErrLost
	}
	atomic.StoreUint32(&j.verb, uint32(o.Verb))
	return nil
}

// ClaimOptions narrow a [Queue.Claim].
type ClaimOptions struct {
	// Queues are emptied in this order. None means the default queue.
	Queues []string
	// Kinds are those wanted; other jobs that come up are handed back with a
	// growing delay ([SkipDelay]). None means all.
	Kinds []string
	// Lease is how long the claim lasts where the job does not say. 0 means
	// Options.Lease.
	Lease time.Duration
}

// Claim waits until it has claimed a job, or ctx ends. Whoever claims a job by
// hand must settle it, or extend it, before its lease ends. If there are already
// Options.MaxWaiters callers who wait, it returns ErrTooManyWaiters at once.
func (q *Queue) Claim(ctx context.Context, o *ClaimOptions) (*Job, error) {
	spec, kinds, err := q.claimSpec(o)
	if err != nil {
		return nil, err
	}
	w, err := q.hub.join(ctx, spec.Queues)
	if err != nil {
		return nil, err
	}
	defer q.hub.leave(w)
	for {
		q.sweepSometimes(ctx)
		job, next, err := q.claimOne(ctx, spec, kinds)
		if err != nil {
			return nil, err
		}
		if job != nil {
			q.hub.waiters.WakeOne(job.Queue)
			return job, nil
		}
		if err := waitForJob(ctx, w, q.opts.Poll, next); err != nil {
			return nil, err
		}
	}
}

func (q *Queue) claimSpec(o *ClaimOptions) (spec ClaimSpec, kinds []string, err error) {
	if o == nil {
		o = &ClaimOptions{}
	}
	spec = ClaimSpec{Max: 1, Lease: o.Lease, Worker: q.opts.WorkerID}
	setDefault(&spec.Lease, q.opts.Lease)
	queues := o.Queues
	if len(queues) == 0 {
		queues = []string{DefaultQueue}
	}
	for _, name := range queues {
		spec.Queues = append(spec.Queues, QueueAsk{name, 1})
	}
	for _, kind := range o.Kinds {
		if !text.IsName(kind, MaxNameLen) {
			return spec, nil, &InvalidError{"Kinds", nameLimit}
		}
	}
	return spec, o.Kinds, spec.validate()
}

// claimOne claims until it finds a job of the kinds wanted or no job at all.
func (q *Queue) claimOne(ctx context.Context, spec ClaimSpec, kinds []string) (*Job, time.Duration, error) {
	for {
		c, err := q.ClaimBatch(ctx, spec)
		if err != nil || len(c.Jobs) == 0 {
			return nil, c.NextDue, err
		}
		job := c.Jobs[0]
		if len(kinds) == 0 || slices.Contains(kinds, job.Kind) {
			return job, 0, nil
		}
		if err := q.skip(ctx, job); err != nil {
			return nil, 0, err
		}
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
	}
}

// skip hands back a job of another kind, also if ctx has ended since it was
// claimed.
func (q *Queue) skip(ctx context.Context, j *Job) error {
	ctx, cancel := outliving(ctx)
	defer cancel()
	_, err := q.Settle(ctx, []Outcome{{Ref: j.Ref, Verb: Skip, Delay: SkipDelay(j.Counts.Skips)}})
	if err != nil {
		return err
	}
	// Those who want this kind must learn when it is due again.
	q.hub.waiters.WakeEach(j.Queue)
	return nil
}

// recoverTimeout bounds how long each call of a Claim that hands back takes, after its caller has gone,
// what it has claimed, or may have if the reply was lost.
const recoverTimeout = 2 * time.Second

// outliving returns a context that ends recoverTimeout after ctx.
func outliving(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		sleep(longer, recoverTimeout)
		cancel()
	})
	return longer, func() { stop(); cancel() }
}

// ClaimBatch claims up to spec.Max jobs and does not wait for jobs to come; it
// is for those who write a pool. A zero Token is filled in. If the storage's
// reply is lost, ClaimBatch asks once more for the jobs of the same token, and
// hands them back if ctx has ended meanwhile.
func (q *Queue) ClaimBatch(ctx context.Context, spec ClaimSpec) (Claimed, error) {
	if err := spec.validate(); err != nil {
		return Claimed{}, err
	}
	spec.fillToken()
	c, err := q.claim(ctx, spec)
	if err == nil || !unknownOutcome(err) {
		return c, err
	}
	spec.Repeat = true
	if ctx.Err() == nil {
		c, err = q.claim(ctx, spec)
		if err == nil || !unknownOutcome(err) {
			return c, err
		}
	}
	if ctx.Err() != nil {
		q.handBack(ctx, spec)
	}
	return Claimed{}, err
}

// claim claims and takes in what came.
func (q *Queue) claim(ctx context.Context, spec ClaimSpec) (Claimed, error) {
	c, err := q.storage.Claim(ctx, spec)
	q.claimed(c.Jobs)
	return c, err
}

func (q *Queue) claimed(jobs []*Job) {
	now := time.Now()
	for _, j := range jobs {
		j.claimed = now
	}
	q.announceRoom(jobs)
}

// announceRoom tells one of those who wait for room of each job claimed.
func (q *Queue) announceRoom(claimed []*Job) {
	if q.rooms.Empty() {
		return
	}
	queues := make([]string, len(claimed))
	for i, j := range claimed {
		queues[i] = j.Queue
	}
	q.rooms.Tell(queues...)
}

// handBack releases what a claim of unknown outcome has claimed. It tries again while there is
// time, since nobody else will: after that the leases end by themselves.
func (q *Queue) handBack(ctx context.Context, spec ClaimSpec) {
	var outcomes []Outcome
	err := insist(ctx, func(ctx context.Context) error {
		c, err := q.storage.Claim(ctx, spec)
		outcomes = nil
		for _, j := range c.Jobs {
			outcomes = append(outcomes, Outcome{Ref: j.Ref, Verb: Release})
		}
		return err
	})
	if err == nil && len(outcomes) > 0 {
		err = insist(ctx, func(ctx context.Context) error {
			_, err := q.Settle(ctx, outcomes)
			for i := range outcomes {
				outcomes[i].Repeat = true
			}
			return err
		})
	}
	if err != nil {
		q.log.WarnContext(ctx, "pawl: claimed jobs could not be handed back", "jobs", len(outcomes), "err", err)
	}
}

// insist calls f until it succeeds or can't, or recoverTimeout is over after the end of ctx. It
// returns the last error.
func insist(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := outliving(ctx)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil || !unknownOutcome(err) || ctx.Err() != nil {
			return err
		}
		sleep(ctx, insistPause)
	}
}

// insistPause lies between tries of what should succeed soon.
const insistPause = 50 * time.Millisecond

// unknownOutcome reports whether a call that returned err may have had its
// effect all the same.
func unknownOutcome(err error) bool {
	for _, known := range []error{ErrInvalid, ErrFull, ErrUnsupported, ErrSchema, ErrClosed, ErrTxOver} {
		if errors.Is(err, known) {
			return false
		}
	}
	return true
}

// Ack completes a claimed job and keeps the result, which may be nil. It
// returns ErrLost if the claim is no longer current. After any other error the
// same call may be repeated.
func (q *Queue) Ack(ctx context.Context, j *Job, result []byte) error {
	return q.settleOne(ctx, j, Outcome{Ref: j.Ref, Verb: Ack, Result: result})
}

// Nack reports that a claimed job failed. It waits for its next attempt as
// Options.Backoff says, or is buried if that was the last; cause may be a
// [RetryAfter], [Permanent] or [Snooze]. Errors are as for Ack.
func (q *Queue) Nack(ctx context.Context, j *Job, cause error) error {
	if cause == nil {
		return errNilCause
	}
	return q.settleOne(ctx, j, OutcomeOf(j, cause, q.opts.Backoff))
}

var errNilCause = &InvalidError{"cause", "given; it is nil"}

// Bury moves a claimed job to the dead-letter queue. Errors are as for Ack.
func (q *Queue) Bury(ctx context.Context, j *Job, cause error) error {
	return q.settleOne(ctx, j, buryOutcome(j, cause))
}

func buryOutcome(j *Job, cause error) Outcome {
	o := Outcome{Ref: j.Ref, Verb: Bury}
	if cause != nil {
		o.Error = cause.Error()
	}
	return o
}

// ReleaseOptions say how a job is handed back.
type ReleaseOptions struct {
	Delay    time.Duration // 0 keeps its place
	Priority *int          // nil leaves it
}

// Release hands a claimed job back, its attempt unspent. Errors are as for Ack.
func (q *Queue) Release(ctx context.Context, j *Job, o *ReleaseOptions) error {
	if o == nil {
		o = &ReleaseOptions{}
	}
	return q.settleOne(ctx, j, Outcome{Ref: j.Ref, Verb: Release, Delay: o.Delay, Priority: o.Priority})
}

func (q *Queue) settleOne(ctx context.Context, j *Job, o Outcome) error {
	// A call that is made again after an error must find its own effect.
	o.Repeat = Verb(atomic.LoadUint32(&j.tried)) == o.Verb
	lost, err := q.Settle(ctx, []Outcome{o})
	if err != nil {
		if unknownOutcome(err) {
			atomic.StoreUint32(&j.tried, uint32(o.Verb))
		}
		return err
	}
	if len(lost) > 0 {
		return ErrLost
	}
	return nil
}

// Settle settles claims and returns those that were lost; it is for those who
// write a pool. Error texts are cleaned and cut, delays clamped. A [BusyError]
// names all that were left; after any other error, those beyond the first
// MaxStep may not have been tried.
func (q *Queue) Settle(ctx context.Context, outcomes []Outcome) (lost []Ref, err error) {
	if outcomes, err = q.cleanOutcomes(outcomes); err != nil {
		return nil, err
	}
	var busy BusyError
	for chunk := range slices.Chunk(outcomes, MaxStep) {
		l, err := q.storage.Settle(ctx, chunk)
		lost = append(lost, l...)
		var b *BusyError
		switch {
		case errors.As(err, &b):
			busy.Refs = append(busy.Refs, b.Refs...)
		case err != nil:
			return lost, err
		}
		q.announceEnds(chunk)
	}
	if len(busy.Refs) > 0 {
		return lost, &busy
	}
	return lost, nil
}

// Cycle settles and claims, in one round trip where the storage can. With a
// [BusyError] the claim was made; after any other error all of it is unknown:
// repeat the outcomes with Repeat, and the claim with its Token and Repeat. A
// zero Token is filled in.
func (q *Queue) Cycle(ctx context.Context, outcomes []Outcome, spec ClaimSpec) (lost []Ref, c Claimed, err error) {
	if err := spec.validate(); err != nil {
		return nil, c, err
	}
	spec.fillToken()
	var busy *BusyError
	cycler, ok := Find[Cycler](q.storage)
	if !ok || len(outcomes) == 0 || len(outcomes) > MaxStep {
		lost, err = q.Settle(ctx, outcomes)
		if err != nil && !errors.As(err, &busy) {
			return lost, c, err
		}
		c, claimErr := q.claim(ctx, spec)
		return lost, c, cmp.Or(claimErr, err)
	}
	if outcomes, err = q.cleanOutcomes(outcomes); err != nil {
		return nil, c, err
	}
	lost, c, err = cycler.Cycle(ctx, outcomes, spec)
	q.claimed(c.Jobs)
	if err == nil || errors.As(err, &busy) {
		q.announceEnds(outcomes)
	}
	return lost, c, err
}

func (q *Queue) cleanOutcomes(outcomes []Outcome) ([]Outcome, error) {
	outcomes = slices.Clone(outcomes)
	for i := range outcomes {
		if err := q.cleanOutcome(&outcomes[i]); err != nil {
			return nil, err
		}
	}
	return outcomes, nil
}

func (q *Queue) cleanOutcome(o *Outcome) error {
	switch {
	case o.Verb < Ack || o.Verb > Skip:
		return &InvalidError{"Verb", "one of the verbs"}
	case len(o.Result) > q.opts.MaxPayload:
		return &InvalidError{"Result", fmt.Sprintf("at most %d bytes", q.opts.MaxPayload)}
	case o.Priority != nil && (*o.Priority < -MaxPriority || *o.Priority > MaxPriority):
		return &InvalidError{"Priority", "between -1000 and 1000"}
	}
	o.Error = text.Clean(o.Error, MaxErrorText)
	o.Stack = text.Clean(o.Stack, MaxErrorText)
	o.Delay = min(max(o.Delay, 0), MaxAhead)
	return nil
}

// ExtendOptions say what an Extend changes beside the lease.
type ExtendOptions struct {
	// Lease 0 means the job's own, or that of its claim, or Options.Lease if the
	// Job is not the one that this Queue claimed.
	Lease    time.Duration
	Progress *Progress
}

// Extend lets the lease of a claimed job begin anew, which beanstalkd calls
// touch, and may report progress. It returns ErrLost if the claim is no longer
// current, and an InvalidError, having done nothing, beyond Options.ExtendLimits,
// which may also shorten the lease.
func (q *Queue) Extend(ctx context.Context, j *Job, o *ExtendOptions) error {
	if o == nil {
		o = &ExtendOptions{}
	}
	lease := cmp.Or(o.Lease, j.Lease)
	if lease == 0 && !j.claimed.IsZero() { // else LeaseUntil may be that of an Extend
		lease = j.LeaseUntil.Sub(j.ClaimedAt)
	}
	setDefault(&lease, q.opts.Lease)
	lease, err := q.mayExtend(j, lease)
	if err != nil {
		return err
	}
	lost, err := q.ExtendBatch(ctx, []Renewal{{Ref: j.Ref, Lease: lease, Progress: o.Progress}})
	if err != nil {
		return err
	}
	if len(lost) > 0 {
		q.holds.Forget(claimKey{j.ID, j.Fence})
		return ErrLost
	}
	return nil
}

// claimKey names a claim.
type claimKey struct {
	id    ID
	fence int64
}

// mayExtend returns the lease that the limits leave of the one asked for, and
// counts one more Extend.
func (q *Queue) mayExtend(j *Job, lease time.Duration) (time.Duration, error) {
	l := q.opts.ExtendLimits
	if l == (ExtendLimits{}) {
		return lease, nil
	}
	claimed := j.claimed
	if claimed.IsZero() { // this Queue did not claim it, or j was read since
		claimed = j.ClaimedAt
	}
	left, beyond := q.holds.Extend(claimKey{j.ID, j.Fence}, claimed, hold.Limits(l), MinLease, lease)
	switch beyond {
	case hold.Count:
		return 0, &InvalidError{"ExtendLimits.Count", fmt.Sprintf("kept: at most %d Extends of one claim", l.Count)}
	case hold.Total:
		return 0, &InvalidError{"ExtendLimits.Total", fmt.Sprintf("kept: leases of at most %v after the claim", l.Total)}
	case hold.Every:
		return 0, &InvalidError{"ExtendLimits.Every", fmt.Sprintf("kept: %v after the Extend before", l.Every)}
	}
	return left, nil
}

// ExtendBatch extends claims in one call and returns those that were lost; it is for
// those who write a pool. A zero Lease means Options.Lease.
func (q *Queue) ExtendBatch(ctx context.Context, renewals []Renewal) (lost []Ref, err error) {
	renewals = slices.Clone(renewals)
	for i := range renewals {
		r := &renewals[i]
		setDefault(&r.Lease, q.opts.Lease)
		if err := errors.Join(validateLease(r.Lease), r.Progress.validate()); err != nil {
			return nil, err
		}
	}
	for chunk := range slices.Chunk(renewals, MaxStep) {
		l, err := q.storage.Extend(ctx, chunk)
		lost = append(lost, l...)
		if err != nil {
			return lost, err
		}
	}
	return lost, nil
}

// sweepEvery is how often claimers of a process sweep; with the lease it bounds
// how long the job of a dead worker waits.
const sweepEvery = 5 * time.Second

// Sweep does once what is due because time passed, see [Storage]. Pools and
// waiting claimers do it by themselves.
func (q *Queue) Sweep(ctx context.Context) (Swept, error) {
	swept, err := q.storage.Sweep(ctx, SweepSpec{
		Limit:           MaxStep,
		BuriedRetention: q.opts.BuriedRetention,
		MaxCompleted:    q.opts.MaxCompleted,
		MaxBuried:       q.opts.MaxBuried,
		MaxCanceled:     q.opts.MaxCanceled,
	})
	if swept.Expired > 0 {
		q.rooms.TellAll()
	}
	return swept, err
}

func (q *Queue) sweepSometimes(ctx context.Context) {
	last, now := q.swept.Load(), int64(time.Since(q.began))
	if now-last < int64(sweepEvery) || !q.swept.CompareAndSwap(last, now) {
		return
	}
	if _, err := q.Sweep(ctx); err != nil && ctx.Err() == nil {
		q.log.WarnContext(ctx, "pawl: sweep failed", "err", err)
	}
}

// Watch calls f with the storage's events until ctx ends; see [Watcher]. It
// returns ErrUnsupported if the storage has none.
func (q *Queue) Watch(ctx context.Context, f func(Event)) error {
	w, ok := Find[Watcher](q.storage)
	if !ok {
		return ErrUnsupported
	}
	return w.Watch(ctx, f)
}

// Get returns a job, or ErrNotFound. An empty queue searches all of them.
func (q *Queue) Get(ctx context.Context, queue string, id ID) (*Job, error) {
	if err := validateQueue(queue); err != nil {
		return nil, err
	}
	jobs, err := q.storage.Get(ctx, queue, id)
	if err != nil {
		return nil, err
	}
	if len(jobs) == 0 || jobs[0] == nil {
		return nil, fmt.Errorf("%w: %v", ErrNotFound, id)
	}
	return jobs[0], nil
}

// Peek returns the first job of the queue in that state, in the order of
// [Admin].List: the next ready, the next due, the one buried first. It returns
// ErrNotFound if there is none.
func (q *Queue) Peek(ctx context.Context, queue string, state State) (*Job, error) {
	spec := ListSpec{Filter: Filter{Queue: queue, States: []State{state}}, Limit: 1, Payloads: true}
	for {
		page, err := q.List(ctx, spec)
		if err != nil {
			return nil, err
		}
		if len(page.Jobs) > 0 {
			return page.Jobs[0], nil
		}
		if page.Next == "" {
			return nil, fmt.Errorf("%w: %v in %q", ErrNotFound, state, queue)
		}
		spec.Cursor = page.Next
	}
}

// List returns a page of jobs, see [Admin]. A zero Limit means 100.
func (q *Queue) List(ctx context.Context, spec ListSpec) (Page, error) {
	setDefault(&spec.Limit, 100)
	if spec.Limit < 1 || spec.Limit > MaxStep {
		return Page{}, &InvalidError{"Limit", "between 1 and 1000"}
	}
	if err := validateQueue(spec.Queue); err != nil {
		return Page{}, err
	}
	for _, s := range spec.States {
		if s < Scheduled || s > Canceled {
			return Page{}, &InvalidError{"States", "known states"}
		}
	}
	return q.storage.List(ctx, spec)
}

// validateQueue refuses what is neither a name nor empty, which means all queues:
// it may come from whoever asks, and goes into keys and statements.
func validateQueue(queue string) error {
	if queue != "" && !text.IsName(queue, MaxNameLen) {
		return &InvalidError{"Queue", nameLimit}
	}
	return nil
}

// Jobs ranges over all jobs that match, without payloads, page by page. It
// ends at the first error.
func (q *Queue) Jobs(ctx context.Context, f Filter) iter.Seq2[*Job, error] {
	return func(yield func(*Job, error) bool) {
		spec := ListSpec{Filter: f, Limit: MaxStep}
		for {
			page, err := q.List(ctx, spec)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, j := range page.Jobs {
				if !yield(j, nil) {
					return
				}
			}
			if spec.Cursor = page.Next; spec.Cursor == "" {
				return
			}
		}
	}
}

// Stats returns the numbers of the named queues, or of all known ones, in order
// of name.
func (q *Queue) Stats(ctx context.Context, queues ...string) ([]QueueStats, error) {
	for _, name := range queues {
		if !text.IsName(name, MaxNameLen) {
			return nil, &InvalidError{"queues", nameLimit}
		}
	}
	stats, err := q.storage.Count(ctx, queues...)
	for i := range stats {
		stats[i].Waiting = q.hub.waiters.Count(stats[i].Queue)
	}
	return stats, err
}

// Queues returns the names of the queues that hold a job or a setting.
func (q *Queue) Queues(ctx context.Context) ([]string, error) {
	stats, err := q.storage.Count(ctx)
	names := make([]string, len(stats))
	for i, s := range stats {
		names[i] = s.Queue
	}
	return names, err
}

// Pause keeps the queue's jobs from being claimed, in all processes, until
// Resume. Jobs already claimed go on. A queue may be paused before it holds a
// job; it is known from then on.
func (q *Queue) Pause(ctx context.Context, queue string) error {
	return q.configure(ctx, queue, QueueSettings{Paused: new(true)})
}

// Resume ends a Pause.
func (q *Queue) Resume(ctx context.Context, queue string) error {
	return q.configure(ctx, queue, QueueSettings{Paused: new(false)})
}

func (q *Queue) configure(ctx context.Context, queue string, s QueueSettings) error {
	if !text.IsName(queue, MaxNameLen) {
		return &InvalidError{"Queue", nameLimit}
	}
	return q.storage.Configure(ctx, queue, s)
}

// Kick makes a buried, canceled or completed job ready again, with all its
// attempts. An empty queue searches all of them. It returns ErrNotFound, an
// InvalidError if the job is in another state, or a ConflictError if another
// job holds its unique key.
func (q *Queue) Kick(ctx context.Context, queue string, id ID) error {
	return q.change(ctx, Change{Verb: Kick, Queue: queue}, id)
}

// KickAll kicks the buried and canceled jobs that match, up to n of them (0
// means all), in the order of List: by queue, buried before canceled, the one
// that ended first first. Jobs whose unique key is held stay. It works in
// steps and returns how many jobs it kicked, even on an error.
func (q *Queue) KickAll(ctx context.Context, f Filter, n int) (int, error) {
	return q.changeAll(ctx, Change{Verb: Kick, From: []State{Buried, Canceled}}, f, n)
}

// Cancel ends a waiting or running job. The handler of a running one finds its
// context cancelled and its claim lost. Queue and errors are as for Kick.
func (q *Queue) Cancel(ctx context.Context, queue string, id ID) error {
	return q.change(ctx, Change{Verb: Cancel, Queue: queue}, id)
}

// CancelAll cancels the waiting and running jobs that match, as KickAll does.
func (q *Queue) CancelAll(ctx context.Context, f Filter, n int) (int, error) {
	return q.changeAll(ctx, Change{Verb: Cancel}, f, n)
}

// Delete removes a job of any state, a running one too. An empty queue searches
// all of them. It returns ErrNotFound if there is none.
func (q *Queue) Delete(ctx context.Context, queue string, id ID) error {
	return q.change(ctx, Change{Verb: Delete, Queue: queue}, id)
}

// DeleteAll deletes the jobs that match, as KickAll does.
func (q *Queue) DeleteAll(ctx context.Context, f Filter, n int) (int, error) {
	return q.changeAll(ctx, Change{Verb: Delete}, f, n)
}

// RunNow makes a scheduled job due. Queue and errors are as for Kick.
func (q *Queue) RunNow(ctx context.Context, queue string, id ID) error {
	return q.change(ctx, Change{Verb: Reschedule, Queue: queue}, id)
}

// Reschedule sets when a waiting job becomes due. Queue and errors are as for Kick.
func (q *Queue) Reschedule(ctx context.Context, queue string, id ID, at time.Time) error {
	if !inReach(at) {
		return &InvalidError{"RunAt", timeLimit}
	}
	return q.change(ctx, Change{Verb: Reschedule, Queue: queue, RunAt: ceil(at)}, id)
}

// Edit rewrites fields of a waiting job. Queue and errors are as for Kick.
func (q *Queue) Edit(ctx context.Context, queue string, id ID, e EditFields) error {
	if err := q.validateEdit(&e); err != nil {
		return err
	}
	return q.change(ctx, Change{Verb: Edit, Queue: queue, Edit: e}, id)
}

// validateEdit checks e by the rules of a Request.
func (q *Queue) validateEdit(e *EditFields) error {
	r := Request{Kind: "edit", Payload: e.Payload, Meta: e.Meta}
	q.fillOne(&r)
	assign(&r.Priority, e.Priority)
	assign(&r.Timeout, e.Timeout)
	assign(&r.Lease, e.Lease)
	assign(&r.MaxAttempts, e.MaxAttempts)
	assign(&r.Retention, e.Retention)
	if e.StartBefore != nil {
		r.StartBefore = ceil(*e.StartBefore)
		e.StartBefore = &r.StartBefore
	}
	return q.validate([]*Request{&r})
}

func assign[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

func (q *Queue) change(ctx context.Context, c Change, id ID) error {
	if err := validateQueue(c.Queue); err != nil {
		return err
	}
	c.IDs = []ID{id}
	if c.From == nil {
		c.From = c.Verb.From()
	}
	changed, err := q.storage.Change(ctx, c)
	if err != nil {
		return err
	}
	switch r := changed[0]; r.Status {
	case Done:
		q.announceChanged(c.Verb, changed)
		return nil
	case NotFound:
		return fmt.Errorf("%w: %v", ErrNotFound, id)
	case Conflict:
		return &ConflictError{r.Holder}
	default:
		return &InvalidError{"State", fmt.Sprintf("one of %v to %v the job; it is %v", c.From, c.Verb, r.Before)}
	}
}

func (q *Queue) changeAll(ctx context.Context, c Change, f Filter, n int) (done int, err error) {
	if c.From == nil {
		c.From = c.Verb.From()
	}
	if c.From = intersect(c.From, f.States); len(c.From) == 0 {
		return 0, nil
	}
	f.States = c.From
	spec := ListSpec{Filter: f, Limit: MaxStep}
	for {
		if n > 0 {
			spec.Limit = min(MaxStep, n-done)
		}
		page, err := q.List(ctx, spec)
		if err != nil {
			return done, err
		}
		d, err := q.changePage(ctx, c, page.Jobs)
		done += d
		if err != nil || page.Next == "" || n > 0 && done >= n {
			return done, err
		}
		spec.Cursor = page.Next
	}
}

// changePage applies c to jobs, which come queue by queue.
func (q *Queue) changePage(ctx context.Context, c Change, jobs []*Job) (done int, err error) {
	for len(jobs) > 0 {
		c.Queue, c.IDs = jobs[0].Queue, nil
		for len(jobs) > 0 && jobs[0].Queue == c.Queue {
			c.IDs = append(c.IDs, jobs[0].ID)
			jobs = jobs[1:]
		}
		changed, err := q.storage.Change(ctx, c)
		if err != nil {
			return done, err
		}
		for _, r := range changed {
			if r.Status == Done {
				done++
			}
		}
		q.announceChanged(c.Verb, changed)
	}
	return done, nil
}

func (q *Queue) announceChanged(v ChangeVerb, changed []Changed) {
	if v != Cancel && v != Delete {
		return
	}
	q.rooms.TellAll()
	for _, r := range changed {
		q.ends.WakeEach(r.ID)
	}
}

// announceEnds tells those who wait in this process for jobs that may have
// become final.
func (q *Queue) announceEnds(outcomes []Outcome) {
	if q.ends.Empty() {
		return
	}
	for _, o := range outcomes {
		if o.Verb == Ack || o.Verb == Nack || o.Verb == Bury {
			q.ends.WakeEach(o.Ref.ID)
		}
	}
}

func intersect(a, b []State) []State {
	if len(b) == 0 {
		return a
	}
	return slices.DeleteFunc(slices.Clone(a), func(s State) bool { return !slices.Contains(b, s) })
}

// Wait waits until all the jobs are final (completed, buried or canceled) and
// returns them, or until ctx ends. A job must be kept to be found: one with
// DeleteNow gives ErrInvalid, one that is not there ErrNotFound.
func (q *Queue) Wait(ctx context.Context, queue string, ids ...ID) ([]*Job, error) {
	if err := validateQueue(queue); err != nil {
		return nil, err
	}
	w := q.ends.Join(ids)
	defer q.ends.Leave(w)
	poll := wake.NewPoll(q.opts.Poll)
	for {
		jobs, done, err := q.waited(ctx, queue, ids)
		if err != nil || done {
			return jobs, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-w.C:
		case <-time.After(poll.Next()):
		}
	}
}

func (q *Queue) waited(ctx context.Context, queue string, ids []ID) (jobs []*Job, done bool, err error) {
	done = true
	for chunk := range slices.Chunk(ids, MaxStep) {
		found, err := q.storage.Get(ctx, queue, chunk...)
		if err != nil {
			return nil, false, err
		}
		for i, j := range found {
			switch {
			case j == nil:
				return nil, false, fmt.Errorf("%w: %v", ErrNotFound, chunk[i])
			case j.State.Final():
			case j.Retention == DeleteNow:
				return nil, false, &InvalidError{"Retention", "not DeleteNow for a job to be waited for"}
			default:
				done = false
			}
		}
		jobs = append(jobs, found...)
	}
	return jobs, done, nil
}

// A hub holds the claimers that wait in this process and, while there are any,
// watches the storage for them.
type hub struct {
	storage Storage
	most    int // Options.MaxWaiters
	waiters wake.Set[string]

	mu       sync.Mutex
	n        int
	watching bool               // the goroutine of watch is there
	stop     context.CancelFunc // ends the present Watch
}

func (h *hub) join(ctx context.Context, queues []QueueAsk) (*wake.Waiter[string], error) {
	names := make([]string, len(queues))
	for i, q := range queues {
		names[i] = q.Queue
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n >= h.most {
		return nil, ErrTooManyWaiters
	}
	if h.n++; !h.watching {
		h.beginWatch(context.WithoutCancel(ctx))
	}
	return h.waiters.Join(names), nil
}

func (h *hub) beginWatch(ctx context.Context) {
	if w, ok := Find[Watcher](h.storage); ok {
		h.watching = true
		go h.watch(ctx, w)
	}
}

// leave does not wait for Watch to end, which takes long if the storage is out of
// reach.
func (h *hub) leave(w *wake.Waiter[string]) {
	h.waiters.Leave(w)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n--; h.n == 0 && h.stop != nil {
		h.stop()
	}
}

// watch watches until nobody waits. Those who join while a Watch ends poll until
// the next one begins, so that there are never two.
func (h *hub) watch(parent context.Context, w Watcher) {
	for {
		ctx, ok := h.watchMore(parent)
		if !ok {
			return
		}
		// Should it fail, claimers still poll.
		for w.Watch(ctx, h.event); ctx.Err() == nil; w.Watch(ctx, h.event) {
			sleep(ctx, watchAgain)
		}
	}
}

// watchMore returns the context of one more Watch, or false if nobody waits.
func (h *hub) watchMore(parent context.Context) (ctx context.Context, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n == 0 {
		h.watching, h.stop = false, nil
		return nil, false
	}
	ctx, h.stop = context.WithCancel(parent)
	return ctx, true
}

// watchAgain is how long after a Watch that failed the next one begins.
const watchAgain = time.Second

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// event wakes one claimer, who wakes the next if it finds a job: many claimers
// do not rush for one job.
func (h *hub) event(e Event) {
	switch {
	case e.Kind != EventReady:
	case e.Queue == "":
		h.waiters.WakeAll()
	default:
		h.waiters.WakeOne(e.Queue)
	}
}

// waitForJob returns when it is time to claim again, or ctx's error.
func waitForJob(ctx context.Context, w *wake.Waiter[string], poll, nextDue time.Duration) error {
	if nextDue > 0 {
		poll = min(poll, nextDue)
	}
	timer := time.NewTimer(poll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.C:
		return nil
	case <-timer.C:
		return nil
	}
}
