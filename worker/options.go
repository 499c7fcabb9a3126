package worker

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/text"
)

// Handlers are the kinds that a pool runs, such as a task.Mux.
type Handlers interface {
	Kinds() []pawl.Kind
}

// Func is a plain function that runs the jobs of all kinds.
type Func func(ctx context.Context, j *pawl.Job) error

// Kinds returns one kind that stands for all.
func (f Func) Kinds() []pawl.Kind {
	run := func(ctx context.Context, j *pawl.Job) ([]byte, error) { return nil, f(ctx, j) }
	return []pawl.Kind{{Run: run}}
}

// RunFunc is how one job is run, see [pawl.Kind].
type RunFunc = func(ctx context.Context, j *pawl.Job) (result []byte, err error)

// Middleware wraps the runs of all kinds, to trace, to measure, to decrypt.
type Middleware func(next RunFunc) RunFunc

// Queue is a queue that a pool serves.
type Queue struct {
	Name string

	// Concurrency is how many of its jobs run at the same time. 0 means
	// Options.Concurrency; with Options.Strict or a Weight it has to be 0.
	Concurrency int

	// Weight lets the queue share Options.Concurrency slots with all others that
	// have a weight, and have none of its own. While all of these have jobs, each
	// gets its weight's share of the jobs started; what one has no jobs for goes
	// to the others. At most 1,000; 0 gives the queue slots of its own.
	Weight int
}

// Values of options whose zero value already means "the default".
const (
	NoPrefetch     = -1 // Prefetch: claim only what can start at once
	NoReplacements = -1 // MaxStuck: a stuck handler's slot is not replaced
)

// Options set how a [Pool] works. The zero value of each field is a default
// itself; nil Options are all zero.
type Options struct {
	// Queues are those served. None means the queues of the handled kinds. If
	// there are some, and a handled kind's own queue is not among them, Run logs
	// a warning: its jobs wait for another pool, but those enqueued elsewhere.
	Queues []Queue

	// Concurrency is how many jobs of each queue run at the same time, which
	// [Pool.SetConcurrency] changes. 0 means 10.
	Concurrency int

	// Strict lets all queues share Concurrency slots and empties them in the
	// order of Queues: a job of a later queue is claimed only when the earlier
	// ones have none. Without it each queue has slots of its own, or a share by
	// its Weight.
	Strict bool

	// Prefetch is how many jobs of each queue are claimed beyond those that
	// can start at once. 0 adapts it to the duration and size of the jobs, so
	// that about 50 ms of work is at hand, and none if jobs are slow. In any
	// case payloads of about 16 MiB suffice, by the average of the last runs.
	Prefetch int

	// Lease is how long a claim lasts unless it is extended, where the job does
	// not say: what a job waits when its worker dies. 0 means that of the
	// Queue's Options.
	Lease time.Duration

	// Heartbeat is how often claims are extended. 0 means a third of the lease,
	// and larger values are cut to that, so that two in a row may fail. At least
	// 1 ms, as each of the intervals.
	Heartbeat time.Duration

	// Poll is how often an idle queue is looked at for what no event told, or up to
	// a quarter sooner. 0 means 1 s.
	Poll time.Duration

	// SweepEvery is how often the pool does what is due because time passed,
	// see [pawl.Storage], with a jitter of a quarter. 0 means 5 s.
	SweepEvery time.Duration

	// CountEvery is how often the pool counts the jobs of its queues, with a
	// jitter of a quarter, for Stats.Queues and for subscriptions. 0 means every
	// 15 s what subscriptions need: all of its queues if one has limits, else
	// those that are paused. Otherwise it does not count, since most storages do
	// it by reading, which takes time when there are very many jobs.
	CountEvery time.Duration

	// Events are told what happens in the pool. nil means nobody is.
	Events *Events

	// StopTimeout is how long a stop leaves handlers undisturbed before their
	// contexts are cancelled. 0 means 20 s, under the 30 s that common
	// supervisors give.
	StopTimeout time.Duration

	// SettleNow settles each outcome in a call of its own, at once, instead of
	// in groups.
	SettleNow bool

	// MaxStuck bounds the slots that replace those held by handlers that go on
	// after their context was cancelled. 0 means as many as the pool has slots.
	MaxStuck int

	// Middleware wraps the runs, the first outermost.
	Middleware []Middleware

	// Logger gets what no return value can say; payloads are never logged. nil
	// means that of the Queue's Options.
	Logger *slog.Logger

	// WorkerID names this pool in records. Empty means that of the Queue's
	// Options.
	WorkerID string
}

const (
	defaultConcurrency = 10
	maxConcurrency     = 100_000 // a goroutine each; more is a slip of the keyboard
	maxWeight          = 1000    // a job of the lightest queue among 1000 of the heaviest
	minInterval        = time.Millisecond
)

func (o *Options) withDefaults(q *pawl.Queue, kinds []pawl.Kind) Options {
	var d Options
	if o != nil {
		d = *o
	}
	base := q.Options()
	d.Concurrency = cmp.Or(d.Concurrency, defaultConcurrency)
	d.Lease = cmp.Or(d.Lease, base.Lease)
	// As good as never, so that nothing overflows that is added to them.
	d.Poll = min(cmp.Or(d.Poll, time.Second), pawl.MaxAhead)
	d.SweepEvery = min(cmp.Or(d.SweepEvery, 5*time.Second), pawl.MaxAhead)
	d.CountEvery = min(d.CountEvery, pawl.MaxAhead)
	d.StopTimeout = min(cmp.Or(d.StopTimeout, 20*time.Second), pawl.MaxAhead)
	d.WorkerID = cmp.Or(d.WorkerID, base.WorkerID)
	if d.Logger == nil {
		d.Logger = base.Logger
	}
	d.Queues = queuesOf(d, kinds)
	return d
}

func queuesOf(o Options, kinds []pawl.Kind) []Queue {
	queues := slices.Clone(o.Queues)
	if len(queues) == 0 {
		for _, k := range kinds {
			name := cmp.Or(k.Queue, pawl.DefaultQueue)
			if !slices.ContainsFunc(queues, func(q Queue) bool { return q.Name == name }) {
				queues = append(queues, Queue{Name: name})
			}
		}
	}
	for i := range queues {
		if queues[i].Weight == 0 && !o.Strict {
			queues[i].Concurrency = cmp.Or(queues[i].Concurrency, o.Concurrency)
		}
	}
	return queues
}

// weighted returns the queues that share slots by weight.
func (o *Options) weighted() []Queue {
	return slices.DeleteFunc(slices.Clone(o.Queues), func(q Queue) bool { return q.Weight == 0 })
}

// validate reports what is wrong with o, whose defaults are filled in.
func (o *Options) validate() error {
	err := cmp.Or(
		o.validateNumbers(),
		o.validateQueues(),
		validateInterval("Heartbeat", o.Heartbeat),
		validateInterval("Poll", o.Poll),
		validateInterval("SweepEvery", o.SweepEvery),
		validateInterval("CountEvery", o.CountEvery),
	)
	if err != nil {
		return fmt.Errorf("worker: options: %w", err)
	}
	return nil
}

func (o *Options) validateNumbers() error {
	switch {
	case o.Concurrency < 1 || o.Concurrency > maxConcurrency:
		return &pawl.InvalidError{Field: "Concurrency", Limit: fmt.Sprintf("between 1 and %d", maxConcurrency)}
	case o.Prefetch < NoPrefetch || o.Prefetch > pawl.MaxStep:
		return &pawl.InvalidError{Field: "Prefetch", Limit: fmt.Sprintf("at most %d, or NoPrefetch", pawl.MaxStep)}
	case o.Lease < pawl.MinLease || o.Lease > pawl.MaxLease:
		return &pawl.InvalidError{Field: "Lease", Limit: "between 10 ms and 24 h"}
	case o.StopTimeout < 0:
		return &pawl.InvalidError{Field: "StopTimeout", Limit: "positive"}
	case o.MaxStuck < NoReplacements:
		return &pawl.InvalidError{Field: "MaxStuck", Limit: "positive, or NoReplacements"}
	case !text.IsLine(o.WorkerID, pawl.MaxKeyLen):
		return &pawl.InvalidError{Field: "WorkerID", Limit: "at most 255 bytes of UTF-8 without control characters"}
	}
	return nil
}

func validateInterval(field string, d time.Duration) error {
	if d != 0 && d < minInterval {
		return &pawl.InvalidError{Field: field, Limit: "at least 1 ms"}
	}
	return nil
}

func (o *Options) validateQueues() error {
	if len(o.Queues) == 0 || len(o.Queues) > pawl.MaxQueues {
		return &pawl.InvalidError{Field: "Queues", Limit: fmt.Sprintf("1 to %d", pawl.MaxQueues)}
	}
	for i, q := range o.Queues {
		err := o.validateQueue(q)
		if err == nil && slices.ContainsFunc(o.Queues[:i], func(p Queue) bool { return p.Name == q.Name }) {
			err = &pawl.InvalidError{Field: "Queues", Limit: "named once each"}
		}
		if err != nil {
			return fmt.Errorf("queue %q: %w", q.Name, err)
		}
	}
	return nil
}

func (o *Options) validateQueue(q Queue) error {
	switch {
	case !text.IsName(q.Name, pawl.MaxNameLen):
		return &pawl.InvalidError{Field: "Queue.Name", Limit: fmt.Sprintf("1 to %d letters, digits, '_', '-', '.' or ':'", pawl.MaxNameLen)}
	case q.Weight < 0 || q.Weight > maxWeight:
		return &pawl.InvalidError{Field: "Queue.Weight", Limit: fmt.Sprintf("between 1 and %d, or 0", maxWeight)}
	case q.Weight > 0 && o.Strict:
		return &pawl.InvalidError{Field: "Queue.Weight", Limit: "zero with Strict"}
	case q.Weight > 0 && q.Concurrency != 0:
		return &pawl.InvalidError{Field: "Queue.Concurrency", Limit: "zero with a Weight"}
	case o.Strict && q.Concurrency != 0:
		return &pawl.InvalidError{Field: "Queue.Concurrency", Limit: "zero with Strict"}
	case q.Weight == 0 && !o.Strict && (q.Concurrency < 1 || q.Concurrency > maxConcurrency):
		return &pawl.InvalidError{Field: "Queue.Concurrency", Limit: fmt.Sprintf("between 1 and %d", maxConcurrency)}
	}
	return nil
}
