package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/history"
)

// A witness writes down what a worker sends its storage about claims, and what
// comes back. Now and then it adds to what is settled an outcome of a claim that is
// over, which must be refused, and nothing else hindered by it: preferably of a job
// that is claimed again, since only there it could do harm.
type witness struct {
	pawl.Storage
	log   *history.Writer
	lease time.Duration

	mu     sync.Mutex
	old    map[pawl.ID]pawl.Outcome // that must be refused
	ids    []pawl.ID                // those in old
	urgent []pawl.Outcome           // of jobs that were claimed again just now
	rnd    *rand.Rand
}

const (
	staleEach = 8    // settles have one stale outcome, if none is urgent
	staleKept = 4096 // outcomes to choose from
)

func newWitness(s pawl.Storage, log *history.Writer, lease time.Duration, rnd *rand.Rand) *witness {
	return &witness{Storage: s, log: log, lease: lease, rnd: rnd, old: map[pawl.ID]pawl.Outcome{}}
}

// Unwrap lets the pool find the storage's events.
func (w *witness) Unwrap() pawl.Storage { return w.Storage }

func (w *witness) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	began := history.Now()
	c, err := w.Storage.Claim(ctx, spec)
	late(w.log, began, w.lease)
	w.claimed(c.Jobs)
	return c, err
}

func (w *witness) claimed(jobs []*pawl.Job) {
	events := make([]history.Event, len(jobs))
	for i, j := range jobs {
		events[i] = history.Event{Kind: history.Claimed, ID: j.ID, Fence: j.Fence, A: history.Pack(j.Counts), B: j.LeaseUntil.UnixMicro()}
	}
	w.log.Write(events...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.urgent = w.urgent[:0]
	for _, j := range jobs {
		if o, ok := w.old[j.ID]; ok {
			w.urgent = append(w.urgent, o)
		}
	}
}

func (w *witness) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	all, stale := w.offer(outcomes)
	began := history.Now()
	lost, err := w.Storage.Settle(ctx, all)
	late(w.log, began, w.lease)
	return w.settled(outcomes, stale, lost, err), err
}

// Cycle implements [pawl.Cycler], as all storages do.
func (w *witness) Cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) ([]pawl.Ref, pawl.Claimed, error) {
	cycler, ok := pawl.Find[pawl.Cycler](w.Storage)
	if !ok {
		return nil, pawl.Claimed{}, pawl.ErrUnsupported
	}
	all, stale := w.offer(outcomes)
	began := history.Now()
	lost, c, err := cycler.Cycle(ctx, all, spec)
	late(w.log, began, w.lease)
	lost = w.settled(outcomes, stale, lost, err)
	w.claimed(c.Jobs)
	return lost, c, err
}

// offer writes down what will be sent, and adds a stale outcome now and then.
func (w *witness) offer(outcomes []pawl.Outcome) (all []pawl.Outcome, stale *pawl.Outcome) {
	events := make([]history.Event, 0, len(outcomes)+1)
	for _, o := range outcomes {
		events = append(events, event(history.Offered, &o))
	}
	all = outcomes
	if len(outcomes) < pawl.MaxStep {
		stale = w.pick()
	}
	if stale != nil && slices.ContainsFunc(outcomes, func(o pawl.Outcome) bool { return o.Ref == stale.Ref }) {
		stale = nil // what is said of one could not be told from what is said of the other
	}
	if stale != nil {
		at := w.draw(len(outcomes) + 1)
		all = append(append(append([]pawl.Outcome(nil), outcomes[:at]...), *stale), outcomes[at:]...)
		events = append(events, event(history.Stale, stale))
	}
	w.log.Write(events...)
	return all, stale
}

func event(k history.Kind, o *pawl.Outcome) history.Event {
	return history.Event{Kind: k, ID: o.Ref.ID, Fence: o.Ref.Fence, A: int64(o.Verb), B: int64(o.Delay)}
}

// settled writes down what came back, and returns what was lost of the outcomes.
func (w *witness) settled(outcomes []pawl.Outcome, stale *pawl.Outcome, lost []pawl.Ref, err error) []pawl.Ref {
	var busy *pawl.BusyError
	known := err == nil || errors.As(err, &busy)
	isLost, isOpen := map[pawl.Ref]bool{}, map[pawl.Ref]bool{}
	for _, ref := range lost {
		isLost[ref] = true
	}
	if busy != nil {
		for _, ref := range busy.Refs {
			isOpen[ref] = true
		}
	}
	events := make([]history.Event, 0, len(outcomes)+1)
	for i := range outcomes {
		o := &outcomes[i]
		switch {
		case !known || isOpen[o.Ref]:
			events = append(events, event(history.Open, o))
		case isLost[o.Ref]:
			events = append(events, event(history.Lost, o))
			w.keep(o)
		default:
			events = append(events, event(history.Settled, o))
			w.keep(o)
		}
	}
	if stale != nil && known && !isOpen[stale.Ref] {
		kind := history.Forgiven
		if isLost[stale.Ref] {
			kind = history.Fenced
		}
		events = append(events, event(kind, stale))
	}
	w.log.Write(events...)
	if stale == nil {
		return lost
	}
	mine := lost[:0:0]
	for _, ref := range lost {
		if ref != stale.Ref {
			mine = append(mine, ref)
		}
	}
	return mine
}

// keep remembers a claim that is over, with an outcome that it did not have.
func (w *witness) keep(o *pawl.Outcome) {
	other := pawl.Outcome{Ref: o.Ref, Verb: pawl.Ack}
	if o.Verb == pawl.Ack {
		other.Verb, other.Error = pawl.Nack, "stale"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.old[o.Ref.ID]; !ok {
		if len(w.ids) < staleKept {
			w.ids = append(w.ids, o.Ref.ID)
		} else {
			i := w.rnd.IntN(staleKept)
			delete(w.old, w.ids[i])
			w.ids[i] = o.Ref.ID
		}
	}
	w.old[o.Ref.ID] = other
}

func (w *witness) pick() *pawl.Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.urgent); n > 0 {
		o := w.urgent[n-1]
		w.urgent = w.urgent[:n-1]
		return &o
	}
	if len(w.ids) == 0 || w.rnd.IntN(staleEach) > 0 {
		return nil
	}
	o := w.old[w.ids[w.rnd.IntN(len(w.ids))]]
	return &o
}

func (w *witness) draw(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.IntN(n)
}

func (w *witness) Extend(ctx context.Context, renewals []pawl.Renewal) ([]pawl.Ref, error) {
	sent, wall := history.Now(), history.Wall()
	lost, err := w.Storage.Extend(ctx, renewals)
	late(w.log, sent, w.lease)
	if err != nil {
		return lost, err
	}
	isLost := map[pawl.Ref]bool{}
	for _, ref := range lost {
		isLost[ref] = true
	}
	var events []history.Event
	for _, r := range renewals {
		if !isLost[r.Ref] {
			events = append(events, history.Event{At: sent, Kind: history.Extended, ID: r.Ref.ID, Fence: r.Ref.Fence, A: wall, B: int64(r.Lease)})
		}
	}
	w.log.Write(events...)
	return lost, err
}
