package sqlite

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// Limits of reads.
const (
	// scanPerPage bounds the rows that one List looks at, however few match.
	scanPerPage = 10_000
	// readBytesHint is what List assumes of a page's first payload.
	maxQueues = 1 << 20 // names Count returns; a bound against a foreign hand
)

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
func fullJob(ctx context.Context, run runner, q *statements, id pawl.ID) (*pawl.Job, error) {
	r, payload, result, err := fullRecord(ctx, run, q, id)
	if r == nil || err != nil {
		return nil, err
	}
	j := r.job()
	j.Payload, j.Result = payload, result
	return j, finishJob(ctx, run, q, r, j)
}

func fullRecord(ctx context.Context, run runner, q *statements, id pawl.ID) (r *record, payload, result []byte, err error) {
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
func finishJob(ctx context.Context, run runner, q *statements, r *record, j *pawl.Job) (err error) {
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
	rows, err := s.reader.query(ctx, s.q.nextQueue, after)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	var name sql.NullString
	if rows.Next() {
		if err := rows.Scan(&name); err != nil {
			return "", err
		}
	}
	return name.String, rows.Err()
}

func (s *Store) pausedQueues(ctx context.Context) ([]string, error) {
	b := &batch{ctx: ctx, run: s.reader, q: s.q}
	return b.names(s.q.paused)
}

// cursor is the place of the last row that a page has seen.
type cursor struct {
	Queue string     `json:"q"`
	State pawl.State `json:"s"`
	Rank  int64      `json:"r"`
	At    int64      `json:"a"`
	Seq   int64      `json:"n"`
}

// start is the place before the first row of a state.
func (c *cursor) start(queue string, state pawl.State) {
	*c = cursor{Queue: queue, State: state, Rank: -pawl.MaxPriority - 1}
}

func (c *cursor) String() string {
	text, _ := json.Marshal(plainCursor(*c)) // strings and numbers always encode
	return base64.RawURLEncoding.EncodeToString(text)
}

type plainCursor cursor

func parseCursor(text string) (*cursor, error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		c := new(plainCursor)
		if err = json.Unmarshal(raw, c); err == nil {
			return (*cursor)(c), nil
		}
	}
	return nil, &pawl.InvalidError{Field: "Cursor", Limit: "the Next of a page"}
}

// lister makes one page.
type lister struct {
	s       *Store
	ctx     context.Context
	spec    pawl.ListSpec
	at      *cursor
	page    pawl.Page
	scanned int
	bytes   int
}

func (s *Store) list(ctx context.Context, spec pawl.ListSpec) (pawl.Page, error) {
	l := &lister{s: s, ctx: ctx, spec: spec, at: new(cursor)}
	if spec.Cursor != "" {
		at, err := parseCursor(spec.Cursor)
		if err != nil {
			return pawl.Page{}, err
		}
		l.at = at
		if spec.Queue != "" && at.Queue != spec.Queue {
			return pawl.Page{}, &pawl.InvalidError{Field: "Cursor", Limit: "of the same filter"}
		}
	}
	err := l.run()
	return l.page, err
}

// run walks the queues.
func (l *lister) run() error {
	if l.at.Queue == "" {
		queue, err := l.firstQueue()
		if queue == "" || err != nil {
			return err
		}
		l.at.start(queue, 0)
	}
	for {
		full, err := l.queue()
		if err != nil {
			return err
		}
		if full {
			l.page.Next = l.at.String()
			return nil
		}
		if l.spec.Queue != "" {
			return nil
		}
		next, err := l.s.nextQueue(l.ctx, l.at.Queue)
		if next == "" || err != nil {
			return err
		}
		l.at.start(next, 0)
		l.scanned++ // an empty queue is work too
	}
}

func (l *lister) firstQueue() (string, error) {
	if l.spec.Queue != "" {
		return l.spec.Queue, nil
	}
	return l.s.nextQueue(l.ctx, "")
}

// queue walks the states of a queue from where the cursor is, and reports
// whether the page is full before their end.
func (l *lister) queue() (full bool, err error) {
	queue := l.at.Queue
	for _, state := range pawl.States() {
		if state < l.at.State || len(l.spec.States) > 0 && !slices.Contains(l.spec.States, state) {
			continue
		}
		if state > l.at.State {
			l.at.start(queue, state)
		}
		if full, err = l.state(); full || err != nil {
			return full, err
		}
	}
	return false, nil
}

// state walks one state of a queue.
func (l *lister) state() (full bool, err error) {
	for {
		want := min(l.spec.Limit-len(l.page.Jobs), scanPerPage-l.scanned)
		if want <= 0 {
			return true, nil
		}
		if l.filtered() {
			want = min(scanPerPage-l.scanned, max(want, pawl.MaxStep))
		}
		found, err := l.rows(want)
		if err != nil {
			return false, err
		}
		for _, r := range found {
			if full, err := l.add(r); full || err != nil {
				return full, err
			}
		}
		if len(found) < want {
			return false, nil
		}
	}
}

func (l *lister) filtered() bool {
	f := &l.spec.Filter
	return f.Kind != "" || f.UniqueKey != "" || f.WorkerID != "" || !f.CreatedFrom.IsZero() || !f.CreatedBefore.IsZero()
}

func (l *lister) rows(limit int) ([]*record, error) {
	b := &batch{ctx: l.ctx, run: l.s.reader, q: l.s.q}
	s := l.s.q.page
	if l.at.State == pawl.Running {
		s = l.s.q.running
	}
	return b.records(s, int(l.at.State), l.at.Queue, l.at.Rank, l.at.At, l.at.Seq, limit)
}

// add puts a row on the page if it matches, and moves the cursor. It reports
// whether the row had no room.
func (l *lister) add(r *record) (full bool, err error) {
	if len(l.page.Jobs) >= l.spec.Limit || l.bytes >= pawl.MaxPageBytes {
		return true, nil
	}
	if l.matches(r) {
		j := r.job()
		if l.spec.Payloads {
			if j, err = fullJob(l.ctx, l.s.reader, l.s.q, r.id); err != nil {
				return false, err
			}
			if j == nil || j.State != r.state { // it has moved since
				j = nil
			}
		} else if r.failures > 0 {
			j.Failures, err = failuresOf(l.ctx, l.s.reader, l.s.q.failures, r.seq)
		}
		if err != nil {
			return false, err
		}
		if j != nil {
			if l.bytes += len(j.Payload) + len(j.Result); l.bytes > pawl.MaxPageBytes && len(l.page.Jobs) > 0 {
				return true, nil
			}
			l.page.Jobs = append(l.page.Jobs, j)
		}
	}
	l.scanned++
	l.at.Rank, l.at.At, l.at.Seq = r.rank, r.at, r.seq
	if r.state == pawl.Running {
		l.at.At = r.claimedAt
	}
	return false, nil
}

func (l *lister) matches(r *record) bool {
	f := &l.spec.Filter
	return (f.Kind == "" || r.kind == f.Kind) &&
		(f.UniqueKey == "" || r.ukey == f.UniqueKey) &&
		(f.WorkerID == "" || r.worker == f.WorkerID) &&
		(f.CreatedFrom.IsZero() || r.createdAt >= micros(f.CreatedFrom)) &&
		(f.CreatedBefore.IsZero() || r.createdAt < micros(f.CreatedBefore))
}
