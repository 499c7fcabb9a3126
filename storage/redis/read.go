package redis

import (
	"context"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// Limits of reads.
const (
	queuesPerCount = 100    // in one step
	scanPerPage    = 10_000 // jobs that one List looks at, however few match
	scanPerStep    = 500    // of these in one step
)

func (s *Store) get(ctx context.Context, queue string, ids []pawl.ID) ([]*pawl.Job, error) {
	jobs := make([]*pawl.Job, len(ids))
	return jobs, s.search(ctx, queue, ids, func(i int) bool { return jobs[i] != nil }, func(t tag, places []int) error {
		return s.getFrom(ctx, t, ids, jobs, places)
	})
}

// getFrom reads the jobs at some places that are under a tag.
func (s *Store) getFrom(ctx context.Context, t tag, ids []pawl.ID, jobs []*pawl.Job, places []int) error {
	m := s.begin(1)
	m.string("ids")
	m.array(len(places))
	for _, i := range places {
		m.bytes(ids[i][:])
	}
	reply, err := s.run(ctx, s.scripts.get, s.names.queue(t), []byte(*m))
	if err != nil {
		return err
	}
	l, err := items(reply, 6*len(places))
	if err != nil {
		return err
	}
	for _, i := range places {
		state, p := pawl.State(number(l[0])), stored{str(l[1]), str(l[2]), str(l[3]), str(l[4]), str(l[5])}
		l = l[6:]
		if state == 0 {
			continue
		}
		jobs[i], _ = p.job(t, ids[i]) // what can be read
		jobs[i].State = state         // it may have been promoted without being rewritten
	}
	return nil
}

func (s *Store) count(ctx context.Context, queues []string) ([]pawl.QueueStats, error) {
	all := len(queues) == 0
	if all {
		var err error
		if queues, err = s.registered(ctx); err != nil {
			return nil, err
		}
	} else {
		queues = slices.Sorted(slices.Values(queues))
		queues = slices.Compact(queues)
	}
	var tags []tag
	for _, queue := range queues {
		if err := checkQueue(queue); err != nil {
			return nil, err
		}
		tags = append(tags, s.shards.tags(queue)...)
	}
	var stats []pawl.QueueStats
	for some := range slices.Chunk(tags, queuesPerCount) {
		for _, names := range calls(s, some) {
			found, err := s.countOf(ctx, names)
			if err != nil {
				return nil, err
			}
			stats = append(stats, found...)
		}
	}
	stats = sum(stats)
	if all {
		stats = slices.DeleteFunc(stats, func(st pawl.QueueStats) bool { return st == pawl.QueueStats{Queue: st.Queue} })
	}
	return stats, nil
}

// sum adds up the numbers of the shards of each queue, which follow one another.
func sum(parts []pawl.QueueStats) (all []pawl.QueueStats) {
	for _, p := range parts {
		last := len(all) - 1
		if last < 0 || all[last].Queue != p.Queue {
			all = append(all, p)
			continue
		}
		st := &all[last]
		st.Paused = st.Paused || p.Paused
		st.Retrying += p.Retrying
		st.OldestReady = max(st.OldestReady, p.OldestReady)
		st.Scheduled += p.Scheduled
		st.Ready += p.Ready
		st.Running += p.Running
		st.Completed += p.Completed
		st.Buried += p.Buried
		st.Canceled += p.Canceled
	}
	return all
}

func (s *Store) countOf(ctx context.Context, tags []tag) ([]pawl.QueueStats, error) {
	m := s.begin(1)
	m.field("queues", int64(len(tags)))
	reply, err := s.run(ctx, s.scripts.count, s.names.queues(tags), []byte(*m))
	if err != nil {
		return nil, err
	}
	l, err := items(reply, len(tags))
	if err != nil {
		return nil, err
	}
	stats := make([]pawl.QueueStats, len(tags))
	for i, t := range tags {
		n, err := items(l[i], 9)
		if err != nil {
			return nil, err
		}
		stats[i] = pawl.QueueStats{
			Queue: t.queue(), Paused: number(n[0]) == 1, Retrying: number(n[1]),
			OldestReady: time.Duration(number(n[2])) * time.Microsecond,
			Scheduled:   number(n[3]), Ready: number(n[4]), Running: number(n[5]),
			Completed: number(n[6]), Buried: number(n[7]), Canceled: number(n[8]),
		}
	}
	return stats, nil
}
