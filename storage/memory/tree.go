package memory

import "iter"

// A key is a place in a tree. Ready jobs use all three parts: priority, the
// time they became due, order of insertion. All others leave rank at 0.
type key struct{ rank, at, seq int64 }

func (k key) less(o key) bool {
	if k.rank != o.rank {
		return k.rank < o.rank
	}
	if k.at != o.at {
		return k.at < o.at
	}
	return k.seq < o.seq
}

// An item is something and its place. Keys lie beside each other in the nodes,
// so that a search does not touch what they stand for.
type item[V any] struct {
	key
	v V
}

const (
	// fanout is the number of items in a full node: 1 KiB of them, which is
	// still quick to shift, and a million records are four nodes deep.
	fanout = 32
	// mergeAt is the number of items up to which two neighbours become one.
	// It is under fanout so that a node does not split and merge in turns.
	mergeAt = fanout * 3 / 4
)

// A tree keeps pointers to records or queues in the order of their keys: a B+
// tree. Adding and removing cost O(log n); the first one, which all hot paths
// want, and the end, where most are added, are found without comparing much.
//
// The zero tree is empty.
type tree[V any] struct {
	root *node[V]
	size int
}

// A node is a leaf if it has no kids; else items[i] carries the least key
// under kids[i], or one less than that, and nothing else.
type node[V any] struct {
	items []item[V]
	kids  []*node[V]
}

// insert adds v at k, where nothing may be.
func (t *tree[V]) insert(k key, v V) {
	t.size++
	if t.root == nil {
		t.root = &node[V]{}
	}
	right := t.root.insert(item[V]{k, v})
	if right == nil {
		return
	}
	left := t.root
	t.root = newInner[V]()
	t.root.items = append(t.root.items, item[V]{key: left.items[0].key}, item[V]{key: right.items[0].key})
	t.root.kids = append(t.root.kids, left, right)
}

// remove takes out what is at k and reports whether there was anything.
func (t *tree[V]) remove(k key) bool {
	if t.root == nil || !t.root.remove(k) {
		return false
	}
	t.size--
	for len(t.root.kids) == 1 {
		t.root = t.root.kids[0]
	}
	return true
}

// first returns the item with the least key; the zero item if t is empty.
func (t *tree[V]) first() item[V] {
	if t.size == 0 {
		return item[V]{}
	}
	n := t.root
	for n.kids != nil {
		n = n.kids[0]
	}
	return n.items[0]
}

// last returns the item with the greatest key; the zero item if t is empty.
func (t *tree[V]) last() item[V] {
	if t.size == 0 {
		return item[V]{}
	}
	n := t.root
	for n.kids != nil {
		n = n.kids[len(n.kids)-1]
	}
	return n.items[len(n.items)-1]
}

// seek returns the first item at or after k; the zero item if there is none.
func (t *tree[V]) seek(k key) item[V] {
	for it := range t.from(k) {
		return it
	}
	return item[V]{}
}

// from walks the items at or after k in order. The tree must not change
// meanwhile.
func (t *tree[V]) from(k key) iter.Seq[item[V]] {
	return func(yield func(item[V]) bool) {
		if t.root != nil {
			t.root.walk(k, yield)
		}
	}
}

func (n *node[V]) walk(k key, yield func(item[V]) bool) bool {
	if n.kids == nil {
		for _, it := range n.items[n.find(k):] {
			if !yield(it) {
				return false
			}
		}
		return true
	}
	for _, kid := range n.kids[n.kid(k):] {
		if !kid.walk(k, yield) {
			return false
		}
	}
	return true
}

// find returns the index of the first item at or after k.
func (n *node[V]) find(k key) int {
	i, j := 0, len(n.items)
	if j == 0 || n.items[j-1].less(k) {
		return j // most insertions are at the end
	}
	if !n.items[0].less(k) {
		return 0 // and most removals at the front
	}
	for i < j {
		if m := (i + j) / 2; n.items[m].less(k) {
			i = m + 1
		} else {
			j = m
		}
	}
	return i
}

// kid returns the index of the kid under which k belongs.
func (n *node[V]) kid(k key) int {
	i := n.find(k)
	if i == len(n.items) || n.items[i].key != k {
		i--
	}
	return max(i, 0)
}

// insert adds it under n. If n was full, it returns the part of n that became
// a node of its own, to the right of n.
func (n *node[V]) insert(it item[V]) *node[V] {
	if n.kids == nil {
		return n.place(n.find(it.key), it, nil)
	}
	i := n.kid(it.key)
	if it.less(n.items[i].key) {
		n.items[i].key = it.key
	}
	right := n.kids[i].insert(it)
	if right == nil {
		return nil
	}
	return n.place(i+1, item[V]{key: right.items[0].key}, right)
}

// place puts it, and kid if n has kids, at index i of n itself.
func (n *node[V]) place(i int, it item[V], kid *node[V]) *node[V] {
	if len(n.items) < fanout {
		n.items = insertAt(n.items, i, it)
		if kid != nil {
			n.kids = insertAt(n.kids, i, kid)
		}
		return nil
	}
	right := n.split(i)
	if i > len(n.items) || len(right.items) == 0 {
		right.place(i-len(n.items), it, kid)
	} else {
		n.place(i, it, kid)
	}
	return right
}

// split cuts the right half off n. Before an insertion at the end it cuts off
// nothing, so that keys that come in order leave full nodes behind.
func (n *node[V]) split(i int) *node[V] {
	at := fanout / 2
	if i == fanout {
		at = fanout
	}
	right := newLeaf[V]()
	if n.kids != nil {
		right = newInner[V]()
		right.kids = append(right.kids, n.kids[at:]...)
		n.kids = truncate(n.kids, at)
	}
	right.items = append(right.items, n.items[at:]...)
	n.items = truncate(n.items, at)
	return right
}

// remove takes the item at k out from under n.
func (n *node[V]) remove(k key) bool {
	if n.kids == nil {
		i := n.find(k)
		if i == len(n.items) || n.items[i].key != k {
			return false
		}
		n.items = removeAt(n.items, i)
		return true
	}
	i := n.kid(k)
	if !n.kids[i].remove(k) {
		return false
	}
	if len(n.kids[i].items) == 0 {
		n.cut(i)
	} else if !n.merge(i) {
		n.merge(i - 1)
	}
	return true
}

// cut takes kid i out of n.
func (n *node[V]) cut(i int) {
	n.items = removeAt(n.items, i)
	n.kids = removeAt(n.kids, i)
}

// merge joins kid i and the one after it if they are small, so that the room
// that removed items leave stays in proportion to those that are left.
func (n *node[V]) merge(i int) bool {
	if i < 0 || i+1 >= len(n.kids) {
		return false
	}
	left, right := n.kids[i], n.kids[i+1]
	if len(left.items)+len(right.items) > mergeAt {
		return false
	}
	left.items = append(left.items, right.items...)
	left.kids = append(left.kids, right.kids...)
	n.cut(i + 1)
	return true
}

// The first node of a tree grows as it needs, because many queues hold few
// jobs; later ones have room for all that they will hold.
func newLeaf[V any]() *node[V] { return &node[V]{items: make([]item[V], 0, fanout)} }

func newInner[V any]() *node[V] {
	n := newLeaf[V]()
	n.kids = make([]*node[V], 0, fanout)
	return n
}

func insertAt[E any](s []E, i int, e E) []E {
	s = append(s, e)
	copy(s[i+1:], s[i:])
	s[i] = e
	return s
}

func removeAt[E any](s []E, i int) []E {
	copy(s[i:], s[i+1:])
	return truncate(s, len(s)-1)
}

// truncate shortens s to n elements and lets go of what the others point to.
func truncate[E any](s []E, n int) []E {
	clear(s[n:])
	return s[:n]
}
