package postgres

import (
	"testing"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

// TestWhatLeavesIsForgotten: of jobs that a caller's transaction has settled, or that were
// lost, nothing is kept, and the row of their claim is left to Sweep.
func TestWhatLeavesIsForgotten(t *testing.T) {
	var b batches
	left, settled, other := uuid.New(), uuid.New(), uuid.New()
	b.add([]*record{{id: left, fence: 1}, {id: settled, fence: 1}})
	b.add([]*record{{id: other, fence: 2}})
	b.leaveAll([]pawl.Ref{{ID: left, Fence: 1}, {ID: left, Fence: 1}, {ID: left, Fence: 2}})
	if b.jobs != 2 || len(b.claims) != 2 {
		t.Errorf("%d jobs of %d claims are remembered, want 2 of 2", b.jobs, len(b.claims))
	}
	for _, ref := range []pawl.Ref{{ID: settled, Fence: 1}, {ID: other, Fence: 2}} {
		b.settled(ref)
	}
	if b.jobs != 0 || len(b.claims) != 0 {
		t.Errorf("%d jobs of %d claims are remembered, want none", b.jobs, len(b.claims))
	}
	if over := b.take(); len(over) != 1 || over[0] != 2 {
		t.Errorf("claims %v are over, want that of 2", over)
	}
}

// TestSmallClaimsRememberedAreFew: claims of which a job is left that nobody settles.
func TestSmallClaimsRememberedAreFew(t *testing.T) {
	const extra = 10
	var b batches
	id := uuid.New()
	for fence := int64(1); fence <= maxClaims+extra; fence++ {
		b.add([]*record{{id: id, fence: fence}})
	}
	if len(b.claims) != maxClaims || b.jobs != maxClaims || len(b.order) != maxClaims {
		t.Errorf("%d claims of %d jobs are remembered, in a list of %d; want %d", len(b.claims), b.jobs, len(b.order), maxClaims)
	}
	for _, fence := range []int64{extra, extra + 1} {
		if _, _, ok := b.of(pawl.Ref{ID: id, Fence: fence}); ok != (fence > extra) {
			t.Errorf("claim %d is remembered: %v", fence, ok)
		}
	}
}

// TestClaimsRememberedAreFew: a program that claims and does not settle.
func TestClaimsRememberedAreFew(t *testing.T) {
	const size = 1000
	var b batches
	var refs []pawl.Ref // the first of each claim
	for fence := int64(1); fence <= maxRemembered/size+5; fence++ {
		found := make([]*record, size)
		for i := range found {
			found[i] = &record{id: uuid.New(), fence: fence}
		}
		b.add(found)
		refs = append(refs, pawl.Ref{ID: found[0].id, Fence: fence})
		if b.jobs > maxRemembered {
			t.Fatalf("%d jobs are remembered", b.jobs)
		}
	}
	for i, ref := range refs {
		if _, _, ok := b.of(ref); ok != (i >= 5) {
			t.Errorf("claim %d of %d is remembered: %v", i, len(refs), ok)
		}
	}
}

// TestFenceThatComesAgain: the jobs of the claim that had it before are forgotten.
func TestFenceThatComesAgain(t *testing.T) {
	var b batches
	before, after := uuid.New(), uuid.New()
	b.add([]*record{{id: before, fence: 1}, {id: uuid.New(), fence: 1}})
	b.add([]*record{{id: after, fence: 1}})
	if _, _, ok := b.of(pawl.Ref{ID: before, Fence: 1}); ok || b.jobs != 1 {
		t.Errorf("%d jobs are remembered, that of the lost claim: %v", b.jobs, ok)
	}
	b.settled(pawl.Ref{ID: after, Fence: 1})
	if len(b.claims) != 0 || b.jobs != 0 {
		t.Errorf("%d claims of %d jobs are remembered", len(b.claims), b.jobs)
	}
}
