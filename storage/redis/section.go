package redis

import "slices"

// A section is what a call has for one tag: the places of its items.
type section struct {
	tag    tag
	places []int
}

// sections sorts n items by tag, in the order in which tags first come.
func sections(n int, tagOf func(i int) tag) []section {
	if n == 0 {
		return nil
	}
	at, all := 0, []section{{tag: tagOf(0)}}
	known := map[tag]int{all[0].tag: 0}
	for i := range n {
		if t := tagOf(i); t != all[at].tag { // most have one tag
			var ok bool
			if at, ok = known[t]; !ok {
				at = len(all)
				known[t] = at
				all = append(all, section{tag: t})
			}
		}
		all[at].places = append(all[at].places, i)
	}
	return all
}

// calls divides sections over calls of a script: one for all, or on a cluster,
// where a script can reach only one slot, one each.
func calls[T any](s *Store, all []T) [][]T {
	if !s.cluster && len(all) > 0 {
		return [][]T{all}
	}
	each := make([][]T, len(all))
	for i := range all {
		each[i] = all[i : i+1]
	}
	return each
}

func (s *Store) keys(all []section) []any { return s.names.queues(sectionTags(all)) }

// placesOf lists all places, in order.
func placesOf(all []section) (places []int) {
	for _, sec := range all {
		places = append(places, sec.places...)
	}
	slices.Sort(places)
	return places
}

func sectionTags(all []section) []tag {
	tags := make([]tag, len(all))
	for i := range all {
		tags[i] = all[i].tag
	}
	return tags
}

// begin begins the argument of a script: an object with n fields besides those
// that all have.
func (s *Store) begin(n int) *message {
	m := new(message)
	m.object(n + 3)
	m.string("now")
	m.int(s.now())
	m.string("channel")
	m.string(s.names.channel)
	m.string("cluster")
	m.bool(s.cluster)
	return m
}

func (m *message) field(name string, v int64) {
	m.string(name)
	m.int(v)
}

// fence is a fence as scripts compare it. None that was given is beyond what a
// float64 holds exactly, which is the only sort of number there.
func fence(f int64) int64 {
	if f <= 0 || f > 1<<53 {
		return -1
	}
	return f
}
