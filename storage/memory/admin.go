package memory

import (
	"context"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// Get implements [pawl.Admin].
func (s *Store) Get(ctx context.Context, queue string, ids ...pawl.ID) ([]*pawl.Job, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	result := make([]*pawl.Job, len(ids))
	jobs := make([]pawl.Job, 0, len(ids))
	for i, id := range ids {
		if r := s.find(queue, id); r != nil {
			jobs = jobs[:len(jobs)+1]
			result[i] = &jobs[len(jobs)-1]
			r.fill(result[i])
		}
	}
	s.mu.Unlock()
	detach(jobs)
	return result, nil
}

// find returns the record with the ID, nil if there is none or it is not in the
// queue. An empty queue stands for all.
func (s *Store) find(queue string, id pawl.ID) *record {
	r := s.get(id)
	if r != nil && queue != "" && r.queue.name != queue {
		return nil
	}
	return r
}

// Count implements [pawl.Admin]. Per queue it costs no more with many jobs than
// with few.
func (s *Store) Count(ctx context.Context, queues ...string) ([]pawl.QueueStats, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	now := s.now()
	if len(queues) == 0 {
		stats := make([]pawl.QueueStats, len(s.sorted))
		for i, q := range s.sorted {
			stats[i] = q.stats(now)
		}
		return stats, nil
	}
	names := slices.Compact(slices.Sorted(slices.Values(queues)))
	stats := make([]pawl.QueueStats, len(names))
	for i, name := range names {
		stats[i].Queue = name
		if q := s.queues[name]; q != nil {
			stats[i] = q.stats(now)
		}
	}
	return stats, nil
}

func (q *queue) stats(now int64) pawl.QueueStats {
	size := func(state pawl.State) int64 { return int64(q.in[state].size) }
	return pawl.QueueStats{
		Queue:       q.name,
		Paused:      q.paused,
		Scheduled:   size(pawl.Scheduled),
		Ready:       size(pawl.Ready),
		Running:     size(pawl.Running),
		Completed:   size(pawl.Completed),
		Buried:      size(pawl.Buried),
		Canceled:    size(pawl.Canceled),
		Retrying:    int64(q.retrying),
		OldestReady: time.Duration(now-q.oldestReady(now)) * time.Microsecond,
	}
}

// Configure implements [pawl.Admin].
func (s *Store) Configure(ctx context.Context, queue string, settings pawl.QueueSettings) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if settings.Paused == nil {
		return nil
	}
	if *settings.Paused {
		s.open(queue).paused = true
		s.notePaused(queue)
		return nil
	}
	if q := s.queues[queue]; q != nil && q.paused {
		s.resume(q)
	}
	return nil
}

// resume ends the pause of q and wakes claimers for the jobs that waited.
func (s *Store) resume(q *queue) {
	q.paused = false
	if q.in[pawl.Ready].size > 0 {
		s.noteReady(q, s.now())
	} else if it := q.in[pawl.Scheduled].first(); it.v != 0 {
		s.noteReady(q, it.at)
	}
	s.forgetIfEmpty(q)
}
