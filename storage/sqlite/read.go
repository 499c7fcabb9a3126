package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// maxQueues bounds the names that Count returns: a file may hold anything.
const maxQueues = 1 << 20

// read runs f on the file as it is at one moment, again from its beginning if
// the file is busy, as it is while someone recovers it.
func (s *Store) read(ctx context.Context, f func(run reader) error) error {
	return untilFree(ctx, func() error { return s.readOnce(ctx, f) })
}

func (s *Store) readOnce(ctx context.Context, f func(run reader) error) error {
	conn, err := s.reads.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	run, end := newPrepared(conn), context.WithoutCancel(ctx)
	// Not BeginTx: one driver would ask for the write lock, as its DSN says. If the
	// context could end it, drivers would say so of a transaction that has begun.
	if _, err := conn.ExecContext(end, beginRead.text); err != nil {
		return err
	}
	err = f(run)
	run.close()
	if _, undo := conn.ExecContext(end, rollback.text); undo != nil && code(undo) != codeError {
		discard(conn)
	}
	return err
}

// discard makes the pool throw a connection away.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
}

func (s *Store) get(ctx context.Context, queue string, ids []pawl.ID) (jobs []*pawl.Job, err error) {
	err = s.read(ctx, func(run reader) error {
		jobs = make([]*pawl.Job, len(ids))
		for i, id := range ids {
			j, err := fullJob(ctx, run, s.q, id)
			if err != nil {
				return err
			}
			if j != nil && (queue == "" || j.Queue == queue) {
				jobs[i] = j
			}
		}
		return nil
	})
	return jobs, err
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

func (s *Store) count(ctx context.Context, queues []string) (all []pawl.QueueStats, err error) {
	err = s.read(ctx, func(run reader) (err error) {
		c := &counter{ctx: ctx, run: run, q: s.q, now: s.now()}
		all, err = c.count(queues)
		return err
	})
	return all, err
}

// counter counts the jobs of queues.
type counter struct {
	ctx context.Context
	run reader
	q   *statements
	now int64
}

func (c *counter) count(queues []string) ([]pawl.QueueStats, error) {
	paused, err := column[string](c.ctx, c.run, c.q.paused)
	if err != nil {
		return nil, err
	}
	if len(queues) == 0 {
		if queues, err = c.queues(); err != nil {
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
		if err := c.countQueue(&all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (c *counter) countQueue(st *pawl.QueueStats) error {
	into := []struct {
		state pawl.State
		n     *int64
	}{
		{pawl.Scheduled, &st.Scheduled}, {pawl.Running, &st.Running},
		{pawl.Completed, &st.Completed}, {pawl.Buried, &st.Buried}, {pawl.Canceled, &st.Canceled},
	}
	for _, to := range into {
		n, err := number(c.ctx, c.run, c.q.count, int(to.state), st.Queue)
		if err != nil {
			return err
		}
		*to.n = n
	}
	var err error
	if st.Retrying, err = number(c.ctx, c.run, c.q.retrying, st.Queue); err != nil {
		return err
	}
	return c.countReady(st)
}

func (c *counter) countReady(st *pawl.QueueStats) error {
	rows, err := c.run.query(c.ctx, c.q.countReady, st.Queue)
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
		st.OldestReady = time.Duration(max(0, c.now-oldest)) * time.Microsecond
	}
	return rows.Err()
}

// queues lists the names of all queues known.
func (c *counter) queues() ([]string, error) {
	var all []string
	for after := ""; len(all) < maxQueues; {
		name, err := nextQueue(c.ctx, c.run, c.q, after)
		if err != nil || name == "" {
			return all, err
		}
		all = append(all, name)
		after = name
	}
	return all, nil
}

// nextQueue is the first queue with a name after the given one; "" if none.
func nextQueue(ctx context.Context, run reader, q *statements, after string) (string, error) {
	return text(ctx, run, q.nextQueue, after)
}
