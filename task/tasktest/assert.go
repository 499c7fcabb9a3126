package tasktest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/task"
)

// TB is what the assertions need of a testing.TB.
type TB interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
}

// Enqueued returns the jobs of the kind of A that match f, or a
// [task.DecodeError], in the order of [pawl.Admin].List. Without f.States these
// are the waiting ones.
func Enqueued[A task.Args](ctx context.Context, q *pawl.Queue, f pawl.Filter) ([]*task.Job[A], error) {
	f.Kind = kindName[A]()
	jobs, err := list(ctx, q, f)
	if err != nil {
		return nil, err
	}
	return decode[A](jobs)
}

// AssertEnqueued ends the test unless a job of the kind of A waits in a queue of
// q whose args match, and returns the first such job. A nil match takes any. It
// does not see what an open transaction enqueued; [AssertEnqueuedTx] does.
func AssertEnqueued[A task.Args](t TB, q *pawl.Queue, match func(A) bool) *task.Job[A] {
	t.Helper()
	return assert(t, waiting(t, q), match)
}

// RefuteEnqueued ends the test if a job waits for which AssertEnqueued would
// pass.
func RefuteEnqueued[A task.Args](t TB, q *pawl.Queue, match func(A) bool) {
	t.Helper()
	refute(t, waiting(t, q), match)
}

// AssertRecorded is [AssertEnqueued] for what r recorded, run by now or not,
// committed or not.
func AssertRecorded[A task.Args](t TB, r *Recorder, match func(A) bool) *task.Job[A] {
	t.Helper()
	return assert(t, recorded(t, r), match)
}

// RefuteRecorded ends the test if r recorded a job for which AssertRecorded
// would pass.
func RefuteRecorded[A task.Args](t TB, r *Recorder, match func(A) bool) {
	t.Helper()
	refute(t, recorded(t, r), match)
}

func assert[A task.Args](t TB, jobs []*pawl.Job, match func(A) bool) *task.Job[A] {
	t.Helper()
	job := find(t, jobs, match)
	if job == nil {
		t.Fatalf("tasktest: no job of kind %q matches; enqueued:\n%s", kindName[A](), describe[A](jobs))
	}
	return job
}

func refute[A task.Args](t TB, jobs []*pawl.Job, match func(A) bool) {
	t.Helper()
	if job := find(t, jobs, match); job != nil {
		t.Fatalf("tasktest: a job of kind %q matches: %+v; enqueued:\n%s", job.Kind, job.Args, describe[A](jobs))
	}
}

func find[A task.Args](t TB, jobs []*pawl.Job, match func(A) bool) *task.Job[A] {
	t.Helper()
	decoded, err := decode[A](jobs)
	if err != nil {
		t.Fatalf("tasktest: %v; enqueued:\n%s", err, describe[A](jobs))
	}
	i := slices.IndexFunc(decoded, func(j *task.Job[A]) bool { return match == nil || match(j.Args) })
	if i < 0 {
		return nil
	}
	return decoded[i]
}

func waiting(t TB, q *pawl.Queue) []*pawl.Job {
	t.Helper()
	jobs, err := list(t.Context(), q, pawl.Filter{})
	if err != nil {
		t.Fatalf("tasktest: %v", err)
	}
	return jobs
}

func list(ctx context.Context, q *pawl.Queue, f pawl.Filter) ([]*pawl.Job, error) {
	if len(f.States) == 0 {
		f.States = []pawl.State{pawl.Scheduled, pawl.Ready}
	}
	spec := pawl.ListSpec{Filter: f, Limit: pawl.MaxStep, Payloads: true}
	var jobs []*pawl.Job
	for {
		page, err := q.List(ctx, spec)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, page.Jobs...)
		if spec.Cursor = page.Next; spec.Cursor == "" {
			return jobs, nil
		}
	}
}

// decode returns the jobs that are of the kind of A.
func decode[A task.Args](jobs []*pawl.Job) ([]*task.Job[A], error) {
	kind := kindName[A]()
	var decoded []*task.Job[A]
	for _, j := range jobs {
		if j.Kind != kind {
			continue
		}
		job, err := task.Decode[A](j)
		if err != nil {
			return nil, fmt.Errorf("job %v: %w", j.ID, err)
		}
		decoded = append(decoded, job)
	}
	return decoded, nil
}

// maxLines is how many jobs a failure lists: enough to see what went wrong, and
// not a screenful more.
const maxLines = 20

// describe lists jobs, those of the kind of A with their args, since these are
// what the test is about, all others without their payload.
func describe[A task.Args](jobs []*pawl.Job) string {
	if len(jobs) == 0 {
		return "\tnothing"
	}
	var lines []string
	for _, j := range jobs[:min(len(jobs), maxLines)] {
		lines = append(lines, "\t"+describeJob[A](j))
	}
	if more := len(jobs) - maxLines; more > 0 {
		lines = append(lines, fmt.Sprintf("\tand %d more", more))
	}
	return strings.Join(lines, "\n")
}

func describeJob[A task.Args](j *pawl.Job) string {
	s := fmt.Sprintf("kind %q, queue %q, %v", j.Kind, j.Queue, j.State)
	if j.Kind != kindName[A]() {
		return fmt.Sprintf("%s, payload of %d bytes", s, len(j.Payload))
	}
	job, err := task.Decode[A](j)
	if err != nil {
		return s + ", " + err.Error()
	}
	return fmt.Sprintf("%s, %T%+v", s, job.Args, job.Args)
}

// kindName decodes nothing into the Args, which makes them zero but never a nil
// pointer.
func kindName[A task.Args]() string {
	job, _ := task.Decode[A](new(pawl.Job))
	return job.Args.Kind()
}
