package mysql

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

// enqueue is one call of Enqueue, or several that share an insert.
type enqueue struct {
	reqs     []*pawl.Request
	receipts []pawl.Receipt
	mark     int64 // of the rows that it stores
	fresh    bool  // a look has just found nothing that the requests could meet
}

func newEnqueue(reqs []*pawl.Request) *enqueue {
	return &enqueue{reqs: reqs, receipts: make([]pawl.Receipt, len(reqs)), mark: rand.Int64()}
}

func (e *enqueue) got(i int, status pawl.ReceiptStatus, id pawl.ID) {
	e.receipts[i] = pawl.Receipt{ID: id, Queue: e.reqs[i].Queue, Status: status}
}

// isPlain reports whether nothing in the request can be refused, and nothing but
// the ID can be there already.
func isPlain(r *pawl.Request) bool { return r.UniqueKey == "" && r.MaxDepth <= 0 }

func (e *enqueue) isPlain() bool {
	return !slices.ContainsFunc(e.reqs, func(r *pawl.Request) bool { return !isPlain(r) })
}

// enqueueAlone stores the requests of one call. Those of a few plain ones take
// one statement.
func (s *Store) enqueueAlone(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	e := newEnqueue(reqs)
	for try := 1; ; try++ {
		var err error
		if e.fitsOne() {
			err = s.insertAlone(ctx, e)
		} else {
			err = s.store(ctx, e, func() error { return nil })
		}
		if err == nil {
			return e.receipts, nil
		}
		if !errors.Is(err, errLocked) || pause(ctx, try) != nil {
			return nil, err
		}
	}
}

// noWait begins statements that fail instead of waiting for a lock, of which MySQL has
// none: what waits for an open transaction should not have a connection meanwhile, of
// which others are in need, nor locks. The driver can't end such a wait, for the server
// does not notice that its client has gone.
const noWait = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR "

// errLocked says that an open transaction holds an ID or a key.
var errLocked = errors.New("pawl/mysql: an open transaction has the same ID or unique key")

// store stores the requests in a transaction. last is called before its commit.
func (s *Store) store(ctx context.Context, e *enqueue, last func() error) error {
	if e.canLook() {
		return s.storeKeyed(ctx, e, last)
	}
	return s.inTx(ctx, func(b *batch) error {
		b.noWait = s.mariaDB && e.isPlain()
		if err := e.run(b); err != nil {
			return err
		}
		return last()
	})
}

// run stores the requests in a transaction.
func (e *enqueue) run(b *batch) error {
	if b.foreign && e.fitsOne() {
		return e.insertRelative(b)
	}
	if err := b.lookAtClock(); err != nil {
		return err
	}
	if e.isPlain() {
		return e.insertPlain(b)
	}
	return e.runMixed(b)
}

// fitsOne reports whether one statement stores all.
func (e *enqueue) fitsOne() bool {
	size := 0
	for _, r := range e.reqs {
		if !isPlain(r) || len(r.Payload) > apartSize || !r.RunAt.IsZero() || !r.StartBefore.IsZero() {
			return false
		}
		size += rowText + 2*len(r.Payload) + 2*metaSize(r.Meta)
	}
	return len(e.reqs) <= maxRows && size < maxText
}

// rowText is more than the text of a row without payload and meta.
const rowText = 1500

func metaSize(meta map[string]string) (n int) {
	for k, v := range meta {
		n += len(k) + len(v) + 8
	}
	return n
}

// insertAlone stores by one statement, in which all times are relative to its
// own. What was there already is found out before the commit: a new job may have
// run and gone right after it.
func (s *Store) insertAlone(ctx context.Context, e *enqueue) error {
	switch {
	case len(e.firsts()) == 1:
		return s.insertSingly(ctx, e, (*batch).insertOne)
	case s.mariaDB:
		return s.insertSingly(ctx, e, (*batch).insertReturning)
	}
	return s.inTx(ctx, e.insertRelative)
}

// insertRelative stores by one statement of a transaction.
func (e *enqueue) insertRelative(b *batch) error {
	first := e.firsts() // what another try has found is undone
	stored, err := b.insert(e, first, true)
	if err == nil && int(stored) < len(first) {
		_, err = e.sortOut(b, first)
	}
	return err
}

// insertSingly runs f, which is one statement, without a transaction.
func (s *Store) insertSingly(ctx context.Context, e *enqueue, f func(*batch, *enqueue, []int) error) error {
	var b *batch
	err := s.alone(ctx, func(own *batch) error {
		b, own.noWait = own, s.mariaDB
		if err := f(b, e, e.firsts()); err != nil {
			return &sentError{err}
		}
		return nil
	})
	if err == nil {
		s.watch.publish(&b.events)
	}
	return err
}

// insertOne inserts one row: the number of rows tells all.
func (b *batch) insertOne(e *enqueue, first []int) error {
	stored, err := b.insert(e, first, true)
	if err == nil && stored == 0 {
		e.got(first[0], pawl.Exists, e.reqs[first[0]].ID)
	}
	return err
}

// insertReturning inserts rows and has the server say which, as MariaDB can.
func (b *batch) insertReturning(e *enqueue, first []int) error {
	stored, err := column[uuid.UUID](b, b.insertText(e, first, true).add(" RETURNING id"))
	if len(stored) == len(first) || err != nil {
		return err
	}
	mine := make(map[pawl.ID]struct{}, len(stored))
	for _, id := range stored {
		mine[id] = struct{}{}
	}
	for _, i := range first {
		if _, ok := mine[e.reqs[i].ID]; !ok {
			e.got(i, pawl.Exists, e.reqs[i].ID)
		}
	}
	return nil
}

// firsts are the places of the first request of each ID. The others exist when
// their turn comes. All receipts say what is so if all first ones are stored.
func (e *enqueue) firsts() []int {
	first := make([]int, 0, len(e.reqs))
	seen := make(map[pawl.ID]struct{}, len(e.reqs))
	for i, r := range e.reqs {
		if _, twice := seen[r.ID]; twice {
			e.got(i, pawl.Exists, r.ID)
			continue
		}
		seen[r.ID] = struct{}{}
		first = append(first, i)
		e.got(i, pawl.Stored, r.ID)
	}
	return first
}

// insertPlain stores plain requests in as many statements as they take.
func (e *enqueue) insertPlain(b *batch) error {
	first := e.firsts()
	for len(first) > 0 {
		n, size := 0, 0
		for ; n < len(first) && n < maxRows && size < maxText; n++ {
			r := e.reqs[first[n]]
			size += rowText + 2*metaSize(r.Meta)
			if len(r.Payload) <= apartSize {
				size += 2 * len(r.Payload)
			}
		}
		if err := e.insertPart(b, first[:n]); err != nil {
			return err
		}
		first = first[n:]
	}
	return nil
}

func (e *enqueue) insertPart(b *batch, places []int) error {
	n, err := b.insert(e, places, false)
	if err != nil {
		return err
	}
	if int(n) < len(places) {
		if places, err = e.sortOut(b, places); err != nil {
			return err
		}
	}
	var apart []*record
	for _, i := range places {
		if r := e.reqs[i]; len(r.Payload) > apartSize {
			apart = append(apart, &record{id: r.ID, payload: r.Payload})
		}
	}
	return b.insertBlobs(apart, payloadPart)
}

// insert stores rows whose ID is not there, and says how many.
func (b *batch) insert(e *enqueue, places []int, relative bool) (stored int64, err error) {
	return b.exec(b.insertText(e, places, relative))
}

func (b *batch) insertText(e *enqueue, places []int, relative bool) *text {
	t := b.sql("INSERT IGNORE INTO pawl_job (" + insertColumns + ") VALUES ")
	list(t, places, func(i int) {
		now := b.now
		if relative {
			now = 0
		}
		r := newRecord(e.reqs[i], now)
		r.mark = e.mark
		r.insertValues(b, t, relative)
		b.events.dueIn(r.queue, max(0, r.runAt-now))
	})
	return t
}

// sortOut finds which of the rows were inserted by this call, whose places it
// returns. The others have an ID that was there already.
func (e *enqueue) sortOut(b *batch, places []int) (stored []int, err error) {
	ids := make([]pawl.ID, len(places))
	for k, i := range places {
		ids[k] = e.reqs[i].ID
	}
	t := b.sql("SELECT id FROM ").byID("pawl_job", "by_id", ids).add(" WHERE mark = ").num(e.mark)
	mine := make(map[pawl.ID]struct{})
	err = b.each(t, func(row scanner) error {
		var id sql.RawBytes
		err := row.Scan(&id)
		if err == nil {
			mine[pawl.ID(id)] = struct{}{}
		}
		return err
	})
	for _, i := range places {
		if _, ok := mine[e.reqs[i].ID]; ok {
			stored = append(stored, i)
		} else {
			e.got(i, pawl.Exists, e.reqs[i].ID)
		}
	}
	return stored, err
}

// insertColumns are those of a new row; the others have their defaults.
const insertColumns = `id, queue, kind, state, urgency, moment, wake_at, run_at, priority, max_attempts, max_rescues,
	lease, timeout, retention, created_at, start_before, mark, ukey, umode, uwindow, held, apart, meta, payload, worker`

// claimRoom is what a new row has as its worker: as long as what the first claim adds,
// which is wake_at and a name. A row that grows can't take its own place again, and the server
// rewrites, and logs, the whole page for each few rows of a claim.
const claimRoom = "SPACE(56)"

// newRecord is the row of a request that is stored at a time.
func newRecord(req *pawl.Request, now int64) *record {
	r := &record{id: req.ID, queue: req.Queue, createdAt: now}
	r.ask(req, now)
	return r
}

// ask fills in what a request asks for.
func (r *record) ask(req *pawl.Request, now int64) {
	r.kind, r.priority = req.Kind, req.Priority
	r.lease, r.timeout, r.retention = microseconds(req.Lease), microseconds(req.Timeout), microseconds(req.Retention)
	r.maxAttempts, r.maxRescues, r.startBefore = req.MaxAttempts, req.MaxRescues, micros(req.StartBefore)
	r.ukey, r.umode, r.uwindow = []byte(req.UniqueKey), req.UniqueMode, microseconds(req.UniqueWindow)
	r.held = req.UniqueKey != ""
	r.meta = metaJSON(req.Meta)
	r.runAt = now
	switch {
	case req.Delay > 0:
		r.runAt = now + microseconds(req.Delay)
	case !req.RunAt.IsZero():
		r.runAt = max(now, micros(req.RunAt))
	}
	r.store(payloadPart, req.Payload)
	r.wait(now)
}

// insertValues appends insertColumns. Relative times are after the present one.
func (r *record) insertValues(b *batch, t *text, relative bool) {
	at := func(us int64) {
		t.add(",")
		if relative {
			b.time(t).add("+")
		}
		t.num(us)
	}
	t.add("(").bytes(r.id[:]).add(",").name(r.queue).add(",").name(r.kind)
	t.add(",").num(int64(r.state)).add(",").num(r.urgency)
	at(r.moment)
	if relative && r.wakeAt != 0 {
		at(r.wakeAt)
	} else {
		t.add(",").timeOrNull(r.wakeAt)
	}
	at(r.runAt)
	for _, n := range []int64{
		int64(r.priority), int64(r.maxAttempts), int64(r.maxRescues), r.lease, r.timeout, r.retention,
	} {
		t.add(",").num(n)
	}
	at(r.createdAt)
	t.add(",").num(r.startBefore).add(",").num(r.mark).add(",").bytes(r.ukey).add(",").num(int64(r.umode))
	t.add(",").num(r.uwindow).add(",").flag(r.held).add(",").num(int64(r.apart))
	t.add(",").orNull(r.meta).add(",").orNull(r.inline(payloadPart)).add(",").add(claimRoom).add(")")
}
