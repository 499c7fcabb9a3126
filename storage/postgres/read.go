package postgres

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

// Limits of reads.
const (
	scanPerPage = 10_000  // rows that one List looks at, however few match
	maxQueues   = 1 << 20 // names that Count returns; a bound against a foreign hand
)

func (s *Store) get(ctx context.Context, queue string, ids []pawl.ID) ([]*pawl.Job, error) {
	jobs := make([]*pawl.Job, len(ids))
	if len(ids) == 0 {
		return jobs, nil
	}
	err := s.read(ctx, func(row scanner) error {
		r := new(record)
		var ord int
		var c claimed
		if err := r.scan(row, append(append(r.leaseFields(), c.fields()...), &ord, &r.payload, &r.result)...); err != nil {
			return err
		}
		r.derive(&c)
		if queue == "" || r.queue == queue {
			jobs[ord-1] = r.job()
		}
		return nil
	}, s.q.byID, texts(ids))
	return jobs, err
}

func (s *Store) count(ctx context.Context, queues []string) ([]pawl.QueueStats, error) {
	if len(queues) == 0 {
		var err error
		if queues, err = s.queues(ctx); err != nil || len(queues) == 0 {
			return nil, err
		}
	} else {
		queues = slices.Clone(queues)
		slices.Sort(queues)
		queues = slices.Compact(queues)
	}
	var all []pawl.QueueStats
	err := s.read(ctx, func(row scanner) error {
		var st pawl.QueueStats
		var oldest int64
		err := row.Scan(&st.Queue, &st.Scheduled, &st.Retrying, &st.Ready, &st.Running, &st.Completed, &st.Buried,
			&st.Canceled, &oldest, &st.Paused)
		st.OldestReady = toDuration(max(oldest, 0))
		all = append(all, st)
		return err
	}, s.q.counts, s.clock(), queues)
	return all, err
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
func (s *Store) nextQueue(ctx context.Context, after string) (name string, err error) {
	err = s.read(ctx, func(row scanner) error { return row.Scan(&name) }, s.q.nextQueue, after)
	return name, err
}

// cursor is the place of the last row that a page has seen.
type cursor struct {
	Queue    string     `json:"q"`
	State    pawl.State `json:"s"`
	Priority int        `json:"p"`
	At       int64      `json:"a"`
	Seq      int64      `json:"n"`
	ID       uuid.UUID  `json:"i"`
	// Of the ready ones in the fresh lane, which is merged with the other.
	Xid      uint64 `json:"x"`
	FreshSeq int64  `json:"f"`
}

// start is the place before the first row of a state.
func (c *cursor) start(queue string, state pawl.State) {
	*c = cursor{Queue: queue, State: state, Priority: -pawl.MaxPriority - 1}
}

// after is the place of a row.
func (c *cursor) after(r *record) {
	if r.fresh && r.state == pawl.Ready {
		c.Xid, _ = strconv.ParseUint(r.xid, 10, 64) // the server wrote it
		c.FreshSeq = r.seq
		return
	}
	c.Seq, c.ID = r.seq, r.id
	switch c.State {
	case pawl.Ready:
		c.Priority, c.At = r.priority, r.runAt
	case pawl.Scheduled:
		c.At = r.runAt
	case pawl.Running:
		c.At = r.claimedAt
	default:
		c.At = r.finishedAt
	}
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
		if err = json.Unmarshal(raw, c); err == nil && c.Priority >= -pawl.MaxPriority-1 && c.Priority <= pawl.MaxPriority {
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
	found   []*record
	scanned int
	bytes   int
}

func (s *Store) list(ctx context.Context, spec pawl.ListSpec) (page pawl.Page, err error) {
	l := &lister{s: s, ctx: ctx, spec: spec, at: new(cursor)}
	if spec.Cursor != "" {
		if l.at, err = parseCursor(spec.Cursor); err != nil {
			return page, err
		}
		if spec.Queue != "" && l.at.Queue != spec.Queue {
			return page, &pawl.InvalidError{Field: "Cursor", Limit: "of the same filter"}
		}
	}
	full, err := l.run()
	if err != nil {
		return page, err
	}
	if full {
		page.Next = l.at.String()
	}
	page.Jobs, err = l.jobs()
	return page, err
}

// jobs turns what was found into jobs, with payloads if they are asked for.
func (l *lister) jobs() ([]*pawl.Job, error) {
	jobs := make([]*pawl.Job, len(l.found))
	ids := make([]pawl.ID, len(l.found))
	for i, r := range l.found {
		jobs[i], ids[i] = r.job(), r.id
	}
	if !l.spec.Payloads {
		return jobs, nil
	}
	whole, err := l.s.get(l.ctx, "", ids)
	if err != nil {
		return nil, err
	}
	// A job that has moved since is on another page, or will be.
	moved := func(j *pawl.Job) bool { return j == nil }
	for i, j := range whole {
		if j != nil && j.State != l.found[i].state {
			whole[i] = nil
		}
	}
	return slices.DeleteFunc(whole, moved), nil
}

// run walks the queues and reports whether the page was full before their end.
func (l *lister) run() (full bool, err error) {
	if l.at.Queue == "" {
		queue := l.spec.Queue
		if queue == "" {
			if queue, err = l.s.nextQueue(l.ctx, ""); queue == "" || err != nil {
				return false, err
			}
		}
		l.at.start(queue, 0)
	}
	for {
		if full, err = l.queue(); full || err != nil || l.spec.Queue != "" {
			return full, err
		}
		next, err := l.s.nextQueue(l.ctx, l.at.Queue)
		if next == "" || err != nil {
			return false, err
		}
		l.at.start(next, 0)
		l.scanned++ // an empty queue is work too
	}
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
		want := min(l.spec.Limit-len(l.found), scanPerPage-l.scanned)
		if want <= 0 {
			return true, nil
		}
		if l.filtered() {
			want = min(scanPerPage-l.scanned, pawl.MaxStep)
		}
		rows, err := l.rows(want)
		if err != nil {
			return false, err
		}
		for _, r := range rows {
			if l.add(r) {
				return true, nil
			}
		}
		if len(rows) < want {
			return false, nil
		}
	}
}

func (l *lister) filtered() bool {
	f := &l.spec.Filter
	return f.Kind != "" || f.UniqueKey != "" || f.WorkerID != "" || !f.CreatedFrom.IsZero() || !f.CreatedBefore.IsZero()
}

// rows reads what follows the cursor in its state, up to a limit, of both lanes.
func (l *lister) rows(limit int) (found []*record, err error) {
	q, c := l.s.q, l.at
	switch c.State {
	case pawl.Ready:
		return l.merged(limit, inClaimOrder,
			source{q.pageReady, []any{c.Queue, limit, c.Priority, c.At, c.Seq}, (*lister).placed},
			source{q.pageFresh, []any{c.Queue, limit, strconv.FormatUint(c.Xid, 10), c.FreshSeq}, (*lister).waiting})
	case pawl.Running:
		byClaim := func(a, b *record) int {
			return cmp.Or(cmp.Compare(a.claimedAt, b.claimedAt), cmp.Compare(a.seq, b.seq))
		}
		return l.merged(limit, byClaim,
			source{q.pageRunning, []any{c.Queue, limit, c.At, c.Seq}, (*lister).placed},
			source{q.pageClaimed, []any{c.Queue, limit, c.At, c.Seq}, (*lister).claimed})
	case pawl.Scheduled:
		return l.read(source{q.pageScheduled, []any{c.Queue, limit, c.At, c.Seq}, (*lister).placed})
	}
	return l.read(source{q.pageFinal, []any{c.Queue, limit, int16(c.State), c.At, c.ID.String()}, (*lister).placed})
}

// source is a statement and what reads its rows.
type source struct {
	sql  string
	args []any
	scan func(l *lister, r *record, row scanner) error
}

func (l *lister) placed(r *record, row scanner) error {
	return r.scan(row, append(r.leaseFields(), &r.size)...)
}

func (l *lister) claimed(r *record, row scanner) error {
	var c claimed
	err := r.scan(row, append(append(r.leaseFields(), c.fields()...), &r.size)...)
	r.derive(&c)
	return err
}

func (l *lister) waiting(r *record, row scanner) error {
	var c claimed
	err := r.scan(row, append(append(r.leaseFields(), c.fields()...), &r.size, &r.xid)...)
	r.derive(&c)
	return err
}

func (l *lister) read(from source) (found []*record, err error) {
	err = l.s.read(l.ctx, func(row scanner) error {
		r := new(record)
		found = append(found, r)
		return from.scan(l, r, row)
	}, from.sql, from.args...)
	return found, err
}

// merged merges two lanes, of which each has an order of its own that it keeps.
func (l *lister) merged(limit int, order func(a, b *record) int, one, other source) (all []*record, err error) {
	a, err := l.read(one)
	if err != nil {
		return nil, err
	}
	b, err := l.read(other)
	if err != nil {
		return nil, err
	}
	for len(all) < limit && len(a)+len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && order(a[0], b[0]) <= 0 {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return all, nil
}

// add puts a row on the page if it matches, and moves the cursor. It reports
// whether the row had no room.
func (l *lister) add(r *record) (full bool) {
	if len(l.found) >= l.spec.Limit {
		return true
	}
	if l.matches(r) {
		if l.spec.Payloads {
			if l.bytes+r.size > pawl.MaxPageBytes && len(l.found) > 0 {
				return true
			}
			l.bytes += r.size
		}
		l.found = append(l.found, r)
	}
	l.scanned++
	l.at.after(r)
	return false
}

func (l *lister) matches(r *record) bool {
	f := &l.spec.Filter
	return (f.Kind == "" || r.kind == f.Kind) &&
		(f.UniqueKey == "" || r.ukey == f.UniqueKey) &&
		(f.WorkerID == "" || r.worker == f.WorkerID) &&
		(f.CreatedFrom.IsZero() || r.createdAt >= micros(f.CreatedFrom)) &&
		(f.CreatedBefore.IsZero() || r.createdAt < micros(f.CreatedBefore))
}
