package memory

import "math/bits"

// A slot is the number of a record in its arena; 0 is none. Trees and indexes
// hold slots instead of pointers, so that the garbage collector has nothing to
// look for in them, however many jobs there are.
type slot uint32

// pageSize is the number of records in a page: few enough that one which stays
// does not keep much, and a bit in a word for each.
const pageSize = 64

// A page is records that lie beside each other.
type page struct {
	records [pageSize]record
	free    uint64 // a bit for each record
}

// An arena holds the records of a store in pages, which it gives back as they
// empty. What it keeps are some 12 bytes a page of the most there ever were.
//
// The zero arena is empty.
type arena struct {
	pages []*page  // nil: given back
	room  []uint32 // numbers of the pages that are not full, those given back included
	spare *page    // the last that emptied, because a store that drains often fills again
}

// at returns the record of a slot, nil for none.
func (a *arena) at(s slot) *record {
	if s == 0 {
		return nil
	}
	return &a.pages[(s-1)/pageSize].records[(s-1)%pageSize]
}

// take returns a record that is not in use, zero but for its slot.
func (a *arena) take() *record {
	if len(a.room) == 0 {
		a.room = append(a.room, uint32(len(a.pages)))
		a.pages = append(a.pages, nil)
	}
	n := a.room[len(a.room)-1]
	p := a.pages[n]
	if p == nil {
		p = a.newPage()
		a.pages[n] = p
	}
	i := bits.TrailingZeros64(p.free)
	p.free &^= 1 << i
	if p.free == 0 {
		a.room = a.room[:len(a.room)-1]
	}
	r := &p.records[i]
	r.slot = slot(n*pageSize + uint32(i) + 1)
	return r
}

func (a *arena) newPage() *page {
	p := a.spare
	if p == nil {
		p = &page{free: ^uint64(0)}
	}
	a.spare = nil
	return p
}

// give takes r back, which nothing refers to any more.
func (a *arena) give(r *record) {
	n, i := uint32(r.slot-1)/pageSize, (r.slot-1)%pageSize
	p := a.pages[n]
	*r = record{}
	if p.free == 0 {
		a.room = append(a.room, n)
	}
	p.free |= 1 << i
	if p.free == ^uint64(0) {
		a.pages[n], a.spare = nil, p
	}
}
