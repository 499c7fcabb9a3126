package storagetest

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/pawlq/pawl"
)

// concurrentReads has jobs come, run and go while others read them. What
// belongs to a job names it, so that a read of two jobs, or of one at two
// moments, shows.
func concurrentReads(w *world) {
	const writers = 3
	var current [writers]atomic.Pointer[pawl.ID]
	var left, reads atomic.Int64
	left.Store(writers)
	w.together(2*writers, func(i int, s pawl.Storage) error {
		if i < writers {
			defer left.Add(-1)
			return comeAndGo(w, s, fmt.Sprint("q", i), &reads, &current[i])
		}
		for left.Load() > 0 {
			found, err := readWhole(w, s, current[i-writers].Load())
			if err != nil {
				reads.Store(enoughReads) // nobody is to wait for more
				return err
			}
			if found {
				reads.Add(1)
			}
		}
		return nil
	})
}

// enoughReads is how many jobs are read in one case.
const enoughReads = 100

// comeAndGo stores jobs one by one, runs them and deletes them, until it did so
// often and enough was read meanwhile.
func comeAndGo(w *world, s pawl.Storage, queue string, reads *atomic.Int64, current *atomic.Pointer[pawl.ID]) error {
	for round := 0; round < 50 || reads.Load() < enoughReads && w.ctx.Err() == nil; round++ {
		q := Complete(pawl.Request{Queue: queue})
		q.Payload, q.Meta = []byte(q.ID.String()), map[string]string{"id": q.ID.String()}
		current.Store(&q.ID)
		if _, err := s.Enqueue(w.ctx, []*pawl.Request{q}); err != nil {
			return err
		}
		c, err := s.Claim(w.ctx, asking(queue, 1))
		if err != nil {
			return err
		}
		for _, j := range c.Jobs {
			o := pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack, Result: j.Payload}
			if _, err := s.Settle(w.ctx, []pawl.Outcome{o}); err != nil {
				return err
			}
		}
		if _, err := s.Change(w.ctx, pawl.Change{Verb: pawl.Delete, Queue: queue, IDs: []pawl.ID{q.ID}}); err != nil {
			return err
		}
	}
	return nil
}

// readWhole reads a job, and all jobs, fails if one is not whole, and reports
// whether the job was there.
func readWhole(w *world, s pawl.Storage, id *pawl.ID) (found bool, err error) {
	if id == nil {
		return false, nil
	}
	jobs, err := s.Get(w.ctx, "", *id, newID())
	if err != nil {
		return false, err
	}
	page, err := s.List(w.ctx, pawl.ListSpec{Limit: 10, Payloads: true})
	if err != nil {
		return false, err
	}
	for _, j := range append(page.Jobs, jobs...) {
		if j != nil {
			err = errors.Join(err, whole(j))
		}
	}
	return jobs[0] != nil, err
}

// whole fails if parts of the job do not belong together.
func whole(j *pawl.Job) error {
	name, done := j.ID.String(), ""
	running, completed := j.State == pawl.Running, j.State == pawl.Completed
	if completed {
		done = name
	}
	if string(j.Payload) != name || j.Meta["id"] != name || string(j.Result) != done {
		return fmt.Errorf("job %v, %v, was read with payload %s, meta %v, result %s", name, j.State, j.Payload, j.Meta, j.Result)
	}
	if running != (j.Fence != 0) || running == j.LeaseUntil.IsZero() || completed == j.FinishedAt.IsZero() || (j.Attempt == 0) != (j.State == pawl.Ready) {
		return fmt.Errorf("job %v was read as %v with fence %d, lease until %v, finished %v, attempt %d",
			name, j.State, j.Fence, j.LeaseUntil, j.FinishedAt, j.Attempt)
	}
	return nil
}
