package storagetest

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// thirds divides queues in three by the last byte of the key or ID.
func thirds(q *pawl.Request) int {
	key := q.ID[:]
	if q.UniqueKey != "" {
		key = []byte(q.UniqueKey)
	}
	return int(key[len(key)-1]) % 3
}

// dividedHarness is one of references with divided queues, which go through their
// parts from the last to the first.
func dividedHarness() Harness {
	h := referenceHarness()
	h.Part = thirds
	h.Open = func(_ testing.TB, clock func() time.Time) pawl.Storage {
		s := newReference(clock)
		s.m.part = thirds
		s.m.ended = func(r *record) bool { return r.part == 2 }
		s.claim = func(spec pawl.ClaimSpec, now time.Time) []*pawl.Job {
			var order []*record
			for _, ask := range spec.Queues {
				s.m.promote(ask.Queue, now)
				s.m.expire(ask.Queue, now)
				order = append(order, s.m.claimable(ask.Queue, now)...)
			}
			slices.SortStableFunc(order, func(a, b *record) int { return cmp.Or(b.part-a.part, a.earlier(b)) })
			return copies(s.m.claim(spec, now, copies(order)))
		}
		return s
	}
	return h
}

func TestDividedReference(t *testing.T) {
	Run(t, dividedHarness())
}

// TestDisorderInPartIsSeen breaks the order that is left to a divided queue.
func TestDisorderInPartIsSeen(t *testing.T) {
	h := dividedHarness()
	open := h.Open
	h.Open = func(t testing.TB, clock func() time.Time) pawl.Storage {
		s := open(t, clock).(*reference)
		ordered := s.claim
		s.claim = func(spec pawl.ClaimSpec, now time.Time) []*pawl.Job {
			for _, r := range s.m.jobs { // the newest come first
				r.seq = -max(r.seq, -r.seq)
			}
			jobs := ordered(spec, now)
			for _, r := range s.m.jobs {
				r.seq = max(r.seq, -r.seq)
			}
			return jobs
		}
		return s
	}
	for _, name := range []string{"rules/claim order", "rules/enqueue of many", "model/random"} {
		if r := failingCase(t, h, name); !r.Failed() {
			t.Errorf("%s did not fail", name)
		}
	}
}

// TestForgottenPartIsSeen never claims from one part.
func TestForgottenPartIsSeen(t *testing.T) {
	h := dividedHarness()
	open := h.Open
	h.Open = func(t testing.TB, clock func() time.Time) pawl.Storage {
		s := open(t, clock).(*reference)
		all := s.claim
		s.claim = func(spec pawl.ClaimSpec, now time.Time) []*pawl.Job {
			left := map[pawl.ID]*record{}
			for id, r := range s.m.jobs {
				if r.part == 1 && r.State.Waiting() {
					left[id] = r
					delete(s.m.jobs, id)
				}
			}
			jobs := all(spec, now)
			for id, r := range left {
				s.m.jobs[id] = r
			}
			return jobs
		}
		return s
	}
	for _, name := range []string{"concurrent/claims are distinct", "model/random"} {
		if r := failingCase(t, h, name); !r.Failed() {
			t.Errorf("%s did not fail", name)
		}
	}
}
