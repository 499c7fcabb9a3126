package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawlq/pawl"
)

// DrainOptions say what [Drain] runs. Zero fields are defaults; nil
// DrainOptions are all zero.
type DrainOptions struct {
	// Queues are emptied in this order. None means the queues of the handled
	// kinds.
	Queues []string
	// Retries also runs, at once, what waits for its next attempt.
	Retries bool
	// Scheduled also runs, at once, all that waits for its time, retries
	// included.
	Scheduled bool
	// MaxRuns bounds the runs, since jobs may enqueue jobs or fail for ever. 0
	// means 10,000.
	MaxRuns int
	// Middleware wraps the runs, the first outermost.
	Middleware []Middleware
}

// Ran is one run that Drain made.
type Ran struct {
	Job  *pawl.Job // as it was claimed
	Verb pawl.Verb // how it was settled; Skip: no handler runs its kind; 0: not at all, the claim was lost.
	// If Drain fails to look what became of a transaction in which the handler settled
	// it, Verb is what was asked for there.
	Err error // what the handler returned
}

const (
	drainRuns  = 10_000
	drainLease = pawl.MaxLease // nothing extends it
)

// Drain runs all jobs that are due, and those they enqueue, one after the other
// in the goroutine of the caller, and returns what it ran. It is for tests: it
// neither waits nor sweeps. A handler that fails does not end it; an error of
// the storage, the end of ctx or MaxRuns does, and is returned.
func Drain(ctx context.Context, q *pawl.Queue, h Handlers, o *DrainOptions) ([]Ran, error) {
	d, err := newDrain(q, h, o)
	if err != nil {
		return nil, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return d.ran, err
		}
		c, err := q.ClaimBatch(ctx, d.spec)
		if err != nil {
			return d.ran, err
		}
		if len(c.Jobs) == 0 {
			if n, err := d.hurry(ctx); n == 0 || err != nil {
				return d.ran, err
			}
			continue
		}
		if err := d.run(ctx, c.Jobs[0]); err != nil {
			return d.ran, err
		}
	}
}

type drain struct {
	q        *pawl.Queue
	o        DrainOptions
	spec     pawl.ClaimSpec
	kinds    map[string]*kind
	fallback *kind
	ran      []Ran
	runs     int // of ran, those of a handler
}

func newDrain(q *pawl.Queue, h Handlers, o *DrainOptions) (*drain, error) {
	d := &drain{q: q}
	if o != nil {
		d.o = *o
	}
	d.o.MaxRuns = cmp.Or(d.o.MaxRuns, drainRuns)
	kinds := h.Kinds()
	if len(kinds) == 0 {
		return nil, errNoHandlers
	}
	d.kinds, d.fallback = kindsOf(q, kinds, d.o.Middleware)
	d.spec = pawl.ClaimSpec{Max: 1, Lease: drainLease, Worker: q.Options().WorkerID}
	if len(d.o.Queues) == 0 {
		for _, queue := range queuesOf(Options{}, kinds) {
			d.o.Queues = append(d.o.Queues, queue.Name)
		}
	}
	for _, queue := range d.o.Queues {
		d.spec.Queues = append(d.spec.Queues, pawl.QueueAsk{Queue: queue, Max: 1})
	}
	return d, nil
}

// hurry makes due what the options say and returns how many jobs that were.
func (d *drain) hurry(ctx context.Context) (n int, err error) {
	if !d.o.Retries && !d.o.Scheduled {
		return 0, nil
	}
	for _, queue := range d.o.Queues {
		for j, err := range d.q.Jobs(ctx, pawl.Filter{Queue: queue, States: []pawl.State{pawl.Scheduled}}) {
			if err != nil {
				return n, err
			}
			if !d.wanted(j) {
				continue
			}
			if err := d.q.RunNow(ctx, queue, j.ID); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, nil
}

func (d *drain) wanted(j *pawl.Job) bool {
	switch j.Reason {
	case pawl.ReasonSkip:
		return false
	case pawl.ReasonRetry, pawl.ReasonRescue:
		return true
	default:
		return d.o.Scheduled
	}
}

// run runs one job and settles it.
func (d *drain) run(ctx context.Context, j *pawl.Job) error {
	ref := j.Ref
	k := cmp.Or(d.kinds[j.Kind], d.fallback)
	if k == nil {
		return d.end(ctx, pawl.Outcome{Ref: ref, Verb: pawl.Skip, Delay: pawl.SkipDelay(j.Counts.Skips)}, Ran{Job: j})
	}
	if d.runs == d.o.MaxRuns {
		err := fmt.Errorf("worker: Drain ended after %d runs", d.runs)
		_, settleErr := d.settle(ctx, pawl.Outcome{Ref: ref, Verb: pawl.Release})
		return errors.Join(err, settleErr)
	}
	d.runs++
	began := time.Now()
	held := &claim{q: d.q, run: &run{ref: ref, lease: drainLease}}
	result, err := call(context.WithValue(ctx, claimKey{}, held), k, j)
	if limit := d.q.Options().MaxPayload; err == nil && len(result) > limit {
		err = &pawl.InvalidError{Field: "Result", Limit: fmt.Sprintf("at most %d bytes", limit)}
	}
	if verb, ok := j.SettledInTx(); ok {
		ran := Ran{Job: j, Verb: verb, Err: err}
		if done, err := d.verify(ctx, ref, k, ran, time.Since(began)); done || err != nil {
			return err
		}
		err = cmp.Or(err, pawl.ErrNotCommitted)
	}
	return d.finish(ctx, ref, j, k, result, err)
}

// verify takes in what became of a claim that the handler settled in a
// transaction of its own. It reports false if that was not committed.
func (d *drain) verify(ctx context.Context, ref pawl.Ref, k *kind, ran Ran, took time.Duration) (done bool, err error) {
	stored, err := d.q.Get(context.WithoutCancel(ctx), ref.Queue, ref.ID)
	gone := errors.Is(err, pawl.ErrNotFound)
	switch {
	case err != nil && !gone:
		d.ran = append(d.ran, ran)
		return false, err
	case !gone && stored.State == pawl.Running && stored.Fence == ref.Fence:
		return false, nil
	case !committed(d.q, ran.Job, stored, gone, ran.Verb, took):
		ran.Verb = 0
	}
	d.ran = append(d.ran, ran)
	if ran.Verb != 0 {
		tellFailure(ctx, k, ran.Job, ran.Verb, true, failureInTx(ran.Job, stored, ran.Err))
	}
	return true, nil
}

// finish settles what the handler returned and tells the kind.
func (d *drain) finish(ctx context.Context, ref pawl.Ref, j *pawl.Job, k *kind, result []byte, err error) error {
	o := pawl.Outcome{Ref: ref, Verb: pawl.Ack, Result: result}
	if err != nil {
		o = outcomeOf(ref, j, k, err)
	}
	if err := d.end(ctx, o, Ran{Job: j, Err: err}); err != nil {
		return err
	}
	tellFailure(ctx, k, j, o.Verb, d.ran[len(d.ran)-1].Verb != 0, err)
	return nil
}

// end settles a run and notes it.
func (d *drain) end(ctx context.Context, o pawl.Outcome, ran Ran) error {
	lost, err := d.settle(ctx, o)
	if len(lost) == 0 {
		ran.Verb = o.Verb
	}
	d.ran = append(d.ran, ran)
	return err
}

// call calls the handler with the timeout of the job, as a pool does.
func call(ctx context.Context, k *kind, j *pawl.Job) ([]byte, error) {
	var exit []byte
	timeout := cmp.Or(j.Timeout, k.timeout)
	if timeout <= 0 {
		return protect(k.run, ctx, j, &exit)
	}
	inner, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer time.AfterFunc(timeout, func() { stop(ErrTimeout) }).Stop()
	result, err := protect(k.run, &timedContext{inner, time.Now().Add(timeout)}, j, &exit)
	if err != nil && context.Cause(inner) == ErrTimeout {
		var ended bool
		if ended, err = ofContext(err, ErrTimeout); ended {
			err = timedOut(timeout, err)
		}
	}
	return result, err
}

// A timedContext has a deadline and leaves it to others to keep it.
type timedContext struct {
	context.Context
	deadline time.Time
}

func (c *timedContext) Deadline() (time.Time, bool) {
	if d, ok := c.Context.Deadline(); ok && d.Before(c.deadline) {
		return d, true
	}
	return c.deadline, true
}

// settle does not end with ctx: what has run is told.
func (d *drain) settle(ctx context.Context, outcomes ...pawl.Outcome) (lost []pawl.Ref, err error) {
	return d.q.Settle(context.WithoutCancel(ctx), outcomes)
}

// tellFailure tells the kind of a run if it failed, and of a burial if that was
// settled.
func tellFailure(ctx context.Context, k *kind, j *pawl.Job, verb pawl.Verb, settled bool, err error) {
	if verb != pawl.Nack && verb != pawl.Bury {
		return
	}
	if k.OnError != nil {
		k.OnError(ctx, j, err)
	}
	if k.OnBury != nil && settled && (verb == pawl.Bury || lastAttempt(j)) {
		k.OnBury(ctx, j, err)
	}
}

func lastAttempt(j *pawl.Job) bool {
	return j.MaxAttempts != pawl.Unlimited && j.Attempt >= j.MaxAttempts
}
