package redis

import (
	"context"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

func (s *Store) extend(ctx context.Context, renewals []pawl.Renewal) ([]pawl.Ref, error) {
	tags, err := s.refTags(ctx, len(renewals), func(i int) pawl.Ref { return renewals[i].Ref })
	if err != nil {
		return nil, err
	}
	var places []int
	for _, some := range calls(s, sections(len(tags), func(i int) tag { return tags[i] })) {
		reply, err := s.run(ctx, s.scripts.extend, s.keys(some), []byte(*s.renewals(some, renewals)))
		if err != nil {
			return nil, err
		}
		lost, err := items(reply, 0)
		if err != nil {
			return nil, err
		}
		for _, place := range lost {
			places = append(places, int(number(place)))
		}
	}
	slices.Sort(places)
	s.touch(ctx, current(tags, places))
	var refs []pawl.Ref
	for _, place := range places {
		if place >= 0 && place < len(renewals) {
			refs = append(refs, renewals[place].Ref)
		}
	}
	return refs, nil
}

// current lists the tags of the claims that are not lost.
func current(tags []tag, lost []int) (all []tag) {
	for i, t := range tags {
		if _, gone := slices.BinarySearch(lost, i); !gone {
			all = append(all, t)
		}
	}
	return all
}

func (s *Store) renewals(some []section, renewals []pawl.Renewal) *message {
	m := s.begin(1)
	m.string("queues")
	m.array(len(some))
	for _, sec := range some {
		m.object(1)
		m.string("renewals")
		m.array(len(sec.places))
		for _, place := range sec.places {
			n := &renewals[place]
			m.array(5)
			m.int(int64(place))
			m.bytes(n.Ref.ID[:])
			m.int(fence(n.Ref.Fence))
			m.int(microseconds(max(n.Lease, time.Microsecond)))
			m.bytes(progressBytes(n.Progress))
		}
	}
	return m
}
