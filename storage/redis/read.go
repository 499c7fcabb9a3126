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
	missing := make([]int, len(ids))
	for i := range missing {
		missing[i] = i
	}
	queues, err := s.asked(ctx, queue)
	if err != nil {
		return nil, err
	}
	for _, queue := range queues {
		if len(missing) == 0 {
			break
		}
		if err := s.getFrom(ctx, queue, ids, jobs, missing); err != nil {
			return nil, err
		}
		missing = slices.DeleteFunc(missing, func(i int) bool { return jobs[i] != nil })
	}
	return jobs, nil
}

// getFrom reads the jobs at some places that are in a queue.
func (s *Store) getFrom(ctx context.Context, queue string, ids []pawl.ID, jobs []*pawl.Job, places []int) error {
	m := s.begin(1)
	m.string("ids")
	m.array(len(places))
	for _, i := range places {
		m.bytes(ids[i][:])
	}
	reply, err := s.run(ctx, s.scripts.get, s.names.queue(nil, queue), []byte(*m))
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
		if jobs[i], err = p.job(queue, ids[i]); err != nil {
			return err
		}
		jobs[i].State = state // it may have been promoted without being rewritten
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
	var stats []pawl.QueueStats
	for some := range slices.Chunk(queues, queuesPerCount) {
		for _, names := range calls(s, some) {
			found, err := s.countOf(ctx, names)
			if err != nil {
				return nil, err
			}
			stats = append(stats, found...)
		}
	}
	if all {
		stats = slices.DeleteFunc(stats, func(st pawl.QueueStats) bool { return st == pawl.QueueStats{Queue: st.Queue} })
	}
	return stats, nil
}

func (s *Store) countOf(ctx context.Context, queues []string) ([]pawl.QueueStats, error) {
	m := s.begin(1)
	m.field("queues", int64(len(queues)))
	reply, err := s.run(ctx, s.scripts.count, s.names.queues(queues), []byte(*m))
	if err != nil {
		return nil, err
	}
	l, err := items(reply, len(queues))
	if err != nil {
		return nil, err
	}
	stats := make([]pawl.QueueStats, len(queues))
	for i, queue := range queues {
		n, err := items(l[i], 9)
		if err != nil {
			return nil, err
		}
		stats[i] = pawl.QueueStats{
			Queue: queue, Paused: number(n[0]) == 1, Retrying: number(n[1]),
			OldestReady: time.Duration(number(n[2])) * time.Microsecond,
			Scheduled:   number(n[3]), Ready: number(n[4]), Running: number(n[5]),
			Completed: number(n[6]), Buried: number(n[7]), Canceled: number(n[8]),
		}
	}
	return stats, nil
}
