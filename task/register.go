package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/pawlq/pawl"
)

// A Job is a claimed job with its payload decoded.
type Job[A Args] struct {
	*pawl.Job
	Args A
}

// Decode returns job with its payload decoded into Args, or a [DecodeError]. It
// is for those who claim jobs by hand; handlers get their Args decoded. It does
// not look at the job's kind.
func Decode[A Args](job *pawl.Job) (*Job[A], error) {
	args, err := decode[A](job.Payload)
	if err != nil {
		err = &DecodeError{Kind: job.Kind, Part: "payload", Size: len(job.Payload), Err: err}
		return &Job[A]{Job: job, Args: zero[A]()}, err
	}
	return &Job[A]{Job: job, Args: args}, nil
}

// Options say how a worker runs the jobs of one kind. How they are enqueued is
// said beside their Args, see [Defaulter]. The zero value of each field is a
// default.
type Options[A Args] struct {
	// Timeout bounds one run of jobs whose request sets none. 0 means
	// pawl.Options.Timeout, pawl.NoTimeout no limit.
	Timeout time.Duration

	// Backoff is the delay of failed jobs. nil means pawl.Options.Backoff.
	Backoff pawl.Backoff

	// OnError is called after each failed run and OnBury after a job was
	// buried, by its last failure, by a Permanent error or by a rescue. They
	// must not block for long. If the payload does not decode, the job's Args
	// are zero and err matches *DecodeError.
	OnError func(ctx context.Context, job *Job[A], err error)
	OnBury  func(ctx context.Context, job *Job[A], err error)
}

// Register adds the handler of the kind of A to m, with at most one Options.
// What the handler returns decides what becomes of the job, see
// [pawl.OutcomeOf]; a job whose payload does not decode is buried or, if it is for
// a newer program, handed back, see [DecodeError].
//
// Like http.ServeMux, Register panics if the kind is registered already, and
// also if its name, its queue or its codec is invalid or f is nil.
func Register[A Args](m *Mux, f func(ctx context.Context, job *Job[A]) error, o ...*Options[A]) {
	var run Handler
	if f != nil {
		run = func(ctx context.Context, j *pawl.Job) ([]byte, error) {
			job, err := Decode[A](j)
			if err != nil {
				return nil, undecodable(j, err)
			}
			return nil, f(ctx, job)
		}
	}
	m.Handle(kindOf(run, o))
}

// RegisterResult is [Register] for a handler with a result. It is kept with the
// completed job, for as long as the job is retained, and read with [Result] or
// [Wait]. It is encoded by the codec of R. A job whose result does not encode
// is buried, for its work is done and need not be repeated.
//
// A handler that acks its job in a transaction passes the result there, encoded
// by [EncodeResult]; what it returns is then ignored.
func RegisterResult[A Args, R any](m *Mux, f func(ctx context.Context, job *Job[A]) (R, error), o ...*Options[A]) {
	none := zero[R]()
	if err := cmp.Or(hiddenCodec[R](), checkCodec(codecOf(none), reflect.TypeOf(none))); err != nil {
		panic(err.Error())
	}
	var run Handler
	if f != nil {
		run = func(ctx context.Context, j *pawl.Job) ([]byte, error) {
			job, err := Decode[A](j)
			if err != nil {
				return nil, undecodable(j, err)
			}
			result, err := f(ctx, job)
			if _, settled := j.SettledInTx(); settled || err != nil {
				return nil, err
			}
			data, err := EncodeResult(result)
			return data, pawl.Permanent(err)
		}
	}
	m.Handle(kindOf(run, o))
}

// undecodable says what becomes of a job whose payload does not decode. One for
// a newer program is handed back, as a job of an unknown kind would be.
func undecodable(j *pawl.Job, err error) error {
	if newer := (*newerError)(nil); errors.As(err, &newer) {
		return &laterError{err, pawl.Snooze(pawl.SkipDelay(j.Counts.Snoozes))}
	}
	return pawl.Permanent(err)
}

// A laterError is a Snooze with a cause, and has the text of the cause.
type laterError struct {
	error
	snooze error
}

func (e *laterError) Unwrap() []error { return []error{e.error, e.snooze} }

// kindOf returns the Kind of A, or panics.
func kindOf[A Args](run Handler, o []*Options[A]) pawl.Kind {
	args, err := concrete[A]()
	if err != nil {
		panic(err.Error())
	}
	name := args.Kind()
	if name == "" {
		panic(fmt.Sprintf("task: kind \"\" of %v is not %s", reflect.TypeFor[A](), nameLimit))
	}
	if err := checkCodec(codecOf(args), reflect.TypeOf(args)); err != nil {
		panic(err.Error())
	}
	k := pawl.Kind{Name: name, Run: run}
	if d, ok := any(args).(Defaulter); ok {
		k.Queue = d.Defaults().Queue
	}
	switch {
	case len(o) > 1:
		panic(fmt.Sprintf("task: kind %q is registered with more than one Options", name))
	case len(o) == 1 && o[0] != nil:
		k.Timeout, k.Backoff = o[0].Timeout, o[0].Backoff
		k.OnError, k.OnBury = hook(o[0].OnError), hook(o[0].OnBury)
	}
	return k
}

// hook decodes the payload again, since a job that was rescued has never run in
// this process.
func hook[A Args](f func(context.Context, *Job[A], error)) func(context.Context, *pawl.Job, error) {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, j *pawl.Job, cause error) {
		job, err := Decode[A](j)
		if known := (*DecodeError)(nil); err != nil && !errors.As(cause, &known) {
			cause = errors.Join(cause, err)
		}
		f(ctx, job, cause)
	}
}
