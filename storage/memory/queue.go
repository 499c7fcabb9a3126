package memory

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/pawlq/pawl"
)

// A queue holds the records of one queue, by state in the order of List.
type queue struct {
	name     string
	records  *arena
	paused   bool
	jobs     int // in all states
	retrying int // Scheduled for ReasonRetry or ReasonRescue
	in       [pawl.Canceled + 1]tree[slot]
	keys     index[string] // unique key to who took it last
	terms    *terms        // of the newest job
	next     key           // its place in Store.scheduled, if it is there
}

// waiting returns the number of waiting jobs.
func (q *queue) waiting() int { return q.in[pawl.Scheduled].size + q.in[pawl.Ready].size }

// first returns the first record in a state, nil if there is none.
func (q *queue) first(state pawl.State) *record { return q.records.at(q.in[state].first().v) }

// holder returns the record that holds a unique key, nil if none does.
func (q *queue) holder(key string, now int64) *record {
	if r := q.records.at(q.keys.get(key)); r != nil && r.holdsKey(now) {
		return r
	}
	return nil
}

// share returns t, or the terms of the newest job if they are the same.
func (q *queue) share(t terms) *terms {
	if q.terms == nil || *q.terms != t {
		t.kind = strings.Clone(t.kind) // it may be a piece of something large
		q.terms = &t
	}
	return q.terms
}

// oldest returns the record that gives way when the queue is full: of the
// ready ones with the least urgent priority the one due first, or else the
// scheduled one due next; nil if none waits.
func (q *queue) oldest() *record {
	last := q.in[pawl.Ready].last()
	if last.v == 0 {
		return q.first(pawl.Scheduled)
	}
	return q.records.at(q.in[pawl.Ready].seek(key{last.rank, math.MinInt64, 0}).v)
}

// oldestReady returns when the longest due ready job became due; now if there
// is none. It looks at one job per priority in use.
func (q *queue) oldestReady(now int64) int64 {
	oldest := now
	it := q.in[pawl.Ready].first()
	for it.v != 0 {
		oldest = min(oldest, it.at)
		it = q.in[pawl.Ready].seek(key{it.rank + 1, math.MinInt64, 0})
	}
	return oldest
}

// search returns where the queue with the name is, or would be, in s.sorted.
func (s *Store) search(name string) (int, bool) {
	return slices.BinarySearchFunc(s.sorted, name, func(q *queue, name string) int {
		return cmp.Compare(q.name, name)
	})
}

// open returns the queue with the name and makes it if need be. Keeping the
// names sorted moves 8 bytes a queue: some 10 µs with 100,000 queues.
func (s *Store) open(name string) *queue {
	if q := s.queues[name]; q != nil {
		return q
	}
	q := s.spare
	if q == nil || q.name != name {
		q = &queue{name: strings.Clone(name), records: &s.records}
	}
	s.queues[q.name] = q
	i, _ := s.search(q.name)
	s.sorted = slices.Insert(s.sorted, i, q)
	return q
}

// forgetIfEmpty forgets q if it has neither jobs nor settings. The last queue
// that was forgotten is kept aside, because a queue that drains is often filled
// again.
func (s *Store) forgetIfEmpty(q *queue) {
	if q.jobs > 0 || q.paused {
		return
	}
	delete(s.queues, q.name)
	i, _ := s.search(q.name)
	s.sorted = slices.Delete(s.sorted, i, i+1)
	s.spare = q
}

// reschedule puts q where its first scheduled job, if any, belongs in
// s.scheduled.
func (s *Store) reschedule(q *queue) {
	it := q.in[pawl.Scheduled].first()
	if it.key == q.next {
		return
	}
	if q.next != (key{}) {
		s.scheduled.remove(q.next)
	}
	if it.v != 0 {
		s.scheduled.insert(it.key, q)
	}
	q.next = it.key
}
