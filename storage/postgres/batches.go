package postgres

import (
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pawlq/pawl"
)

// maxRemembered bounds of how many jobs a Store remembers that it has claimed
// them: some 10 MB. It forgets the oldest claims, such as those that nobody settles.
// What becomes of their rows is left to Sweep. Of such claims often a single job is
// left, and each costs half a kilobyte, so maxClaims bounds their number too: some
// 16 MB, and more than most programs have slots.
const (
	maxRemembered = 100_000
	maxClaims     = 32_768
)

// batches remembers which jobs of this Store's claims are not settled. So the row
// of a claim can go with the last of them, and an ack need not look for it. Only
// what this Store has read as running, and then settled itself, counts: a claim
// must never go while it holds a fresh job.
type batches struct {
	mu     sync.Mutex
	claims map[int64]*batch // by fence
	order  []int64          // fences, oldest first, also of some that are no longer in claims
	jobs   int              // in claims
	over   []int64
}

// batch is one claim.
type batch struct {
	fence     int64
	worker    string
	claimedAt int64
	left      map[pawl.ID]claimedRow
	unsure    bool // whether all that are no longer in left have left the claim
}

// claimedRow is what is known of the row of a claimed job.
type claimedRow struct {
	seq  int64 // an ID can be enqueued again
	tid  pgtype.TID
	kept bool // by an ack
}

// add notes the jobs of one claim.
func (b *batches) add(found []*record) {
	if len(found) == 0 {
		return
	}
	first := found[0]
	claim := &batch{fence: first.fence, worker: first.worker, claimedAt: first.claimedAt, left: make(map[pawl.ID]claimedRow, len(found))}
	for _, r := range found {
		claim.left[r.id] = claimedRow{r.seq, r.tid, r.retention >= 0 || r.windowed()}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.claims == nil {
		b.claims = make(map[int64]*batch)
	}
	b.forget(claim.fence) // a server that has lost the commit of a claim may give its fence again
	b.claims[claim.fence] = claim
	b.jobs += len(claim.left)
	b.order = append(b.order, claim.fence)
	for b.jobs > maxRemembered || len(b.claims) > maxClaims {
		b.forget(b.order[0])
		b.order = b.order[1:]
	}
	if len(b.order) > 2*len(b.claims)+100 {
		b.order = slices.DeleteFunc(b.order, func(fence int64) bool { return b.claims[fence] == nil })
	}
}

// forget drops a claim, if it is still there.
func (b *batches) forget(fence int64) {
	if claim := b.claims[fence]; claim != nil {
		b.jobs -= len(claim.left)
		delete(b.claims, fence)
	}
}

// of returns the claim by which a job was read as running, if it is known, and
// the row of the job. Its caller holds mu.
func (b *batches) of(ref pawl.Ref) (claim *batch, row claimedRow, ok bool) {
	if claim = b.claims[ref.Fence]; claim != nil {
		row, ok = claim.left[ref.ID]
	}
	return claim, row, ok
}

// settled notes that a settle of a claim was committed. Its caller holds mu.
func (b *batches) settled(ref pawl.Ref) {
	claim, _, ok := b.of(ref)
	if !ok {
		return
	}
	b.jobs--
	delete(claim.left, ref.ID)
	if len(claim.left) > 0 {
		return
	}
	delete(b.claims, ref.Fence)
	if !claim.unsure {
		b.over = append(b.over, ref.Fence)
	}
}

// leave forgets a job that the Store is not going to settle: a caller's transaction has, which
// may yet be rolled back, or its claim was lost. Sweep sees to the row of the claim. Its caller
// holds mu.
func (b *batches) leave(ref pawl.Ref) {
	if claim, _, ok := b.of(ref); ok {
		claim.unsure = true
		b.settled(ref)
	}
}

// leaveAll is leave of several jobs, for callers that do not hold mu.
func (b *batches) leaveAll(refs []pawl.Ref) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ref := range refs {
		b.leave(ref)
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
