package tasktest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/task"
)

// A Recorder keeps what is enqueued through a [pawl.Queue], also in a
// transaction, whether it is committed later or not. The zero value is ready;
// its method Middleware goes first into pawl.Options.Middleware, where it sees
// requests as the program made them. It is safe for concurrent use.
type Recorder struct {
	// Clock is the storage's, if that was given one, to tell which jobs are due.
	// nil means time.Now.
	Clock func() time.Time

	mu      sync.Mutex
	used    bool // by a Queue
	entries []Entry
}

// An Entry is one request that was enqueued without an error, and its receipt.
type Entry struct {
	Request *pawl.Request // with ID and defaults filled in; the Recorder's own copy
	Receipt pawl.Receipt
	at      time.Time
}

// Middleware is a [pawl.EnqueueMiddleware].
func (r *Recorder) Middleware(next pawl.EnqueueFunc) pawl.EnqueueFunc {
	r.mu.Lock()
	r.used = true
	r.mu.Unlock()
	return func(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
		if ctx.Value(probeKey{}) != nil {
			return next(ctx, reqs)
		}
		// What follows may change the requests, and the caller what they hold.
		copies := make([]pawl.Request, len(reqs))
		for i, req := range reqs {
			copies[i] = *req
			copies[i].Payload, copies[i].Meta = bytes.Clone(req.Payload), maps.Clone(req.Meta)
		}
		receipts, err := next(ctx, reqs)
		if err != nil {
			return receipts, err
		}
		now := time.Now()
		if r.Clock != nil {
			now = r.Clock()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for i, receipt := range receipts {
			r.entries = append(r.entries, Entry{&copies[i], receipt, now})
		}
		return receipts, nil
	}
}

// Entries returns all that was enqueued since the last Reset, in order,
// duplicates too.
func (r *Recorder) Entries() []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.entries)
}

// Reset forgets all entries.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = nil
}

// jobs returns the jobs as they were stored. What was there already, or was a
// duplicate, made no job; a job that was replaced counts with what replaced it.
func (r *Recorder) jobs() []*pawl.Job {
	var jobs []*pawl.Job
	for _, e := range r.Entries() {
		if e.Receipt.Status != pawl.Stored && e.Receipt.Status != pawl.Replaced {
			continue
		}
		j := jobOf(e.Request, e.at)
		j.ID = e.Receipt.ID
		jobs = slices.DeleteFunc(jobs, func(old *pawl.Job) bool { return old.ID == j.ID })
		jobs = append(jobs, j)
	}
	return jobs
}

// recorded returns the jobs of r. It ends a test whose r can see none, which an
// assertion that a job is missing would pass.
func recorded(t TB, r *Recorder) []*pawl.Job {
	t.Helper()
	r.mu.Lock()
	used := r.used
	r.mu.Unlock()
	if !used {
		t.Fatalf("tasktest: the Recorder's Middleware is in no Queue: it goes first into pawl.Options.Middleware")
	}
	return r.jobs()
}

// Recorded returns the recorded jobs of the kind of A in the order in which they
// were enqueued, without those that were duplicates, or a [task.DecodeError].
func Recorded[A task.Args](r *Recorder) ([]*task.Job[A], error) {
	return decode[A](r.jobs())
}
