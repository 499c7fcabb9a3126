package tasktest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/task"
)

// Run runs a handler once, as a worker would run the first attempt of
// task.New(args): the args go through their codec, the context ends at the
// request's timeout, and a panic becomes a [PanicError]. It returns what the
// handler returned, or why args could not have been enqueued or decoded.
//
// The handler runs on the caller's goroutine, so it may call t.Fatal. Its job is
// stored nowhere: if the handler settles it, by Ack of a [pawl.Queue] or a
// [pawl.Tx], it is told pawl.ErrLost. Such a handler is run by worker.RunOne.
func Run[A task.Args](ctx context.Context, f func(ctx context.Context, job *task.Job[A]) error, args A) error {
	m := task.NewMux()
	task.Register(m, f)
	_, err := runNew(ctx, m, args)
	return err
}

// RunResult is [Run] for a handler with a result, which goes through its codec
// too.
func RunResult[A task.Args, R any](ctx context.Context, f func(ctx context.Context, job *task.Job[A]) (R, error), args A) (R, error) {
	m := task.NewMux()
	task.RegisterResult(m, f)
	var none R
	data, err := runNew(ctx, m, args)
	if err != nil {
		return none, err
	}
	return task.Result[R](&pawl.Job{Kind: args.Kind(), State: pawl.Completed, Result: data})
}

func runNew[A task.Args](ctx context.Context, m *task.Mux, args A) ([]byte, error) {
	job, err := Job(task.New(args))
	if err != nil {
		return nil, err
	}
	return RunJob(ctx, m, job)
}

// Job returns the job that a worker would get for r at its first claim, on a
// queue with default options, or why Enqueue would refuse r. The caller may
// change it, for instance to a later Attempt, before [RunJob].
func Job(r *pawl.Request) (*pawl.Job, error) {
	q := pawl.New(nowhere{}, nil)
	filled, err := q.Prepare(r)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	j := jobOf(filled[0], now)
	j.State, j.Fence, j.Attempt = pawl.Running, 1, 1
	j.StartedAt, j.ClaimedAt, j.LeaseUntil = now, now, now.Add(cmp.Or(j.Lease, q.Options().Lease))
	j.WorkerID = "tasktest"
	return j, nil
}

// nowhere is a storage for a Queue that is only asked for defaults.
type nowhere struct{ pawl.Storage }

// jobOf returns the waiting job that r, with its defaults, becomes.
func jobOf(r *pawl.Request, now time.Time) *pawl.Job {
	j := &pawl.Job{
		Ref:  pawl.Ref{Queue: r.Queue, ID: r.ID},
		Kind: r.Kind, Payload: bytes.Clone(r.Payload), Meta: maps.Clone(r.Meta), Priority: r.Priority,
		State: pawl.Ready, RunAt: r.RunAt, StartBefore: r.StartBefore, CreatedAt: now,
		Lease: r.Lease, Timeout: r.Timeout, Retention: r.Retention,
		MaxAttempts: r.MaxAttempts, MaxRescues: r.MaxRescues,
		UniqueKey: r.UniqueKey, UniqueMode: r.UniqueMode, UniqueWindow: r.UniqueWindow,
	}
	switch {
	case r.Delay > 0:
		j.RunAt = now.Add(r.Delay)
	case r.RunAt.IsZero():
		j.RunAt = now
	}
	if j.RunAt.After(now) {
		j.State = pawl.Scheduled
	}
	return j
}

// RunJob runs a job with the handler that m has for its kind, as a worker would:
// with the middleware, the timeout, panics recovered as [PanicError], and the
// hooks OnError and OnBury called if the run failed. It returns the encoded
// result.
func RunJob(ctx context.Context, m *task.Mux, job *pawl.Job) (result []byte, err error) {
	kind, ok := kindOf(m, job.Kind)
	if !ok {
		return nil, fmt.Errorf("tasktest: kind %q is not registered", job.Kind)
	}
	run, cancel := withTimeout(ctx, job, kind)
	defer cancel()
	result, err = call(run, kind, job)
	callHooks(ctx, kind, job, err)
	return result, err
}

func kindOf(m *task.Mux, name string) (kind pawl.Kind, ok bool) {
	for _, k := range m.Kinds() {
		if k.Name == name {
			return k, true
		}
		if k.Name == "" {
			kind, ok = k, true
		}
	}
	return kind, ok
}

func withTimeout(ctx context.Context, job *pawl.Job, kind pawl.Kind) (context.Context, context.CancelFunc) {
	timeout := cmp.Or(job.Timeout, kind.Timeout, pawl.New(nowhere{}, nil).Options().Timeout)
	if timeout < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}

func call(ctx context.Context, kind pawl.Kind, job *pawl.Job) (result []byte, err error) {
	defer func() {
		// A handler that left by runtime.Goexit ends the test, as it wished.
		if v := recover(); v != nil {
			result, err = nil, &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return kind.Run(ctx, job)
}

func callHooks(ctx context.Context, kind pawl.Kind, job *pawl.Job, err error) {
	verb := pawl.OutcomeOf(job, err, pawl.Constant(0)).Verb
	if verb != pawl.Nack && verb != pawl.Bury {
		return
	}
	if kind.OnError != nil {
		kind.OnError(ctx, job, err)
	}
	last := job.MaxAttempts != pawl.Unlimited && job.Attempt >= job.MaxAttempts
	if kind.OnBury != nil && (verb == pawl.Bury || last) {
		kind.OnBury(ctx, job, err)
	}
}

// A PanicError is what a handler's panic becomes.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", e.Value, e.Stack) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
