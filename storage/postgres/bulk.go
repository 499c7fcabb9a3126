package postgres

import (
	"cmp"

	"github.com/pawlq/pawl"
)

// bulk stores all requests at once, and then looks at those that met an ID or a
// key that is there.
func (e *enqueue) bulk() error {
	rest, err := e.insert(e.reqs)
	if err != nil {
		return err
	}
	open := e.sort(rest)
	later := e.storedPlaces(open)
	first := -1 // of those that could be stored after all
	for _, i := range open {
		if err := e.one(i); err != nil {
			return err
		}
		got := e.receipts[i]
		if got.Status != pawl.Stored && later[got.ID] > i {
			if err := e.backInTurn(i); err != nil {
				return err
			}
			break
		}
		if first < 0 && got.Status == pawl.Stored {
			first = i
		}
	}
	if first < 0 {
		return nil
	}
	return e.again(first + 1)
}

// storedPlaces says where the requests are that were stored, if others were not.
func (e *enqueue) storedPlaces(open []int) map[pawl.ID]int {
	if len(open) == 0 {
		return nil
	}
	places := make(map[pawl.ID]int, len(e.reqs)-len(open))
	for i, got := range e.receipts {
		if got.Status == pawl.Stored {
			places[got.ID] = i
		}
	}
	return places
}

// backInTurn stores a request, and all behind it, in order: it was there when all were
// stored at once, and before it was looked at others have deleted it, so that one behind
// it had its key.
func (e *enqueue) backInTurn(from int) error {
	if _, err := e.unstore(from + 1); err != nil {
		return err
	}
	return e.inTurn(from)
}

// unstore deletes what was stored from a place on, and returns the requests.
func (e *enqueue) unstore(from int) (reqs []*pawl.Request, err error) {
	var ids []pawl.ID
	for i, r := range e.reqs[from:] {
		if e.receipts[from+i].Status == pawl.Stored {
			reqs, ids = append(reqs, r), append(ids, r.ID)
		}
	}
	if len(reqs) == 0 {
		return nil, nil
	}
	return reqs, e.run.exec(e.ctx, e.s.q.remove, texts(ids))
}

// again stores all requests from a place on anew that were stored, and so behind the
// one before them, whose key had to be taken from its holder first. What has replaced
// one of them does so again.
func (e *enqueue) again(from int) error {
	reqs, err := e.unstore(from)
	if err != nil || len(reqs) == 0 {
		return err
	}
	if rest, err := e.insert(reqs); err != nil || len(rest) > 0 {
		return cmp.Or(err, errAgain)
	}
	return e.replaceAgain(reqs)
}

// replaceAgain rewrites jobs, which are as they were first asked for, as the requests
// that replaced them ask.
func (e *enqueue) replaceAgain(reqs []*pawl.Request) error {
	anew := make(map[pawl.ID]struct{}, len(reqs))
	for _, r := range reqs {
		anew[r.ID] = struct{}{}
	}
	for i, got := range e.receipts {
		if _, ok := anew[got.ID]; !ok || got.Status != pawl.Replaced {
			continue
		}
		if err := e.replace(e.reqs[i], got.ID.String()); err != nil {
			return err
		}
	}
	return nil
}

// sort gives a receipt to each request that was stored, or whose ID must have
// been there, and returns the places of the others.
func (e *enqueue) sort(rest []int) (open []int) {
	next := 0
	for i, r := range e.reqs {
		switch {
		case next == len(rest) || rest[next] != i:
			e.stored(i, r)
			continue
		case e.plain:
			e.got(i, pawl.Exists, r.ID)
		default:
			open = append(open, i)
		}
		next++
	}
	return open
}
