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

// An item is a record and its place. Keys lie beside each other in the nodes,
// so that a search does not touch the records.
type item struct {
	key
	r *record
}

const (
	// fanout is the number of items in a full node: 1 KiB of them, which is
	// still quick to shift, and a million records are four nodes deep.
	fanout = 32
	// mergeAt is the number of items up to which two neighbours become one.
	// It is under fanout so that a node does not split and merge in turns.
	mergeAt = fanout * 3 / 4
)

// A tree keeps records in the order of their keys: a B+ tree. Adding and
// removing cost O(log n); the first record, which all hot paths want, and the
// end, where most are added, are found without comparing much.
//
// The zero tree is empty.
type tree struct {
	root *node
	size int
}

// A node is a leaf if it has no kids; else items[i] carries the least key
// under kids[i], or one less than that, and no record.
type node struct {
	items []item
	kids  []*node
}

// insert adds r at k, where no record may be.
func (t *tree) insert(k key, r *record) {
	t.size++
	if t.root == nil {
		t.root = &node{}
	}
	right := t.root.insert(item{k, r})
	if right == nil {
		return
	}
	left := t.root
	t.root = newInner()
	t.root.items = append(t.root.items, item{key: left.items[0].key}, item{key: right.items[0].key})
	t.root.kids = append(t.root.kids, left, right)
}

// remove takes out the record at k and reports whether there was one.
func (t *tree) remove(k key) bool {
	if t.root == nil || !t.root.remove(k) {
		return false
	}
	t.size--
	for len(t.root.kids) == 1 {
		t.root = t.root.kids[0]
	}
	return true
}

// first returns the item with the least key; its record is nil if t is empty.
func (t *tree) first() item {
	if t.size == 0 {
		return item{}
	}
	n := t.root
	for n.kids != nil {
		n = n.kids[0]
	}
	return n.items[0]
}

// last returns the item with the greatest key; its record is nil if t is empty.
func (t *tree) last() item {
	if t.size == 0 {
		return item{}
	}
	n := t.root
	for n.kids != nil {
		n = n.kids[len(n.kids)-1]
	}
	return n.items[len(n.items)-1]
}

// seek returns the first item at or after k; its record is nil if there is none.
func (t *tree) seek(k key) item {
	for it := range t.from(k) {
		return it
	}
	return item{}
}

// from walks the items at or after k in order. The tree must not change
// meanwhile.
func (t *tree) from(k key) iter.Seq[item] {
	return func(yield func(item) bool) {
		if t.root != nil {
			t.root.walk(k, yield)
		}
	}
}

func (n *node) walk(k key, yield func(item) bool) bool {
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
func (n *node) find(k key) int {
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
func (n *node) kid(k key) int {
	i := n.find(k)
	if i == len(n.items) || n.items[i].key != k {
		i--
	}
	return max(i, 0)
}

// insert adds it under n. If n was full, it returns the part of n that became
// a node of its own, to the right of n.
func (n *node) insert(it item) *node {
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
	return n.place(i+1, item{key: right.items[0].key}, right)
}

// place puts it, and kid if n has kids, at index i of n itself.
func (n *node) place(i int, it item, kid *node) *node {
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
func (n *node) split(i int) *node {
	at := fanout / 2
	if i == fanout {
		at = fanout
	}
	right := newLeaf()
	if n.kids != nil {
		right = newInner()
		right.kids = append(right.kids, n.kids[at:]...)
		n.kids = truncate(n.kids, at)
	}
	right.items = append(right.items, n.items[at:]...)
	n.items = truncate(n.items, at)
	return right
}

// remove takes the item at k out from under n.
func (n *node) remove(k key) bool {
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
func (n *node) cut(i int) {
	n.items = removeAt(n.items, i)
	n.kids = removeAt(n.kids, i)
}

// merge joins kid i and the one after it if they are small, so that the room
// that removed items leave stays in proportion to those that are left.
func (n *node) merge(i int) bool {
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
func newLeaf() *node { return &node{items: make([]item, 0, fanout)} }

func newInner() *node {
	return &node{items: make([]item, 0, fanout), kids: make([]*node, 0, fanout)}
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
