package storagetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

// txFailureCases are calls that fail in a caller's transaction.
func txFailureCases() []testCase {
	const says = "In a caller's transaction a call that fails, also because its context ended, has changed nothing and the " +
		"transaction may go on; where that can't be had, the error is ErrTxOver, and so is that of every later call."
	return []testCase{
		{
			name: "a refused enqueue in a transaction", says: says, run: txRefused,
			needs: func(h traits) bool { return h.hasTx() && h.exactDepth() && h.atomicEnqueue() },
		},
		{name: "a context that is over in a transaction", says: says, run: txContextOver},
		{
			name: "a call that waits for a transaction",
			says: "All methods return before long after their context ends, also while an open transaction holds what they need.",
			run:  txWaits,
		},
		{name: "a context that ends inside enqueue in a transaction", says: says, run: func(w *world) { txContextEnds(w, txEnqueueMany) }},
		{name: "a context that ends inside settle in a transaction", says: says, run: func(w *world) { txContextEnds(w, txSettleMany) }},
	}
}

// survives reports whether the transaction goes on after the call that failed
// with err. If it does not, it must refuse further calls and leaves nothing.
func (x *tx) survives(err error, ids ...pawl.ID) bool {
	x.w.Helper()
	if err == nil {
		x.w.Fatalf("the call that was to fail returned no error")
	}
	if !errors.Is(err, pawl.ErrTxOver) {
		return true
	}
	if _, err := x.Enqueue(x.w.ctx, complete(pawl.Request{})); !errors.Is(err, pawl.ErrTxOver) {
		x.w.Fatalf("after ErrTxOver a call returned %v, want ErrTxOver", err)
	}
	if _, err := x.Settle(x.w.ctx, []pawl.Outcome{{Ref: pawl.Ref{Queue: queueA, ID: newID(), Fence: 1}, Verb: pawl.Ack}}); !errors.Is(err, pawl.ErrTxOver) {
		x.w.Fatalf("after ErrTxOver a call returned %v, want ErrTxOver", err)
	}
	_ = x.rollback() // the engine may have done so before
	for _, id := range ids {
		x.w.gone(id)
	}
	return false
}

// txRefused has a call stored, replaced and dropped jobs before it is refused.
func txRefused(w *world) {
	holder := w.add(pawl.Request{UniqueKey: "held", Payload: []byte("first")})
	oldest := w.add(pawl.Request{Queue: "full"})
	w.add(pawl.Request{Queue: "full"})
	before := w.job(holder)
	x := w.begin()
	first := x.enqueue(pawl.Request{Payload: []byte("1")})[0].ID
	reqs := complete(
		pawl.Request{UniqueKey: "k"},
		pawl.Request{UniqueKey: "held", OnDuplicate: pawl.Replace, Payload: []byte("second"), Priority: 5},
		pawl.Request{Queue: "full", MaxDepth: 2, WhenFull: pawl.DropOldest},
		pawl.Request{Queue: "full", MaxDepth: 2},
	)
	_, err := x.Enqueue(w.ctx, reqs)
	if x.survives(err, first, reqs[0].ID) {
		if !errors.Is(err, pawl.ErrFull) {
			w.Fatalf("error is %v, want ErrFull", err)
		}
		last := x.enqueue(pawl.Request{UniqueKey: "k"})[0] // the key was given back
		if last.Status != pawl.Stored {
			w.Fatalf("the refused call left its unique key behind: %v", last.Status)
		}
		w.ok(x.commit())
		w.inState(first, pawl.Ready)
		w.inState(last.ID, pawl.Ready)
	}
	w.same("the job that the refused call replaced", w.job(holder), before)
	jobs, err := w.s.Get(w.ctx, "", oldest, reqs[0].ID, reqs[2].ID, reqs[3].ID)
	w.ok(err)
	if jobs[0] == nil || jobs[0].State != pawl.Ready {
		w.Fatalf("the job that the refused call dropped is no longer ready: %+v", jobs[0])
	}
	w.same("jobs of the refused call", jobs[1:], []*pawl.Job{nil, nil, nil})
}

func txContextOver(w *world) {
	over, cancel := context.WithCancel(w.ctx)
	cancel()
	id := w.add(pawl.Request{})
	ack := []pawl.Outcome{{Ref: w.claimOne().Ref, Verb: pawl.Ack}}
	for name, call := range map[string]func(x *tx, req []*pawl.Request) error{
		"Enqueue": func(x *tx, req []*pawl.Request) error { _, err := x.Enqueue(over, req); return err },
		"Settle":  func(x *tx, _ []*pawl.Request) error { _, err := x.Settle(over, ack); return err },
	} {
		x := w.begin()
		first, never := x.enqueue(pawl.Request{})[0].ID, complete(pawl.Request{})
		if x.survives(call(x, never), first) {
			last := x.enqueue(pawl.Request{})[0].ID
			w.ok(x.commit())
			w.inState(first, pawl.Ready)
			w.inState(last, pawl.Ready)
		}
		w.gone(never[0].ID)
		if s := w.job(id).State; s != pawl.Running {
			w.Fatalf("after %s with a context that is over the claimed job is %v, want running", name, s)
		}
	}
}

// txWaits makes calls that may have to wait for a transaction, and ends their
// contexts. Whether they wait, and whether they then fail, is the engine's
// affair; that they return is not.
func txWaits(w *world) {
	w.addN(2, pawl.Request{})
	jobs := w.claim(2)
	x := w.begin()
	x.enqueue(pawl.Request{UniqueKey: "k"})
	x.settle(pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Ack})
	for name, call := range map[string]func(ctx context.Context) error{
		"Enqueue": func(ctx context.Context) error {
			_, err := w.s.Enqueue(ctx, complete(pawl.Request{UniqueKey: "k"}))
			return err
		},
		"Settle": func(ctx context.Context) error {
			_, err := w.s.Settle(ctx, []pawl.Outcome{{Ref: jobs[0].Ref, Verb: pawl.Nack}})
			return err
		},
		"Claim": func(ctx context.Context) error { _, err := w.s.Claim(ctx, asking(queueA, 1)); return err },
		"Sweep": func(ctx context.Context) error { _, err := w.s.Sweep(ctx, pawl.SweepSpec{Limit: 10}); return err },
		"Change": func(ctx context.Context) error {
			_, err := w.s.Change(ctx, pawl.Change{Verb: pawl.Cancel, Queue: queueA, IDs: []pawl.ID{jobs[0].ID}})
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(w.ctx, shortWait)
		began := time.Now()
		err := call(ctx)
		cancel()
		if d := time.Since(began); d > w.patience() {
			w.Fatalf("%s returned %v (%v) after its context ended", name, d, err)
		}
	}
	w.ok(x.commit())
	if j := w.job(jobs[0].ID); j.State != pawl.Completed {
		w.Fatalf("the job that the transaction settled is %v, want completed", j.State)
	}
}

// shortWait is how long a call may wait for an open transaction, in real time.
const shortWait = 50 * time.Millisecond

// A txCall is a call of many parts in a transaction. seen counts the parts that
// had effect.
type txCall struct {
	call  func(ctx context.Context, x *tx) error
	parts int
	seen  func() int
}

// txContextEnds ends the context of a call in a transaction when the engine
// looks at it for the first time, the second time, and so on until the call is
// through before that; in every other round, the context ends beside the call
// instead of before its next step.
func txContextEnds(w *world, prepare func(w *world, queue string) txCall) {
	for n := 1; n <= maxSteps; n += 1 + n/8 {
		for _, beside := range []bool{false, true} {
			queue := fmt.Sprintf("q%d.%v", n, beside)
			if ended := txContextEndsAt(w, n, beside, queue, prepare(w, queue)); !ended {
				return
			}
		}
	}
	w.Fatalf("the call looks at its context more than %d times", maxSteps)
}

// txContextEndsAt reports whether the call looked n times at its context.
func txContextEndsAt(w *world, n int, beside bool, queue string, c txCall) (ended bool) {
	w.Helper()
	ctx := endAfter(w.ctx, n, beside)
	x := w.begin()
	one := func() pawl.ID { return x.enqueue(pawl.Request{Queue: queue + ".ends"})[0].ID }
	first := one()
	err := c.call(ctx, x)
	ended = ctx.wait()
	parts, ends := c.parts, 2
	if err != nil {
		parts = 0
	}
	if err == nil || x.survives(err, first) {
		one()
		w.ok(x.commit())
	} else {
		ends = 0
	}
	if got := c.seen(); got != parts {
		w.Fatalf("look %d at the context, the call returned %v: %d of %d parts had effect, want %d", n, err, got, c.parts, parts)
	}
	if got := w.waiting(queue + ".ends"); got != ends {
		w.Fatalf("look %d at the context, the call returned %v: of the jobs stored before and after it in its transaction %d are "+
			"there, want %d", n, err, got, ends)
	}
	return ended
}

func txEnqueueMany(w *world, queue string) txCall {
	reqs := make([]pawl.Request, 40)
	for i := range reqs {
		reqs[i] = pawl.Request{Queue: queue, Delay: time.Duration(i%2) * time.Hour}
		if i%3 == 0 {
			reqs[i].UniqueKey = fmt.Sprint(i)
		}
	}
	return txCall{
		parts: len(reqs),
		call:  func(ctx context.Context, x *tx) error { _, err := x.Enqueue(ctx, complete(reqs...)); return err },
		seen:  func() int { return w.waiting(queue) },
	}
}

func txSettleMany(w *world, queue string) txCall {
	const n = 20
	w.addN(n, pawl.Request{Queue: queue})
	var outcomes []pawl.Outcome
	for i, j := range w.claimBy(asking(queue, n)) {
		outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Verb(i%int(pawl.Skip) + 1), Error: "e", Delay: time.Hour})
	}
	return txCall{
		parts: n,
		call:  func(ctx context.Context, x *tx) error { _, err := x.Settle(ctx, outcomes); return err },
		seen: func() int {
			s, err := w.s.Count(w.ctx, queue)
			w.ok(err)
			return n - int(s[0].Running)
		},
	}
}

// waiting is how many jobs of the queue wait.
func (w *world) waiting(queue string) int {
	w.Helper()
	s, err := w.s.Count(w.ctx, queue)
	w.ok(err)
	return int(s[0].Ready + s[0].Scheduled)
}

// An ending is a context that ends when it was looked at often enough.
type ending struct {
	context.Context
	cancel context.CancelFunc
	beside bool

	mu   sync.Mutex
	left int
	wg   sync.WaitGroup
}

// endAfter returns a context that ends at the nth look; with beside, on another
// goroutine.
func endAfter(ctx context.Context, n int, beside bool) *ending {
	ctx, cancel := context.WithCancel(ctx)
	return &ending{Context: ctx, cancel: cancel, left: n, beside: beside}
}

func (e *ending) look() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.left--; e.left != 0 {
		return
	}
	if e.beside {
		e.wg.Go(e.cancel)
		return
	}
	e.cancel()
}

// Done implements context.Context.
func (e *ending) Done() <-chan struct{} { e.look(); return e.Context.Done() }

// Err implements context.Context.
func (e *ending) Err() error { e.look(); return e.Context.Err() }

// wait frees what the context holds and reports whether it ended before.
func (e *ending) wait() (ended bool) {
	e.mu.Lock()
	ended = e.left <= 0
	e.left = 0 // no look counts any more
	e.mu.Unlock()
	e.wg.Wait()
	e.cancel()
	return ended
}
