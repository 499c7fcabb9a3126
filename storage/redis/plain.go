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

// plainUses are the places in keySuffixes of the keys of a section that lua/plain.lua uses.
var plainUses = [...]int{0, 1, 3, 4, 13, 14}

// plainKeys are those of the keys of each section.
func plainKeys(all []any) []any {
	keys := make([]any, 0, len(all)/len(keySuffixes)*len(plainUses))
	for ; len(all) > 0; all = all[len(keySuffixes):] {
		for _, i := range plainUses {
			keys = append(keys, all[i])
		}
	}
	return keys
}

// plainArgs are args for lua/plain.lua, for each section as it says.
func (e *enqueue) plainArgs() []any {
	args := make([]any, 0, 2+8*len(e.sections)+len(e.reqs))
	args = append(args, []byte(*e.s.begin(0)), e.s.now())
	for i, sec := range e.sections {
		first := e.reqs[sec.places[0]]
		ids := make([]byte, 0, 16*len(sec.places))
		for _, place := range sec.places {
			ids = append(ids, e.reqs[place].ID[:]...)
		}
		top, priority, terms := plainHead(first)
		args = append(args, e.known[i], ids, microseconds(max(first.Delay, 0)), micros(first.RunAt), first.Priority, top, priority, terms)
		for _, place := range sec.places {
			args = append(args, bodyRest(e.reqs[place]))
		}
	}
	return args
}

// plainHead has the parts of the head of a job that its request tells: how many fields there
// are, the priority, and what follows when it was created.
func plainHead(q *pawl.Request) (top, priority, terms []byte) {
	var t, p, r message
	p.int(int64(q.Priority))
	r.int(microseconds(q.Retention))
	r.int(int64(q.MaxAttempts))
	r.int(int64(q.MaxRescues))
	if lease := microseconds(q.Lease); lease > 0 {
		t.array(fLease + 1)
		r.int(lease)
	} else {
		t.array(fLease)
	}
	return t, p, r
}

// readPlain reads which requests had IDs that were there.
func (e *enqueue) readPlain(reply any, receipts []pawl.Receipt) error {
	exist, err := items(reply, 0)
	if err != nil {
		return err
	}
	n := int64(0)
	for _, sec := range e.sections {
		for _, place := range sec.places {
			n++
			q, status := e.reqs[place], pawl.Stored
			if len(exist) > 0 && number(exist[0]) == n {
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
