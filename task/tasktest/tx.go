package tasktest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/task"
)

// AssertEnqueuedTx ends the test unless, as seen from inside the transaction of
// tx, there is the newest job that r recorded for which match is true; it returns
// that job. A nil match takes any. Unlike [AssertRecorded] it fails if the job
// was enqueued in another transaction that is not committed, or was undone by a
// rollback, whole or to a savepoint, and says so.
//
// It asks by enqueueing the job's ID once more, which changes nothing if it is
// there, since a transaction can't list jobs. So r's Middleware is that of the
// Queue of tx. A database
// server lets that wait for another open transaction that enqueued the ID: after
// 5 s the test ends.
func AssertEnqueuedTx[A task.Args](t TB, tx *pawl.Tx, r *Recorder, match func(A) bool) *task.Job[A] {
	t.Helper()
	job, request := newest(t, r, match)
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), probeKey{}, true), probeTime)
	defer cancel()
	receipt, err := tx.Enqueue(ctx, request)
	switch {
	case err != nil && ctx.Err() != nil && t.Context().Err() == nil:
		t.Fatalf("tasktest: job %v of kind %q was enqueued, but in another transaction, which is still open: this one waited for it for %v: %v",
			job.ID, job.Kind, probeTime, err)
	case err != nil:
		t.Fatalf("tasktest: job %v of kind %q was enqueued, but can't be seen in this transaction; is it over? %v", job.ID, job.Kind, err)
	case receipt.Status != pawl.Exists:
		t.Fatalf("tasktest: job %v of kind %q was enqueued, but not in this transaction, or that was undone: enqueued again it is %v",
			job.ID, job.Kind, receipt.Status)
	}
	return job
}

// probeTime is far more than a statement takes that waits for nobody.
const probeTime = 5 * time.Second

// probeKey marks the context of an enqueue that a Recorder does not record.
type probeKey struct{}

// AssertCommitted ends the test unless the newest job that r recorded for which
// match is true is in the storage of q, for all to see, whatever has become of it
// since; it returns the job as it is there. A nil match takes any. It fails for
// one whose transaction was rolled back, or is still open, and says so.
func AssertCommitted[A task.Args](t TB, q *pawl.Queue, r *Recorder, match func(A) bool) *task.Job[A] {
	t.Helper()
	job, request := newest(t, r, match)
	stored, err := q.Get(t.Context(), request.Queue, job.ID)
	if errors.Is(err, pawl.ErrNotFound) {
		err = fmt.Errorf("its transaction was rolled back or is not committed yet, or the job ran and its record is gone; recorded:\n%s",
			describe[A](r.jobs()))
	}
	if err != nil {
		t.Fatalf("tasktest: job %v of kind %q was enqueued, but is not in the storage: %v", job.ID, job.Kind, err)
	}
	job.Job = stored
	return job
}

// newest returns the last recorded job that matches and a request for it. It
// ends the test if there is none.
func newest[A task.Args](t TB, r *Recorder, match func(A) bool) (*task.Job[A], *pawl.Request) {
	t.Helper()
	jobs := recorded(t, r)
	decoded, err := decode[A](jobs)
	if err != nil {
		t.Fatalf("tasktest: %v; enqueued:\n%s", err, describe[A](jobs))
	}
	for i := len(decoded) - 1; i >= 0; i-- {
		if job := decoded[i]; match == nil || match(job.Args) {
			return job, r.request(job.ID)
		}
	}
	t.Fatalf("tasktest: no job of kind %q matches; enqueued:\n%s", kindName[A](), describe[A](jobs))
	return nil, nil
}

// request returns the last recorded request that became the job.
func (r *Recorder) request(id pawl.ID) *pawl.Request {
	var last pawl.Request
	for _, e := range r.Entries() {
		if e.Receipt.ID == id {
			last = *e.Request
		}
	}
	last.ID = id
	return &last
}
