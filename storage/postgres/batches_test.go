package postgres

import (
	"testing"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

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
