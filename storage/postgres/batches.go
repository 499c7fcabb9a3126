package postgres

import (
	"sync"

	"github.com/pawlq/pawl"
)

// maxBatches bounds what a Store remembers of its claims. What it forgets is
// left to Sweep.
const maxBatches = 10_000

// batches remembers which jobs of this Store's claims are not settled. So the row
// of a claim can go with the last of them, and an ack need not look for it. Only
// what this Store has read as running, and then settled itself, counts: a claim
// must never go while it holds a fresh job.
type batches struct {
	mu     sync.Mutex
	claims map[int64]*batch // by fence
	over   []int64
}

// batch is one claim.
type batch struct {
	fence     int64
	worker    string
	claimedAt int64
	left      map[pawl.ID]int64 // their seq: an ID can be enqueued again
}

// add notes the jobs of one claim.
func (b *batches) add(found []*record) {
	if len(found) == 0 {
		return
	}
	first := found[0]
	claim := &batch{first.fence, first.worker, first.claimedAt, make(map[pawl.ID]int64, len(found))}
	for _, r := range found {
		claim.left[r.id] = r.seq
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.claims == nil || len(b.claims) >= maxBatches {
		b.claims = make(map[int64]*batch)
	}
	b.claims[claim.fence] = claim
}

// of returns the claim by which a job was read as running, if it is known, and
// the seq of the job.
func (b *batches) of(ref pawl.Ref) (claim *batch, seq int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if claim = b.claims[ref.Fence]; claim != nil {
		seq, ok = claim.left[ref.ID]
	}
	return claim, seq, ok
}

// settled notes that a settle of a claim was committed.
func (b *batches) settled(ref pawl.Ref) {
	b.mu.Lock()
	defer b.mu.Unlock()
	claim, ok := b.claims[ref.Fence]
	if !ok {
		return
	}
	delete(claim.left, ref.ID)
	if len(claim.left) == 0 {
		delete(b.claims, ref.Fence)
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
