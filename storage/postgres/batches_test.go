package postgres

import (
	"testing"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

// TestSmallClaimsRememberedAreFew: claims of which a job is left that a caller's transaction
// has settled.
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
