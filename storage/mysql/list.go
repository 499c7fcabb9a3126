package mysql

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"

	"github.com/pawlq/pawl"
	clean "github.com/pawlq/pawl/internal/text"
)

// scanPerPage bounds the rows that one List looks at, however few match.
const scanPerPage = 10_000

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
		if err = json.Unmarshal(raw, c); err == nil && clean.IsName(c.Queue, pawl.MaxNameLen) {
			return (*cursor)(c), nil
		}
	}
	return nil, &pawl.InvalidError{Field: "Cursor", Limit: "the Next of a page"}
}

// errName is of names that no queue can have. The server would compare one that
// ends in spaces as if it had none.
var errName = &pawl.InvalidError{Field: "Queue", Limit: "a name"}

// lister makes one page.
type lister struct {
	b       *batch
	spec    pawl.ListSpec
	at      *cursor
	page    pawl.Page
	scanned int
	bytes   int
}

func (s *Store) list(ctx context.Context, spec pawl.ListSpec) (page pawl.Page, err error) {
	at := new(cursor)
	if spec.Queue != "" && !clean.IsName(spec.Queue, pawl.MaxNameLen) {
		return pawl.Page{}, errName
	}
	if spec.Cursor != "" {
		if at, err = parseCursor(spec.Cursor); err != nil {
			return pawl.Page{}, err
		}
		if spec.Queue != "" && at.Queue != spec.Queue {
			return pawl.Page{}, &pawl.InvalidError{Field: "Cursor", Limit: "of the same filter"}
		}
	}
	err = s.reading(ctx, func(b *batch) error {
		from := *at
		l := &lister{b: b, spec: spec, at: &from}
		err := l.walk()
		page = l.page
		return err
	})
	return page, err
}

// walk walks the queues.
func (l *lister) walk() error {
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
		next, err := l.b.nextQueue(l.at.Queue)
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
	return l.b.nextQueue("")
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

// rows reads the next rows of a state in the order of the index place.
func (l *lister) rows(limit int) ([]*record, error) {
	t := l.b.sql("SELECT " + recordColumns + " FROM pawl_job FORCE INDEX (place) WHERE queue = ").name(l.at.Queue)
	t.add(" AND state = ").num(int64(l.at.State)).add(" AND urgency >= ").num(l.at.Rank)
	t.add(" AND (urgency > ").num(l.at.Rank).add(" OR moment > ").num(l.at.At)
	t.add(" OR moment = ").num(l.at.At).add(" AND seq > ").num(l.at.Seq)
	return l.b.records(t.add(") ORDER BY urgency, moment, seq LIMIT ").num(int64(limit)))
}

// add puts a row on the page if it matches, and moves the cursor. It reports
// whether the row had no room.
func (l *lister) add(r *record) (full bool, err error) {
	if len(l.page.Jobs) >= l.spec.Limit || l.bytes >= pawl.MaxPageBytes {
		return true, nil
	}
	if l.matches(r) {
		j, err := l.job(r)
		if err != nil {
			return false, err
		}
		if l.bytes += len(j.Payload) + len(j.Result); l.bytes > pawl.MaxPageBytes && len(l.page.Jobs) > 0 {
			return true, nil
		}
		l.page.Jobs = append(l.page.Jobs, j)
	}
	l.pass(r)
	return false, nil
}

// pass moves the cursor past a row.
func (l *lister) pass(r *record) {
	l.scanned++
	l.at.Rank, l.at.At, l.at.Seq = r.urgency, r.moment, r.seq
}

// job is what the page shows of a row.
func (l *lister) job(r *record) (*pawl.Job, error) {
	if !l.spec.Payloads {
		return r.job(), nil
	}
	all, err := l.b.whole(l.b.sql(wholeJob + " WHERE j.seq = ").num(r.seq))
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errNoRow // which can't be within one snapshot
	}
	return all[0], nil
}

func (l *lister) matches(r *record) bool {
	f := &l.spec.Filter
	return (f.Kind == "" || r.kind == f.Kind) &&
		(f.UniqueKey == "" || string(r.ukey) == f.UniqueKey) &&
		(f.WorkerID == "" || string(r.worker) == f.WorkerID) &&
		(f.CreatedFrom.IsZero() || r.createdAt >= micros(f.CreatedFrom)) &&
		(f.CreatedBefore.IsZero() || r.createdAt < micros(f.CreatedBefore))
}
