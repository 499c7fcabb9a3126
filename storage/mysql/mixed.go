package mysql

import (
	"errors"
	"fmt"
	"slices"

	"github.com/pawlq/pawl"
)

// mixed are requests of a call that are looked at one after the other, against
// what the tables hold and what those before have done. What they do is stored
// at the end, or before a queue that is full has to drop a job.
type mixed struct {
	b       *batch
	e       *enqueue
	seen    map[pawl.ID]struct{} // by requests before, of earlier windows too
	exists  map[pawl.ID]struct{}
	holders map[string]*record
	added   []*record // not yet stored
	changed []*record
	room    int            // the place of a request for which a job was dropped
	waiting map[string]int // how many jobs wait, of queues that were counted
	counted map[string]int // up to which number
}

// runMixed stores requests with unique keys or limits of depth.
func (e *enqueue) runMixed(b *batch) error {
	if err := e.lockQueues(b); err != nil {
		return err
	}
	window, room := maxRows, -1
	seen := make(map[pawl.ID]struct{}) // is there, whatever others have done to it since
	for at := 0; at < len(e.reqs); {
		m := &mixed{b: b, e: e, seen: seen, room: room, waiting: make(map[string]int), counted: make(map[string]int)}
		end := min(len(e.reqs), at+window)
		if err := m.load(e.reqs[at:end]); err != nil {
			return err
		}
		var drop *pawl.FullError
		for at < end && drop == nil {
			var err error
			if drop, err = m.one(at); err != nil {
				return err
			}
			if drop == nil {
				e.seeAt(at, seen)
				at++
			}
		}
		if err := m.store(); err != nil {
			return err
		}
		window = min(2*window, maxRows)
		if drop != nil {
			if err := m.dropOldest(drop); err != nil {
				return err
			}
			window, room = windowAfterDrop, at
		}
	}
	return nil
}

// seeAt notes the ID of a request that was stored, or whose ID was there.
func (e *enqueue) seeAt(at int, seen map[pawl.ID]struct{}) {
	if s := e.receipts[at].Status; s == pawl.Stored || s == pawl.Exists {
		seen[e.reqs[at].ID] = struct{}{}
	}
}

// windowAfterDrop is how many requests are loaded after one that made its queue
// drop a job: the next one is likely to do so too.
const windowAfterDrop = 4

// lockQueues makes the calls with limits of depth take turns, so that they are
// exact among each other. A caller's transaction does not: it may stay open.
func (e *enqueue) lockQueues(b *batch) error {
	var limited []string
	for _, r := range e.reqs {
		if r.MaxDepth > 0 && !b.foreign {
			limited = append(limited, r.Queue)
		}
	}
	slices.Sort(limited)
	for _, queue := range slices.Compact(limited) {
		_, err := b.exec(b.sql("INSERT INTO pawl_queue (name, paused) VALUES (").name(queue).
			add(", 0) ON DUPLICATE KEY UPDATE paused = paused"))
		if err != nil {
			return err
		}
	}
	return nil
}

// load reads what the requests may meet.
func (m *mixed) load(reqs []*pawl.Request) (err error) {
	if m.e.fresh {
		m.e.fresh = false // another try looks itself
		return nil
	}
	ids := make([]pawl.ID, len(reqs))
	var keys []string
	lock := false
	for i, r := range reqs {
		ids[i] = r.ID
		if r.UniqueKey != "" {
			keys = append(keys, keyOf(r.Queue, []byte(r.UniqueKey)))
			lock = lock || r.OnDuplicate == pawl.Replace
		}
	}
	if m.exists, err = m.b.present(ids); err != nil || len(keys) == 0 {
		return err
	}
	if m.holders, err = m.b.holders(keys, lock); err != nil || lock {
		return err
	}
	for _, r := range m.holders {
		if !r.holdsAt(m.b.now) { // its key is going to be taken
			m.holders, err = m.b.holders(keys, true)
			return err
		}
	}
	return nil
}

// present says which IDs are there.
func (b *batch) present(ids []pawl.ID) (map[pawl.ID]struct{}, error) {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, compareIDs)
	ids = slices.Compact(ids)
	all, err := b.visible(ids)
	if !b.latest || err != nil {
		return all, err
	}
	there, err := b.probeIDs(slices.DeleteFunc(ids, func(id pawl.ID) bool { _, ok := all[id]; return ok }))
	for _, id := range there {
		all[id] = struct{}{}
	}
	return all, err
}

// visible says which IDs a plain read sees.
func (b *batch) visible(ids []pawl.ID) (map[pawl.ID]struct{}, error) {
	t := b.sql("SELECT id FROM ").byID("pawl_job", "by_id", ids)
	all := make(map[pawl.ID]struct{})
	err := b.each(t, func(row scanner) error {
		var id []byte
		err := row.Scan(&id)
		if err == nil {
			all[pawl.ID(id)] = struct{}{}
		}
		return err
	})
	return all, err
}

// one looks at a request. It returns which queue is full and is to drop a job first, and
// has then done nothing.
func (m *mixed) one(i int) (drop *pawl.FullError, err error) {
	req := m.e.reqs[i]
	_, there := m.exists[req.ID]
	if _, before := m.seen[req.ID]; there || before {
		m.e.got(i, pawl.Exists, req.ID)
		return nil, nil
	}
	key := keyOf(req.Queue, []byte(req.UniqueKey))
	if h := m.holders[key]; req.UniqueKey != "" && h != nil {
		if h.holdsAt(m.b.now) {
			m.duplicate(i, h)
			return nil, nil
		}
	}
	if req.MaxDepth > 0 && i != m.room {
		full, err := m.full(req)
		if err != nil {
			return nil, err
		}
		if full {
			refused := &pawl.FullError{Queue: req.Queue, Limit: req.MaxDepth}
			if req.WhenFull == pawl.DropOldest {
				return refused, nil
			}
			return nil, refused
		}
	}
	if h := m.holders[key]; req.UniqueKey != "" && h != nil { // its window is over
		h.giveUpKey()
		m.changed = append(m.changed, h)
	}
	m.add(i, key)
	return nil, nil
}

// add stores a new job.
func (m *mixed) add(i int, key string) {
	req := m.e.reqs[i]
	r := newRecord(req, m.b.now)
	r.mark = m.e.mark
	m.added = append(m.added, r)
	if r.held {
		if m.holders == nil {
			m.holders = make(map[string]*record)
		}
		m.holders[key] = r
	}
	m.waiting[r.queue]++
	m.b.due(r.queue, r.runAt)
	m.e.got(i, pawl.Stored, r.id)
}

// duplicate answers a request whose unique key is held.
func (m *mixed) duplicate(i int, h *record) {
	req := m.e.reqs[i]
	if h.id == req.ID { // another call has stored it since its ID was looked for
		m.e.got(i, pawl.Exists, req.ID)
		return
	}
	if req.OnDuplicate != pawl.Replace || !h.state.Waiting() {
		m.e.got(i, pawl.Duplicate, h.id)
		return
	}
	h.attempt, h.rescued, h.reason, h.progress = 0, 0, "", nil
	h.ask(req, m.b.now)
	if h.seq > 0 {
		m.changed = append(m.changed, h)
	}
	m.b.due(h.queue, h.runAt)
	m.e.got(i, pawl.Replaced, h.id)
}

// full reports whether the queue of a request holds as many waiting jobs as that
// allows.
func (m *mixed) full(req *pawl.Request) (bool, error) {
	queue := req.Queue
	if m.counted[queue] < req.MaxDepth {
		t := m.b.sql("SELECT COUNT(*) FROM (SELECT 1 FROM pawl_job FORCE INDEX (place) WHERE queue = ").name(queue)
		t.add(" AND state IN (1, 2) LIMIT ").num(int64(req.MaxDepth)).add(") AS waiting")
		n, err := m.b.number(t)
		if err != nil {
			return false, err
		}
		m.counted[queue], m.waiting[queue] = req.MaxDepth, int(n)
		for _, r := range m.added {
			if r.queue == queue {
				m.waiting[queue]++
			}
		}
	}
	return m.waiting[queue] >= req.MaxDepth, nil
}

// store writes what was done: keys that are given up first, then those that are
// taken, then rows.
func (m *mixed) store() error {
	slices.SortFunc(m.changed, func(x, y *record) int { return int(x.seq - y.seq) })
	m.changed = slices.Compact(m.changed)
	if err := m.b.flush(m.changed); err != nil {
		return err
	}
	var held []*record
	for _, r := range m.added {
		if r.held {
			held = append(held, r)
		}
	}
	if err := m.b.insertKeys(held); err != nil {
		return err
	}
	err := m.b.rows("INSERT INTO pawl_job ("+insertColumns+") VALUES ", "", len(m.added), func(t *text, i int) {
		m.added[i].insertValues(m.b, t, false)
	})
	if err != nil {
		return err
	}
	return m.b.saveBlobs(m.added)
}

// dropOldest cancels the least urgent job of a queue. It fails with full if others have
// locked the waiting jobs, and should be tried again.
func (m *mixed) dropOldest(full *pawl.FullError) error {
	b, queue := m.b, full.Queue
	if b.foreign {
		return b.dropVisible(queue)
	}
	least := func(rest string) ([]*record, error) {
		t := b.locking("SELECT "+recordColumns, "place").add("queue = ").name(queue).add(rest)
		return b.lock(b.forUpdate(t))
	}
	urgency, err := b.number(b.sql("SELECT urgency FROM pawl_job FORCE INDEX (place) WHERE queue = ").name(queue).
		add(" AND state = 2 ORDER BY urgency DESC LIMIT 1"))
	if err != nil {
		return err
	}
	found, err := least((&text{}).add(" AND state = 2 AND urgency = ").num(urgency).add(" ORDER BY moment, seq LIMIT 1").String())
	if len(found) == 0 && err == nil {
		found, err = least(" AND state = 1 AND urgency = 0 ORDER BY moment, seq LIMIT 1")
	}
	if err != nil {
		return err
	}
	for _, r := range found {
		r.finish(pawl.Canceled, pawl.ReasonDropped, b.now)
	}
	if err := b.flush(found); err != nil {
		return err
	}
	if len(found) == staying(found) { // others have them all
		return fmt.Errorf("%w: %w", errAgain, full)
	}
	return nil
}

// dropVisible is dropOldest in a caller's transaction. Its locks last, so it takes
// none but that of the job: a search that locks would lock the places between jobs.
func (b *batch) dropVisible(queue string) error {
	for _, part := range []string{" AND state = 2 ORDER BY urgency DESC, moment, seq", " AND state = 1 AND urgency = 0 ORDER BY moment, seq"} {
		seqs, err := column[int64](b, b.sql("SELECT seq FROM pawl_job FORCE INDEX (place) WHERE queue = ").name(queue).
			add(part).add(" LIMIT ").num(dropTries))
		if err != nil {
			return err
		}
		for _, seq := range seqs {
			found, err := b.lock(b.bySeq([]int64{seq}))
			if err != nil {
				return err
			}
			if len(found) == 1 && found[0].state.Waiting() {
				found[0].finish(pawl.Canceled, pawl.ReasonDropped, b.now)
				return b.flush(found)
			}
		}
	}
	if !b.latest {
		return errAgain // which helps where each statement has a snapshot of its own
	}
	return &undoError{errSnapshot, errSnapshot}
}

// dropTries is how many jobs are looked at that are not as the snapshot of a
// caller's transaction shows them.
const dropTries = 5

var errSnapshot = errors.New("the snapshot of the transaction is too old to drop a job")
