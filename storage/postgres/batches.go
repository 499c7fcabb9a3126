package postgres

import (
	"sync"

	"github.com/pawlq/pawl"
)

// maxBatches bounds what a Store remembers of its claims. What it forgets is
// left to Sweep.
const maxBatches = 10_000

// batches remembers which jobs of this Store's claims are not settled, so that
// the row of a claim can go with the last of them. Only what this Store has read
// as running, and then settled itself, counts: a claim must never go while it
// holds a fresh job.
type batches struct {
	mu   sync.Mutex
	left map[int64]map[pawl.ID]struct{} // by fence
	over []int64
}

// add notes the jobs of one claim.
func (b *batches) add(jobs []*pawl.Job) {
	if len(jobs) == 0 {
		return
	}
	left := make(map[pawl.ID]struct{}, len(jobs))
	for _, j := range jobs {
		left[j.ID] = struct{}{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left == nil || len(b.left) >= maxBatches {
		b.left = make(map[int64]map[pawl.ID]struct{})
	}
	b.left[jobs[0].Fence] = left
}

// settled notes that a settle of a claim was committed.
func (b *batches) settled(ref pawl.Ref) {
	b.mu.Lock()
	defer b.mu.Unlock()
	left, ok := b.left[ref.Fence]
	if !ok {
		return
	}
	delete(left, ref.ID)
	if len(left) == 0 {
		delete(b.left, ref.Fence)
		b.over = append(b.over, ref.Fence)
	}
}

// take returns the claims that are over. If they do not go now, Sweep sees to it.
func (b *batches) take() []int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	over := b.over
	b.over = nil
	return over
}
