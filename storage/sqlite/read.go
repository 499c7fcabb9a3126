package sqlite

import (
	"context"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// maxQueues bounds the names that Count returns: a file may hold anything.
const maxQueues = 1 << 20

func (s *Store) get(ctx context.Context, queue string, ids []pawl.ID) ([]*pawl.Job, error) {
	jobs := make([]*pawl.Job, len(ids))
	for i, id := range ids {
		j, err := fullJob(ctx, s.reader, s.q, id)
		if err != nil {
			return nil, err
		}
		if j != nil && (queue == "" || j.Queue == queue) {
			jobs[i] = j
		}
	}
	return jobs, nil
}

// fullJob reads a job with all that belongs to it, nil if there is none.
func fullJob(ctx context.Context, run reader, q *statements, id pawl.ID) (*pawl.Job, error) {
	r, payload, result, err := fullRecord(ctx, run, q, id)
	if r == nil || err != nil {
		return nil, err
	}
	j := r.job()
	j.Payload, j.Result = payload, result
	return j, finishJob(ctx, run, q, r, j)
}

func fullRecord(ctx context.Context, run reader, q *statements, id pawl.ID) (r *record, payload, result []byte, err error) {
	rows, err := run.query(ctx, q.full, id[:])
	if err != nil {
		return nil, nil, nil, err
	}
	defer rows.Close()
	if rows.Next() {
		r = new(record)
		err = r.scan(rows, &payload, &result)
	}
	if err == nil {
		err = rows.Err()
	}
	return r, payload, result, err
}

// finishJob adds what is kept in other tables.
func finishJob(ctx context.Context, run reader, q *statements, r *record, j *pawl.Job) (err error) {
	if r.apart&payloadApart != 0 {
		if j.Payload, err = fetch(ctx, run, q.payload, r.seq); err != nil {
			return err
		}
	}
	if r.apart&resultApart != 0 {
		if j.Result, err = fetch(ctx, run, q.result, r.seq); err != nil {
			return err
		}
	}
	if r.failures > 0 {
		j.Failures, err = failuresOf(ctx, run, q.failures, r.seq)
	}
	return err
}

func (s *Store) count(ctx context.Context, queues []string) ([]pawl.QueueStats, error) {
	paused, err := s.pausedQueues(ctx)
	if err != nil {
		return nil, err
	}
	if len(queues) == 0 {
		if queues, err = s.queues(ctx); err != nil {
			return nil, err
		}
	} else {
		queues = slices.Clone(queues)
		slices.Sort(queues)
		queues = slices.Compact(queues)
	}
	all := make([]pawl.QueueStats, len(queues))
	for i, queue := range queues {
		all[i].Queue, all[i].Paused = queue, slices.Contains(paused, queue)
		if err := s.countQueue(ctx, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (s *Store) countQueue(ctx context.Context, st *pawl.QueueStats) error {
	into := []struct {
		state pawl.State
		n     *int64
	}{
		{pawl.Scheduled, &st.Scheduled}, {pawl.Running, &st.Running},
		{pawl.Completed, &st.Completed}, {pawl.Buried, &st.Buried}, {pawl.Canceled, &st.Canceled},
	}
	for _, c := range into {
		n, err := number(ctx, s.reader, s.q.count, int(c.state), st.Queue)
		if err != nil {
			return err
		}
		*c.n = n
	}
	var err error
	if st.Retrying, err = number(ctx, s.reader, s.q.retrying, st.Queue); err != nil {
		return err
	}
	return s.countReady(ctx, st)
}

func (s *Store) countReady(ctx context.Context, st *pawl.QueueStats) error {
	rows, err := s.reader.query(ctx, s.q.countReady, st.Queue)
	if err != nil {
		return err
	}
	defer rows.Close()
	var oldest int64
	if rows.Next() {
		if err := rows.Scan(&st.Ready, &oldest); err != nil {
			return err
		}
	}
	if st.Ready > 0 {
		st.OldestReady = time.Duration(max(0, s.now()-oldest)) * time.Microsecond
	}
	return rows.Err()
}

// queues lists the names of all queues known.
func (s *Store) queues(ctx context.Context) ([]string, error) {
	var all []string
	for after := ""; len(all) < maxQueues; {
		name, err := s.nextQueue(ctx, after)
		if err != nil || name == "" {
			return all, err
		}
		all = append(all, name)
		after = name
	}
	return all, nil
}

// nextQueue is the first queue with a name after the given one; "" if none.
func (s *Store) nextQueue(ctx context.Context, after string) (string, error) {
	return text(ctx, s.reader, s.q.nextQueue, after)
}

func (s *Store) pausedQueues(ctx context.Context) ([]string, error) {
	return column[string](ctx, s.reader, s.q.paused)
}
