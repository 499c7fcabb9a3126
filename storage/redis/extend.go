package redis

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

func (s *Store) extend(ctx context.Context, renewals []pawl.Renewal) ([]pawl.Ref, error) {
	places, err := s.extendAll(ctx, renewals)
	if err != nil {
		return nil, err
	}
	var refs []pawl.Ref
	for _, place := range places {
		if place >= 0 && place < len(renewals) {
			refs = append(refs, renewals[place].Ref)
		}
	}
	return refs, nil
}

// extendAll returns the places of those that are lost, in order. On a cluster the calls are
// made at the same time: leases must not end because another node is down.
func (s *Store) extendAll(ctx context.Context, renewals []pawl.Renewal) (lost []int, err error) {
	tags, err := s.refTags(ctx, len(renewals), func(i int) pawl.Ref { return renewals[i].Ref })
	if err != nil {
		return nil, err
	}
	parts := calls(s, sections(len(tags), func(i int) tag { return tags[i] }))
	places, errs := make([][]int, len(parts)), make([]error, len(parts))
	var wg sync.WaitGroup
	for i, some := range parts {
		call := func() { places[i], errs[i] = s.extendSome(ctx, some, renewals) }
		if i == len(parts)-1 {
			call()
		} else {
			wg.Go(call)
		}
	}
	wg.Wait()
	lost = slices.Concat(places...)
	slices.Sort(lost)
	return lost, cmp.Or(errs...)
}

// extendSome extends the claims of some sections, wherever they are.
func (s *Store) extendSome(ctx context.Context, some []section, renewals []pawl.Renewal) ([]int, error) {
	places, err := s.extendSections(ctx, some, renewals)
	if s.divided(ctx, err) {
		return s.extendAnew(ctx, some, renewals)
	}
	return places, err
}

// extendSections extends the claims of some sections in one step.
func (s *Store) extendSections(ctx context.Context, some []section, renewals []pawl.Renewal) (lost []int, err error) {
	reply, err := s.run(ctx, s.scripts.extend, s.keys(some), []byte(*s.renewals(some, renewals)))
	if err != nil {
		return nil, err
	}
	places, err := items(reply, 0)
	for _, place := range places {
		lost = append(lost, int(number(place)))
	}
	alive := slices.DeleteFunc(slices.Clone(some), func(sec section) bool {
		return !slices.ContainsFunc(sec.places, func(place int) bool { return !slices.Contains(lost, place) })
	})
	s.touch(ctx, sectionTags(alive))
	return lost, err
}

// extendAnew extends the claims of sections that were refused, since one of their queues
// was divided, where they are now.
func (s *Store) extendAnew(ctx context.Context, refused []section, renewals []pawl.Renewal) ([]int, error) {
	places := placesOf(refused)
	these := make([]pawl.Renewal, len(places))
	for i, place := range places {
		these[i] = renewals[place]
	}
	lost, err := s.extendAll(ctx, these)
	for i, place := range lost {
		lost[i] = places[place]
	}
	return lost, err
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
