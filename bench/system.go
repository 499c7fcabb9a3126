package main

import (
	"context"
	"strings"
	"time"
)

// A System is one queue under measurement, in a place of its own. Its methods
// may be called concurrently.
type System interface {
	// Enqueue stores one job in a call of its own.
	Enqueue(ctx context.Context, j Job) error
	// EnqueueMany stores jobs in the fastest way that the system documents.
	EnqueueMany(ctx context.Context, jobs []Job) error
	// Work starts workers that call h for each job, until they are stopped.
	Work(ctx context.Context, h Handler) (Workers, error)
	Close() error
}

// Workers are those that a System has started.
type Workers interface {
	// Settled reports whether the first n jobs are recorded as done.
	Settled(ctx context.Context, n int64) (bool, error)
	Stop() error
}

// Batcher are Workers that know how many jobs a claim of theirs had.
type Batcher interface {
	JobsPerClaim() float64
}

// TxSystem is a System that enqueues in transactions of the caller.
type TxSystem interface {
	// InTx begins a transaction, writes a row of business in it, enqueues the
	// jobs, calls hold if it is not nil, commits, and says when.
	InTx(ctx context.Context, jobs []Job, hold func()) (committed time.Time, err error)
}

// UniqueSystem is a System with unique keys.
type UniqueSystem interface {
	// EnqueueUnique stores the job unless one with its number is there, and
	// reports whether it did.
	EnqueueUnique(ctx context.Context, j Job) (stored bool, err error)
}

// Canceler is a System that can cancel a running job.
type Canceler interface {
	// EnqueueKnown is Enqueue that returns what cancels the job.
	EnqueueKnown(ctx context.Context, j Job) (cancel func(context.Context) error, err error)
}

// Finisher is a System whose finished jobs can be made in bulk.
type Finisher interface {
	Finish(ctx context.Context, n int) error
}

// Pauser is a System whose queues can be paused.
type Pauser interface {
	Pause(ctx context.Context, queue string) error
}

// Claimer is a System that claims in batches by hand.
type Claimer interface {
	// Cycle claims up to n jobs of the queues and acks them, and says how long
	// the claim took.
	Cycle(ctx context.Context, n int, queues ...string) (claimed int, took time.Duration, err error)
}

// Purger is a System whose old records can be removed at will.
type Purger interface {
	// FinishOld makes n finished jobs whose retention is over.
	FinishOld(ctx context.Context, n int) error
	// Purge removes a batch of what is over.
	Purge(ctx context.Context) error
}

// A Handler is told the number of the job.
type Handler func(ctx context.Context, n int64) error

// A Job is one to be enqueued.
type Job struct {
	Args
	Queue   string // empty: the one that is worked
	Delay   time.Duration
	Foreign bool // of a kind that no worker knows
}

// Args are the arguments of every job, as JSON.
type Args struct {
	N   int64  `json:"n"`
	Pad string `json:"pad"`
}

// kind and foreignKind are the kinds of jobs, queueName is where they wait.
const (
	kind        = "bench"
	foreignKind = "foreign"
	queueName   = "default"
)

// Kind implements the arguments of pawl and of River.
func (Args) Kind() string { return kind }

// newJob makes job n, whose arguments take about size bytes.
func newJob(n int64, size int) Job {
	const overhead = len(`{"n":12345,"pad":""}`)
	return Job{Args: Args{N: n, Pad: strings.Repeat("x", max(size-overhead, 0))}}
}

// Retentions.
const (
	history   = "history" // finished jobs are kept
	deleteNow = "delete"  // finished jobs are deleted at once
)

// Configurations of peers.
const (
	best     = "best" // the fastest that is documented
	defaults = "defaults"
)

// A Variant is how a system is set up.
type Variant struct {
	Config    string
	Slots     int // jobs that run at the same time
	Batch     int // of a claim, where a system has no slots
	Retention string
	Extra     bool // not the best of its peer, and left out of a quick run
	Payload   int
	PollOnly  bool          // without wake-ups from the database
	Apart     bool          // enqueue and work as two processes would
	Retry     time.Duration // when a failed job runs again; 0: the default
}

// A Contender is a system that takes part.
type Contender struct {
	Name, Storage string
	// Variants are those to be measured in a workload.
	Variants func(w *Workload) []Variant
	Open     func(ctx context.Context, p *Place, v Variant) (System, error)
}

// contenders lists all that take part, pawl first.
func contenders() []*Contender {
	return []*Contender{
		pawlPostgres(), enginePostgres(), rawPostgres(), riverPostgres(), gueQueue(), neoqPostgres(),
		pawlSQLite(), engineSQLite(), riverSQLite(), goqiteQueue(), backliteQueue(),
		pawlRedis(), engineRedis(), rawRedis(), asynqQueue(),
		pawlMySQL(), engineMySQL(), rawMySQL(), textbook(),
		pawlMemory(), neoqMemory(),
	}
}

// perSlots makes a variant for each number of slots, of which a peer's best is
// the first, or only one if the workload runs no workers.
func perSlots(w *Workload, slots []int, v Variant) []Variant {
	if len(w.Slots) > 0 {
		slots = w.Slots
	}
	if !w.Works {
		return []Variant{v}
	}
	variants := make([]Variant, len(slots))
	for i, n := range slots {
		variants[i] = v
		variants[i].Slots = n
		variants[i].Extra = v.Config == defaults || v.Config == best && i > 0 || v.Config == "" && w.Long && n < 100
	}
	return variants
}
