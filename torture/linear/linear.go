// Package linear looks at small histories of calls that several clients make of one queue
// at the same time, and asks whether there is an order in which they could have been made
// one after the other, each with the answer that it had (linearizability, by porcupine).
// The storage's clock stands still while calls are made. Between rounds of them it is set:
// forwards, so that leases end, and backwards.
package linear

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

// A Clock stands still until it is set.
type Clock struct{ us atomic.Int64 }

// NewClock returns a clock that shows a time to come.
func NewClock() *Clock {
	c := new(Clock)
	c.us.Store(time.Date(2030, time.March, 1, 12, 0, 0, 0, time.UTC).UnixMicro())
	return c
}

// Now is what the clock shows.
func (c *Clock) Now() time.Time { return time.UnixMicro(c.us.Load()).UTC() }

// A Subject is a storage that is looked at.
type Subject struct {
	// Handles onto the same jobs; clients have them in turn. Nobody else uses them.
	Handles []pawl.Storage
	Clock   *Clock // of all of them
	// Skips says that a claim or a sweep passes by a job that another call is just looking
	// at, and that an extension of such a job is answered with yes and may be none.
	Skips bool
	// Looks says that what an enqueue has met was true at some moment of the call, not at
	// the same one for all its requests.
	Looks bool
	// Hesitates says that a rescue may come late although nothing else is going on.
	Hesitates bool
}

// Size of a history.
const (
	clients = 6
	rounds  = 5
	each    = 2 // calls of a client in a round
	lease   = 10 * time.Second
	limit   = 20 * time.Second // for looking for an order
)

// steps are by how much the clock is set between rounds.
var steps = []time.Duration{0, 4 * time.Second, 4 * time.Second, lease + time.Second, lease + time.Second, -lease}

// ErrOrder says that there is no order.
var ErrOrder = errors.New("no order of these calls explains their answers")

// Counts are how often there was what.
type Counts map[string]int

// Check makes the history of a seed and looks for an order of its calls. What was done
// follows from the seed, and when from the machine.
func Check(ctx context.Context, s *Subject, seed uint64) (Counts, error) {
	h := &history{s: s, queue: fmt.Sprintf("linear-%d", seed), began: time.Now(), index: map[pawl.ID]int{}}
	for i := range h.ids {
		h.ids[i] = uuid.Must(uuid.NewV7())
		h.index[h.ids[i]] = i
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	for r := range rounds {
		if err := h.round(ctx, r, seed); err != nil {
			return nil, err
		}
		s.Clock.us.Add(steps[rnd.IntN(len(steps))].Microseconds())
	}
	if err := h.clear(ctx); err != nil {
		return nil, err
	}
	return h.counts(), h.check()
}

// A history is what clients have done.
type history struct {
	s     *Subject
	queue string
	began time.Time
	ids   [numJobs]pawl.ID
	index map[pawl.ID]int

	mu    sync.Mutex
	calls []porcupine.Operation
	ends  []int // how many calls there were after each round
	refs  []pawl.Ref
}

// round lets all clients make calls at the same time.
func (h *history) round(ctx context.Context, r int, seed uint64) error {
	errs := make([]error, clients)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range clients {
		c := &client{h: h, number: i, s: h.s.Handles[i%len(h.s.Handles)], rnd: rand.New(rand.NewPCG(seed, uint64(1+r*clients+i)))}
		wg.Go(func() {
			<-start
			for range each {
				errs[i] = errors.Join(errs[i], c.step(ctx))
			}
		})
	}
	close(start)
	wg.Wait()
	h.ends = append(h.ends, len(h.calls))
	return errors.Join(errs...)
}

// clear deletes what is left, so that sweeps of the next history find nothing of it.
func (h *history) clear(ctx context.Context) error {
	_, err := h.s.Handles[0].Change(ctx, pawl.Change{Verb: pawl.Delete, Queue: h.queue, IDs: h.ids[:], From: pawl.Delete.From()})
	return err
}

// note adds calls that were made in one.
func (h *history) note(number int, from, to int64, calls ...operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range calls {
		h.calls = append(h.calls, porcupine.Operation{ClientId: number, Input: &o.call, Output: &o.reply, Call: from, Return: to})
	}
}

func (h *history) time() int64 { return time.Since(h.began).Nanoseconds() }

// check looks for an order. If there is none it tells of the rounds up to the first one
// that has none.
func (h *history) check() error {
	h.lookForCompany()
	if h.ask(len(h.calls)) == porcupine.Ok {
		return nil
	}
	for r, end := range h.ends {
		switch h.ask(end) {
		case porcupine.Unknown:
			return fmt.Errorf("order not found within %v; %d rounds:\n%s", limit, r+1, h.text(end))
		case porcupine.Illegal:
			return fmt.Errorf("%w, in round %d of\n%s", ErrOrder, r+1, h.text(end))
		}
	}
	return errors.New("an order was found at the second try")
}

// ask asks whether the first calls have an order. Those that fit everywhere would only make
// the search long.
func (h *history) ask(end int) porcupine.CheckResult {
	calls := slices.DeleteFunc(slices.Clone(h.calls[:end]), func(o porcupine.Operation) bool {
		return h.s.fitsEverywhere(o.Input.(*call), o.Output.(*reply))
	})
	return porcupine.CheckOperationsTimeout(model(h.s), calls, limit)
}

// lookForCompany notes which calls had no other beside them.
func (h *history) lookForCompany() {
	for i := range h.calls {
		a := &h.calls[i]
		c := a.Input.(*call)
		c.alone = !slices.ContainsFunc(h.calls, func(b porcupine.Operation) bool {
			return b.Input.(*call).made != c.made && b.Call <= a.Return && b.Return >= a.Call
		})
	}
}

// text lists the first calls.
func (h *history) text(n int) string {
	calls := slices.Clone(h.calls[:n])
	slices.SortStableFunc(calls, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	for _, o := range calls {
		fmt.Fprintf(&b, "%9.3f to %9.3f ms, client %d: %v gave %v\n", float64(o.Call)/1e6, float64(o.Return)/1e6, o.ClientId, o.Input, o.Output)
	}
	return b.String()
}

func (h *history) counts() Counts {
	n := Counts{}
	for i := range h.calls {
		n[h.calls[i].Input.(*call).verb.String()+": "+h.calls[i].Output.(*reply).sort()]++
	}
	return n
}
