package memory

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestTreeAgainstSlice does the same at random to a tree and to a sorted slice.
func TestTreeAgainstSlice(t *testing.T) {
	for _, span := range []int64{8, 300, 20_000} {
		rnd := rand.New(rand.NewPCG(1, uint64(span)))
		var (
			tr   tree[slot]
			want []key
		)
		for step := range 60_000 {
			k := key{rnd.Int64N(3), rnd.Int64N(span), rnd.Int64N(4)}
			i, found := slices.BinarySearchFunc(want, k, compare)
			// Grow first, then shrink, so that nodes split and merge.
			grow := rnd.IntN(10) < 7
			if step > 30_000 {
				grow = !grow
			}
			switch {
			case grow && !found:
				tr.insert(k, 1)
				want = slices.Insert(want, i, k)
			case !grow && tr.remove(k) != found:
				t.Fatalf("span %d, step %d: remove(%v) = %v", span, step, k, !found)
			case !grow && found:
				want = slices.Delete(want, i, i+1)
			}
			if step%500 == 0 {
				checkTree(t, &tr, want, k)
			}
		}
		for _, k := range want {
			tr.remove(k)
		}
		checkTree(t, &tr, nil, key{})
	}
}

// checkTree compares what tr holds, and its walk from k, with want.
func checkTree(t *testing.T, tr *tree[slot], want []key, k key) {
	t.Helper()
	if got := keys(tr, beginning); !slices.Equal(got, want) {
		t.Fatalf("tree holds %v, want %v", got, want)
	}
	i, _ := slices.BinarySearchFunc(want, k, compare)
	if got := keys(tr, k); !slices.Equal(got, want[i:]) {
		t.Fatalf("from(%v) yields %v, want %v", k, got, want[i:])
	}
	var first, last key
	if len(want) > 0 {
		first, last = want[0], want[len(want)-1]
	}
	if tr.size != len(want) || tr.first().key != first || tr.last().key != last {
		t.Fatalf("size %d, first %v, last %v; want %d, %v, %v",
			tr.size, tr.first().key, tr.last().key, len(want), first, last)
	}
	if tr.root != nil {
		// A pair of neighbours holds more than mergeAt items, and so does
		// each pair above it.
		if leaves := countLeaves(tr.root); leaves > 2+4*len(want)/mergeAt {
			t.Fatalf("%d leaves for %d items", leaves, len(want))
		}
	}
}

func countLeaves(n *node[slot]) int {
	if n.kids == nil {
		return 1
	}
	sum := 0
	for _, kid := range n.kids {
		sum += countLeaves(kid)
	}
	return sum
}

func keys(tr *tree[slot], from key) []key {
	var ks []key
	for it := range tr.from(from) {
		ks = append(ks, it.key)
	}
	return ks
}

func compare(a, b key) int {
	switch {
	case a.less(b):
		return -1
	case b.less(a):
		return 1
	}
	return 0
}

// TestTreeInOrder adds at the end and takes from the front, as queues do, and
// sees that nodes are left full and go when they are empty.
func TestTreeInOrder(t *testing.T) {
	const n = 100 * fanout
	var tr tree[slot]
	for i := range int64(n) {
		tr.insert(key{at: i}, 1)
	}
	if got := countLeaves(tr.root); got != n/fanout {
		t.Errorf("%d leaves for %d items in order, want %d", got, n, n/fanout)
	}
	for i := range int64(n) {
		if got := tr.first().at; got != i {
			t.Fatalf("first is %d, want %d", got, i)
		}
		tr.remove(key{at: i})
	}
	if got := countLeaves(tr.root); got != 1 || tr.size != 0 {
		t.Errorf("%d leaves and %d items left", got, tr.size)
	}
	if tr.remove(key{}) || tr.seek(beginning).v != 0 {
		t.Error("an empty tree gave an item")
	}
}
