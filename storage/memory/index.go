package memory

// An index finds slots of records by a name that is unique among them. A Go map keeps
// the room of all that it ever held; an index gives it back.
//
// The zero index is empty.
type index[K comparable] struct {
	m    map[K]slot
	peak int // greatest len(m) since m was made
}

// minShrink is the size under which an index keeps its room: to give back less
// than a megabyte or two is not worth the copying.
const minShrink = 1 << 15

func (x *index[K]) get(k K) slot { return x.m[k] }

func (x *index[K]) put(k K, s slot) {
	if x.m == nil {
		x.m = make(map[K]slot)
	}
	x.m[k] = s
	x.peak = max(x.peak, len(x.m))
}

// remove deletes k. When seven of eight entries are gone, the rest moves to a
// new map: at most one move for seven removals.
func (x *index[K]) remove(k K) {
	delete(x.m, k)
	if x.peak < minShrink || len(x.m) > x.peak/8 {
		return
	}
	m := make(map[K]slot, len(x.m))
	for k, s := range x.m {
		m[k] = s
	}
	x.m, x.peak = m, len(m)
}
