package task

import (
	"context"
	"fmt"

	"github.com/pawlq/pawl"
)

// Wait waits until the job that the receipt names has ended and returns its
// result, decoded, as [Result] does. It returns ctx's error if that ends first,
// and the errors of [pawl.Queue.Wait].
func Wait[R any](ctx context.Context, q *pawl.Queue, receipt pawl.Receipt) (R, error) {
	jobs, err := q.Wait(ctx, receipt.Queue, receipt.ID)
	if err != nil {
		var none R
		return none, err
	}
	return Result[R](jobs[0])
}

// Result returns the decoded result of a completed job, the errors of [Err] for
// any other job, or a [DecodeError], which a job whose handler has no result
// gives too.
func Result[R any](job *pawl.Job) (R, error) {
	var none R
	if err := Err(job); err != nil {
		return none, err
	}
	result, err := decode[R](job.Result)
	if err != nil {
		return none, &DecodeError{Kind: job.Kind, Part: "result", Size: len(job.Result), Err: err}
	}
	return result, nil
}

// Err tells how a job ended: nil if it completed, a [FailedError] if it was
// buried or canceled, a [pawl.InvalidError] if it has not ended.
func Err(job *pawl.Job) error {
	switch {
	case job.State == pawl.Completed:
		return nil
	case !job.State.Final():
		return &pawl.InvalidError{Field: "State", Limit: fmt.Sprintf("final to tell how the job ended; it is %v", job.State)}
	}
	e := &FailedError{ID: job.ID, Kind: job.Kind, State: job.State, Reason: job.Reason}
	if n := len(job.Failures); n > 0 {
		e.Last = job.Failures[n-1].Error
	}
	return e
}

// EncodeResult encodes a result as [RegisterResult] does, for a handler that
// acks its job in a transaction. It returns an [EncodeError].
func EncodeResult[R any](result R) ([]byte, error) { return encode(result) }
