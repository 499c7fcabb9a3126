package mysql

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/pawlq/pawl"
	clean "github.com/pawlq/pawl/internal/text"
)

// wholeJob reads a job with all that belongs to it in one statement, so as it
// was at one moment.
const wholeJob = "SELECT " + wholeColumns + ` FROM pawl_job AS j
	LEFT JOIN pawl_blob AS p ON p.id = j.id AND p.part = 1 AND j.apart & 1 <> 0
	LEFT JOIN pawl_blob AS r ON r.id = j.id AND r.part = 2 AND j.apart & 2 <> 0`

const wholeColumns = `j.seq, j.id, j.queue, j.kind, j.state, j.urgency, j.moment, j.retrying, j.wake_at, j.run_at,
	j.priority, j.reason, j.fence, j.last_fence, j.last_verb, j.attempt, j.rescued, j.max_attempts, j.max_rescues,
	j.lease, j.timeout, j.retention, j.created_at, j.started_at, j.claimed_at, j.start_before, j.worker, j.token,
	j.mark, j.ukey, j.umode, j.uwindow, j.held, j.extends, j.apart, j.counts, j.failures, j.meta, j.progress,
	COALESCE(p.data, j.payload), COALESCE(r.data, j.result)`

// whole runs a query of wholeJob.
func (b *batch) whole(t *text) (all []*pawl.Job, err error) {
	err = b.each(t, func(row scanner) error {
		r := new(record)
		var payload, result []byte
		if err := r.scan(row, &payload, &result); err != nil {
			return err
		}
		j := r.job()
		j.Payload, j.Result = payload, result
		all = append(all, j)
		return nil
	})
	return all, err
}

// getStep bounds the payloads of one statement.
const getStep = 100

func (s *Store) get(ctx context.Context, queue string, ids []pawl.ID) ([]*pawl.Job, error) {
	found := make(map[pawl.ID]*pawl.Job, len(ids))
	for part := range slices.Chunk(ids, getStep) {
		err := s.alone(ctx, func(b *batch) error {
			all, err := b.whole(b.sql(wholeJob + " WHERE j.id IN (").ids(part).add(")"))
			for _, j := range all {
				found[j.ID] = j
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	jobs := make([]*pawl.Job, len(ids))
	given := make(map[pawl.ID]struct{}, len(ids))
	for i, id := range ids {
		j := found[id]
		if j == nil || queue != "" && j.Queue != queue {
			continue
		}
		if _, twice := given[id]; twice { // each is the caller's own
			again, err := s.get(ctx, queue, ids[i:i+1])
			if err != nil {
				return nil, err
			}
			j = again[0]
		}
		given[id] = struct{}{}
		jobs[i] = j
	}
	return jobs, nil
}

func (s *Store) count(ctx context.Context, queues []string) (all []pawl.QueueStats, err error) {
	for _, name := range queues {
		if !clean.IsName(name, pawl.MaxNameLen) {
			return nil, errName
		}
	}
	err = s.reading(ctx, func(b *batch) (err error) {
		all, err = b.count(queues)
		return err
	})
	return all, err
}

func (b *batch) count(queues []string) ([]pawl.QueueStats, error) {
	if err := b.lookAtClock(); err != nil {
		return nil, err
	}
	if len(queues) == 0 {
		for name := ""; ; {
			var err error
			if name, err = b.nextQueue(name); err != nil {
				return nil, err
			}
			if name == "" {
				break
			}
			queues = append(queues, name)
		}
	} else {
		queues = slices.Clone(queues)
		slices.Sort(queues)
		queues = slices.Compact(queues)
	}
	all := make([]pawl.QueueStats, len(queues))
	for i, queue := range queues {
		all[i].Queue = queue
		if err := b.countQueue(&all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// countQueue reads the queue's part of the index place, which has all that is
// counted.
func (b *batch) countQueue(st *pawl.QueueStats) error {
	paused, err := b.number(b.sql("SELECT paused FROM pawl_queue WHERE name = ").name(st.Queue))
	if err != nil {
		return err
	}
	st.Paused = paused != 0
	into := map[pawl.State]*int64{
		pawl.Scheduled: &st.Scheduled, pawl.Ready: &st.Ready, pawl.Running: &st.Running,
		pawl.Completed: &st.Completed, pawl.Buried: &st.Buried, pawl.Canceled: &st.Canceled,
	}
	t := b.sql("SELECT state, COUNT(*), MIN(moment), SUM(retrying) FROM pawl_job FORCE INDEX (place) WHERE queue = ")
	return b.each(t.name(st.Queue).add(" GROUP BY state"), func(row scanner) error {
		var (
			state              pawl.State
			n, first, retrying int64
		)
		if err := row.Scan(&state, &n, &first, &retrying); err != nil {
			return err
		}
		if to := into[state]; to != nil {
			*to = n
		}
		st.Retrying += retrying
		if state == pawl.Ready {
			st.OldestReady = time.Duration(max(0, b.now-first)) * time.Microsecond
		}
		return nil
	})
}

// nextQueue is the first known queue with a name after the given one; "" if
// there is none. Each part is one probe of an index.
func (b *batch) nextQueue(after string) (string, error) {
	t := b.sql("SELECT MIN(name) FROM (SELECT MIN(queue) AS name FROM pawl_job FORCE INDEX (place) WHERE queue > ").name(after)
	t.add(" UNION ALL SELECT MIN(name) FROM pawl_queue WHERE paused = 1 AND name > ").name(after).add(") AS names")
	all, err := column[sql.NullString](b, t)
	if err != nil || len(all) == 0 {
		return "", err
	}
	return all[0].String, nil
}
