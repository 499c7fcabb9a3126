// Package worker runs jobs. A [Pool] claims them from a [pawl.Queue] and calls
// the handlers of their kinds:
//
//	err := worker.New(q, handlers, nil).Run(ctx)
//
// # The life of a job in a pool
//
// One fetcher claims for all queues of the pool, as many jobs as there are free
// slots, and while jobs are short some more, so that a round trip to the
// storage brings many. A slot is a goroutine that runs one job after the other.
// When a queue had less than was asked for, the fetcher waits until the storage
// tells of new jobs, until the next scheduled one is due, or for the poll
// interval.
//
// The handler gets a context that ends with a cause (see [context.Cause]):
// [ErrTimeout] when the run takes too long, [ErrCanceled] or another error that
// matches [pawl.ErrLost] when the claim is no longer this pool's, [ErrStopping]
// when the pool stops and its patience is over. While the job is in the pool's
// hands, running or not yet, one heartbeat extends its lease. If that fails
// until the lease may end, the handler's context is cancelled before any other
// worker can get the job.
//
// A handler reports how far it has come with [Progress].
//
// What the handler returns is read as [pawl.OutcomeOf] says: nil acks the job,
// an error makes it wait for its next attempt or, after the last, buries it. A
// panic and runtime.Goexit are errors with a stack. A context error that the
// pool itself brought about is not held against the job: it is handed back when
// the pool stops, and left to its new owner when the claim was lost. A handler
// that has acked its job in its own transaction ([pawl.Tx]) is believed only
// after the commit was seen.
//
// One settler tells the storage the outcomes, in groups, or together with the
// next claim where the storage can do both at once. What fails is told again
// until the storage has answered or the pool is over; the storage decides by
// the claim's fence whether it still counts, so nothing is done twice. While 2,000
// outcomes wait to be told, or 64 MiB of them and their jobs' payloads, the pool
// claims no more. A job whose kind has no handler here is handed back with a
// growing delay.
//
// A handler that ignores the end of its context is given up after a second: the
// job has failed with a timeout, whatever the handler returns later is refused,
// and a bounded number of new slots stand in for those held like this.
//
// Every pool also sweeps now and then: it takes back the jobs of workers that
// died, in whatever process they were.
//
// # Control
//
// Queues have slots of their own, or share some: in strict order, or by weight,
// where each has its weight's part of the jobs that start while all have some.
// [Pool.SetConcurrency] changes the number of slots while the pool runs.
//
// [Pool.Stats] is one reading of what the pool has done and, if it counts them,
// of its queues; [Events] tell the same as it happens; [Pool.Health] says whether
// the pool gets on, which package health serves over HTTP. None of them can hold
// the pool up.
//
// Handlers must not change the [pawl.Job] they are given; it belongs to the
// pool until they return.
package worker
