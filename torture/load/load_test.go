package load

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
)

// TestRequests: those of all classes are valid, and follow from ID and class.
func TestRequests(t *testing.T) {
	q := pawl.New(memory.New(nil), nil)
	for c := Plain; c < numClasses; c++ {
		id := uuid.Must(uuid.NewV7())
		a, b := Request(id, c), Request(id, c)
		if _, err := q.Prepare(a); err != nil {
			t.Errorf("%v: %v", c, err)
		}
		if !bytes.Equal(a.Payload, b.Payload) || a.Delay != b.Delay || a.UniqueKey != b.UniqueKey || a.Priority != b.Priority {
			t.Errorf("%v is %+v and %+v", c, a, b)
		}
		if ClassOf(a.Kind) != c {
			t.Errorf("%v is taken for %v", c, ClassOf(a.Kind))
		}
	}
}

// TestMix draws all classes and ways that a mix has, and no others.
func TestMix(t *testing.T) {
	for _, m := range []Mix{{}, {Tx: true}, {Tx: true, Deadly: 10_000}} {
		r := rand.New(rand.NewPCG(1, 1))
		classes, ways := map[Class]int{}, map[Way]int{}
		for range 100_000 {
			classes[m.Class(r)]++
			ways[m.Way(r)]++
		}
		for c := Plain; c < numClasses; c++ {
			want := (m.Tx || !c.Transactional()) && (m.Deadly > 0 || !c.Deadly())
			if (classes[c] > 0) != want {
				t.Errorf("%+v has %d jobs of class %v", m, classes[c], c)
			}
		}
		for w := Single; w <= RollBack; w++ {
			if want := m.Tx || w < InTx; (ways[w] > 0) != want {
				t.Errorf("%+v has %d of way %d", m, ways[w], w)
			}
		}
	}
}
