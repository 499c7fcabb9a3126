package sqlite

import (
	"context"
	"database/sql"

	"github.com/pawlq/pawl"
)

// enqueueCall is one call of Enqueue.
type enqueueCall struct {
	rows     []newJob
	receipts []pawl.Receipt
	// plain calls have neither unique keys nor depth limits: nothing in them
	// can be refused, and their rows may be inserted with those of others.
	plain bool
}

// newJob is a request made ready for the table as far as that goes without
// knowing the time.
type newJob struct {
	shape
	id      pawl.ID
	meta    any // string or nil
	payload []byte
	req     *pawl.Request
	receipt *pawl.Receipt
}

// shape is what jobs often have in common.
type shape struct {
	queue, kind    string
	state          pawl.State
	runAt          int64
	priority       int
	lease, timeout int64
	retention      int64
	maxAttempts    int
	maxRescues     int
	startBefore    int64
	ukey           string
	umode          pawl.UniqueMode
	uwindow        int64
	held           bool
	apart          int
}

func newEnqueueCall(reqs []*pawl.Request) *enqueueCall {
	c := &enqueueCall{rows: make([]newJob, len(reqs)), receipts: make([]pawl.Receipt, len(reqs)), plain: true}
	for i, r := range reqs {
		c.rows[i] = newJob{shape: shapeOf(r), id: r.ID, payload: r.Payload, req: r, receipt: &c.receipts[i]}
		if m := metaJSON(r.Meta); m.Valid {
			c.rows[i].meta = m.String
		}
		if r.UniqueKey != "" || r.MaxDepth > 0 {
			c.plain = false
		}
	}
	return c
}

func shapeOf(r *pawl.Request) shape {
	s := shape{
		queue: r.Queue, kind: r.Kind, priority: r.Priority,
		lease: microseconds(r.Lease), timeout: microseconds(r.Timeout), retention: microseconds(r.Retention),
		maxAttempts: r.MaxAttempts, maxRescues: r.MaxRescues, startBefore: micros(r.StartBefore),
		ukey: r.UniqueKey, umode: r.UniqueMode, uwindow: microseconds(r.UniqueWindow), held: r.UniqueKey != "",
	}
	if len(r.Payload) > apartSize {
		s.apart = payloadApart
	}
	return s
}

// schedule sets what depends on the time.
func (j *newJob) schedule(now int64) {
	j.runAt = now
	switch {
	case j.req.Delay > 0:
		j.runAt = now + microseconds(j.req.Delay)
	case !j.req.RunAt.IsZero():
		j.runAt = max(now, micros(j.req.RunAt))
	}
	j.state = pawl.Ready
	if j.runAt > now {
		j.state = pawl.Scheduled
	}
}

func (j *newJob) got(status pawl.ReceiptStatus, id pawl.ID) {
	*j.receipt = pawl.Receipt{ID: id, Queue: j.queue, Status: status}
}

func (s *Store) enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	bytes := 0
	for _, req := range reqs {
		bytes += len(req.Payload)
	}
	var c *enqueueCall
	err := s.mending(ctx, func() error {
		c = newEnqueueCall(reqs)
		return s.writer.do(&request{ctx: ctx, class: classEnqueue, enqueue: c, jobs: len(reqs), bytes: bytes})
	})
	if err != nil {
		return nil, err
	}
	return c.receipts, nil
}

// enqueueAll runs the enqueues of a group: the plain ones as if they were one
// call, each of the others in a savepoint.
func (b *batch) enqueueAll(group []*request, errs []error) error {
	var rows []*newJob
	for _, r := range group {
		if !r.enqueue.plain {
			continue
		}
		for i := range r.enqueue.rows {
			rows = append(rows, &r.enqueue.rows[i])
		}
	}
	if err := b.insertAll(rows); err != nil {
		return err
	}
	for i, r := range group {
		if r.enqueue.plain {
			continue
		}
		errs[i] = b.savepoint(func() error { return b.enqueueEach(r.enqueue) })
		if errs[i] != nil && !ours(errs[i]) {
			return errs[i]
		}
	}
	return nil
}

// insertAll inserts jobs that can't be refused, those of one shape together.
func (b *batch) insertAll(rows []*newJob) error {
	for _, j := range rows {
		j.schedule(b.now)
	}
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && n < insertSizes[0] && rows[n].shape == rows[0].shape {
			n++
		}
		for i, size := range insertSizes {
			if size <= n {
				if err := b.insert(b.q.insert[i], rows[:size]); err != nil {
					return err
				}
				rows = rows[size:]
				break
			}
		}
	}
	return nil
}

// insert stores rows of one shape and fills in their receipts.
func (b *batch) insert(s *statement, rows []*newJob) error {
	res, err := b.run.exec(b.ctx, s, b.insertArgs(rows)...)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return err
	}
	last, err := res.LastInsertId()
	if err != nil {
		return err
	}
	if n > 0 {
		b.stored(&rows[0].shape, int(n))
	}
	if int(n) < len(rows) {
		return b.sortOut(rows, last-n, last)
	}
	for i, j := range rows {
		j.got(pawl.Stored, j.id)
		if err := b.insertPayload(j, last-n+1+int64(i)); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) insertArgs(rows []*newJob) []any {
	j := rows[0]
	rank := 0
	if j.state == pawl.Ready {
		rank = j.priority
	}
	args := make([]any, 0, 19+3*len(rows))
	args = append(args, j.queue, j.kind, int64(j.state), int64(rank), j.runAt, j.runAt, int64(j.priority), j.lease,
		j.timeout, j.retention, int64(j.maxAttempts), int64(j.maxRescues), j.startBefore, b.now, j.ukey, int64(j.umode),
		j.uwindow, j.held, int64(j.apart))
	for _, j := range rows {
		var payload any
		if j.apart == 0 && len(j.payload) > 0 {
			payload = j.payload
		}
		args = append(args, j.id[:], j.meta, payload)
	}
	return args
}

// stored notes n new jobs of a shape.
func (b *batch) stored(s *shape, n int) {
	b.events.due(s.queue, s.runAt)
	if d, ok := b.waiting[s.queue]; ok {
		d.n += n
		b.waiting[s.queue] = d
	}
}

// sortOut finds which of the rows were inserted: those with a seq after first
// and not after last. The others have an ID that was there already.
func (b *batch) sortOut(rows []*newJob, first, last int64) error {
	seqs, err := b.insertedIDs(first, last)
	if err != nil {
		return err
	}
	for _, j := range rows {
		seq, ok := seqs[j.id]
		if !ok {
			j.got(pawl.Exists, j.id)
			continue
		}
		delete(seqs, j.id) // a second one of the same ID exists
		j.got(pawl.Stored, j.id)
		if err := b.insertPayload(j, seq); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) insertedIDs(first, last int64) (map[pawl.ID]int64, error) {
	rows, err := b.run.query(b.ctx, b.q.inserted, first, last)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	seqs := make(map[pawl.ID]int64)
	for rows.Next() {
		var (
			seq int64
			raw sql.RawBytes
		)
		if err := rows.Scan(&seq, &raw); err != nil {
			return nil, err
		}
		seqs[pawl.ID(raw)] = seq
	}
	return seqs, rows.Err()
}

func (b *batch) insertPayload(j *newJob, seq int64) error {
	if j.apart == 0 {
		return nil
	}
	_, err := b.run.exec(b.ctx, b.q.savePayload, seq, j.payload)
	return err
}

// enqueueEach stores the jobs of one call one by one.
func (b *batch) enqueueEach(c *enqueueCall) error {
	for i := range c.rows {
		j := &c.rows[i]
		j.schedule(b.now)
		if err := b.enqueueOne(j); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) enqueueOne(j *newJob) error {
	present, err := b.one(b.q.byID, j.id[:])
	if err != nil {
		return err
	}
	if present != nil {
		j.got(pawl.Exists, j.id)
		return nil
	}
	if j.ukey != "" {
		holder, err := b.holder(j.queue, j.ukey)
		if err != nil {
			return err
		}
		if holder != nil {
			return b.duplicate(j, holder)
		}
	}
	if j.req.MaxDepth > 0 {
		if err := b.makeRoom(j.queue, j.req.MaxDepth, j.req.WhenFull); err != nil {
			return err
		}
	}
	return b.insert(b.q.insert[len(insertSizes)-1], []*newJob{j})
}

// holder returns the job that holds a unique key, nil if none does. A key
// whose window is over is taken from its holder.
func (b *batch) holder(queue, key string) (*record, error) {
	r, err := b.one(b.q.holder, queue, key)
	if r == nil || err != nil || r.holdsAt(b.now) {
		return r, err
	}
	_, err = b.run.exec(b.ctx, b.q.release, r.seq)
	return nil, err
}

// duplicate answers a request whose unique key is held.
func (b *batch) duplicate(j *newJob, holder *record) error {
	if j.req.OnDuplicate != pawl.Replace || !holder.state.Waiting() {
		j.got(pawl.Duplicate, holder.id)
		return nil
	}
	r := holder
	r.kind, r.priority, r.runAt = j.kind, j.priority, j.runAt
	r.lease, r.timeout, r.retention = j.lease, j.timeout, j.retention
	r.maxAttempts, r.maxRescues, r.startBefore = j.maxAttempts, j.maxRescues, j.startBefore
	r.umode, r.uwindow = j.umode, j.uwindow
	r.attempt, r.rescued, r.reason, r.progress = 0, 0, "", sql.NullString{}
	r.meta = metaJSON(j.req.Meta)
	r.wait(b.now)
	if err := b.setPayload(r, j.payload); err != nil {
		return err
	}
	j.got(pawl.Replaced, r.id)
	b.events.due(r.queue, r.runAt)
	return b.save(r)
}

// depth is the number of waiting jobs of a queue, or at least limit of them.
type depth struct{ n, limit int }

// makeRoom makes sure that a queue holds less than limit waiting jobs.
func (b *batch) makeRoom(queue string, limit int, full pawl.WhenFull) error {
	d, ok := b.waiting[queue]
	if !ok || d.n >= d.limit && d.limit < limit {
		n, err := b.number(b.q.depth, queue, limit)
		if err != nil {
			return err
		}
		d = depth{n: int(n), limit: limit}
		if b.waiting == nil {
			b.waiting = make(map[string]depth)
		}
		b.waiting[queue] = d
	}
	if d.n < limit {
		return nil
	}
	if full != pawl.DropOldest {
		return &pawl.FullError{Queue: queue, Limit: limit}
	}
	return b.dropOldest(queue)
}

// dropOldest cancels the least urgent job of a queue.
func (b *batch) dropOldest(queue string) error {
	r, err := b.one(b.q.leastUrgent, queue)
	if r == nil && err == nil {
		r, err = b.one(b.q.nextScheduled, queue)
	}
	if r == nil || err != nil {
		return err
	}
	delete(b.waiting, queue)
	return b.end(r, r.finish(pawl.Canceled, pawl.ReasonDropped, b.now))
}
