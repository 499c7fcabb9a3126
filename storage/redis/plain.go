package redis

import (
	"slices"

	"github.com/pawlq/pawl"
)

// isPlain reports whether a request has none of what few have.
func isPlain(q *pawl.Request) bool {
	return q.UniqueKey == "" && q.UniqueMode == 0 && q.UniqueWindow == 0 && q.StartBefore.IsZero() && q.MaxDepth <= 0
}

// alike reports whether two plain requests differ in nothing that lua/plain.lua reads but
// their IDs.
func alike(a, b *pawl.Request) bool {
	return a.Priority == b.Priority && a.Delay == b.Delay && a.RunAt.Equal(b.RunAt) && a.Retention == b.Retention &&
		a.MaxAttempts == b.MaxAttempts && a.MaxRescues == b.MaxRescues && a.Lease == b.Lease
}

// isPlain reports whether the requests of each section are plain, and alike.
func (e *enqueue) isPlain() bool {
	return !slices.ContainsFunc(e.sections, func(sec section) bool {
		return slices.ContainsFunc(sec.places, func(place int) bool {
			return !isPlain(e.reqs[place]) || !alike(e.reqs[place], e.reqs[sec.places[0]])
		})
	})
}

// plainArgs are args for lua/plain.lua.
func (e *enqueue) plainArgs() []any {
	m := e.s.begin(1)
	args := make([]any, 1, 1+len(e.reqs))
	m.string("queues")
	m.array(len(e.sections))
	for i, sec := range e.sections {
		m.array(10)
		m.flag(e.known[i])
		m.bytesHeader(16 * len(sec.places))
		for _, place := range sec.places {
			*m = append(*m, e.reqs[place].ID[:]...)
		}
		m.int(int64(len(args) + 1))
		appendTerms(m, e.reqs[sec.places[0]])
		for _, place := range sec.places {
			args = append(args, bodyRest(e.reqs[place]))
		}
	}
	args[0] = []byte(*m)
	return args
}

// readPlain reads which arguments had IDs that were there.
func (e *enqueue) readPlain(reply any, receipts []pawl.Receipt) error {
	exist, err := items(reply, 0)
	if err != nil {
		return err
	}
	argument := int64(1)
	for _, sec := range e.sections {
		for _, place := range sec.places {
			argument++
			q, status := e.reqs[place], pawl.Stored
			if len(exist) > 0 && number(exist[0]) == argument {
				exist, status = exist[1:], pawl.Exists
			}
			receipts[place] = pawl.Receipt{ID: q.ID, Queue: q.Queue, Status: status}
		}
	}
	if len(exist) > 0 {
		return errReply
	}
	return nil
}
