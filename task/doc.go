// Package task gives jobs Go types.
//
// # From Args to result
//
// The kind of a job is a type, its [Args]:
//
//	type Resize struct {
//		Picture int64
//		Width   int
//	}
//
//	func (Resize) Kind() string { return "resize" }
//
// How its jobs are enqueued may be said beside it, see [Defaulter]:
//
//	func (r Resize) Defaults() pawl.Request {
//		return pawl.Request{Queue: "pictures", MaxAttempts: 5, UniqueKey: task.UniqueByArgs(r)}
//	}
//
// [New] makes a request of it. Settings are fields of the request:
//
//	r := task.New(Resize{Picture: 7, Width: 200})
//	r.Delay = time.Minute
//	receipt, err := q.Enqueue(ctx, r)
//
// A process that works registers a handler for each kind it runs, with
// [Register], or with [RegisterResult] if the job has a result; [Options] say
// how it is run:
//
//	tasks := task.NewMux()
//	task.RegisterResult(tasks, func(ctx context.Context, job *task.Job[Resize]) (Size, error) {
//		return resize(ctx, job.Args.Picture, job.Args.Width)
//	}, &task.Options[Resize]{Timeout: time.Minute})
//	err := worker.New(q, tasks, nil).Run(ctx)
//
// A handler returns nil when the work is done, an error to be run again after a
// while, or one of [pawl.Permanent], [pawl.Snooze] and [pawl.RetryAfter].
//
// Whoever enqueued the job can wait for its result, which is kept as long as
// the job is retained:
//
//	size, err := task.Wait[Size](ctx, q, receipt)
//	if failed := (*task.FailedError)(nil); errors.As(err, &failed) { ... }
//
// # Payloads
//
// Args and results are encoded as [JSON], or by a [Codec] that their type
// brings along, see [Coder]: [Raw], or one that wraps another to compress
// ([Gzip]), encrypt ([Encrypted]) or bring old payloads up to date ([Versioned]).
// Errors about payloads never quote them; what handlers put into their own can be
// encrypted by [Keyring.SealErrors].
//
// # Changing Args
//
// Jobs outlive programs: one enqueued today may be run by next month's. Adding
// a field is safe in both directions, for an old payload leaves it zero and an
// old program passes over it. To change what a field means, use [Versioned], or a
// new kind, and keep the handler of the old one until its jobs are gone.
//
// # Traces
//
// [InjectTrace] and [ExtractTrace] carry trace context from those who enqueue to
// handlers, with OpenTelemetry or any other library.
//
// # Tests
//
// Package tasktest runs handlers without a worker and asserts what was
// enqueued. Package worker has RunOne and Drain for jobs that are stored.
package task
