package storagetest

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/pawlq/pawl"
)

// ErrFault is the error of a [Fault] that names none. Like a broken connection
// it says nothing about what happened.
var ErrFault = errors.New("storagetest: injected fault")

// A Call is one call of a method of a wrapped storage.
type Call struct {
	// Method is the name of the method, such as "Claim" or "Watch", or Event
	// for an event on its way from the storage to the watcher.
	Method string
	// N counts the calls of all methods from 1, Nth those of this method.
	// Events are counted only in Nth.
	N, Nth int
}

// Event is the Method of a [Call] that stands for an event.
const Event = "Event"

// A Fault is what happens to a call. The zero value lets it through.
type Fault struct {
	// Err is returned instead of the results.
	Err error
	// After carries the call out first: its effect is there, its reply is lost.
	// It has no use alone; without Err the error is ErrFault.
	After bool
	// Hang returns only when the call's context has ended, with its error
	// unless Err is set.
	Hang bool
	// Copies of an event that arrive beside it: −1 loses it, 1 doubles it.
	Copies int
}

func (f Fault) fails() bool { return f.Err != nil || f.After || f.Hang }

// Wrap returns s with the faults that plan names. plan is called before each
// call, and each event, on the goroutine of the caller; it may block, to hold a
// call up, and must be safe for concurrent use.
//
// Faults reach every method of s, also those of [pawl.Watcher] and
// [pawl.Cycler], which the result implements if s does. What else s implements
// is found through its Unwrap method.
func Wrap(s pawl.Storage, plan func(Call) Fault) pawl.Storage {
	f := &faulty{s: s, plan: plan}
	watcher, watches := pawl.Find[pawl.Watcher](s)
	cycler, cycles := pawl.Find[pawl.Cycler](s)
	w, c := faultyWatcher{f, watcher}, faultyCycler{f, cycler}
	switch {
	case watches && cycles:
		return struct {
			*faulty
			faultyWatcher
			faultyCycler
		}{f, w, c}
	case watches:
		return struct {
			*faulty
			faultyWatcher
		}{f, w}
	case cycles:
		return struct {
			*faulty
			faultyCycler
		}{f, c}
	}
	return f
}

// faulty is a storage with faults.
type faulty struct {
	s    pawl.Storage
	plan func(Call) Fault
	n    atomic.Int64
	nth  [len(methods)]atomic.Int64
}

// method is an index of methods.
type method int

const (
	enqueue method = iota
	settle
	claim
	extend
	sweep
	get
	list
	count
	change
	configure
	watchFor
	cycle
	event
)

var methods = [...]string{
	"Enqueue", "Settle", "Claim", "Extend", "Sweep", "Get", "List", "Count", "Change", "Configure", "Watch", "Cycle", Event,
}

// Unwrap returns the storage without faults.
func (f *faulty) Unwrap() pawl.Storage { return f.s }

func (f *faulty) ask(m method) Fault {
	c := Call{Method: methods[m], Nth: int(f.nth[m].Add(1))}
	if m != event {
		c.N = int(f.n.Add(1))
	}
	return f.plan(c)
}

// reply carries out do, or not, as the plan says.
func reply[T any](ctx context.Context, f *faulty, m method, do func() (T, error)) (T, error) {
	fault := f.ask(m)
	if !fault.fails() {
		return do()
	}
	if fault.After {
		if result, err := do(); err != nil {
			return result, err
		}
	}
	var none T
	if fault.Hang {
		<-ctx.Done()
		return none, or(fault.Err, ctx.Err())
	}
	return none, or(fault.Err, ErrFault)
}

func (f *faulty) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	return reply(ctx, f, enqueue, func() ([]pawl.Receipt, error) { return f.s.Enqueue(ctx, reqs) })
}

func (f *faulty) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	return reply(ctx, f, settle, func() ([]pawl.Ref, error) { return f.s.Settle(ctx, outcomes) })
}

func (f *faulty) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	return reply(ctx, f, claim, func() (pawl.Claimed, error) { return f.s.Claim(ctx, spec) })
}

func (f *faulty) Extend(ctx context.Context, renewals []pawl.Renewal) ([]pawl.Ref, error) {
	return reply(ctx, f, extend, func() ([]pawl.Ref, error) { return f.s.Extend(ctx, renewals) })
}

func (f *faulty) Sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	return reply(ctx, f, sweep, func() (pawl.Swept, error) { return f.s.Sweep(ctx, spec) })
}

func (f *faulty) Get(ctx context.Context, queue string, ids ...pawl.ID) ([]*pawl.Job, error) {
	return reply(ctx, f, get, func() ([]*pawl.Job, error) { return f.s.Get(ctx, queue, ids...) })
}

func (f *faulty) List(ctx context.Context, spec pawl.ListSpec) (pawl.Page, error) {
	return reply(ctx, f, list, func() (pawl.Page, error) { return f.s.List(ctx, spec) })
}

func (f *faulty) Count(ctx context.Context, queues ...string) ([]pawl.QueueStats, error) {
	return reply(ctx, f, count, func() ([]pawl.QueueStats, error) { return f.s.Count(ctx, queues...) })
}

func (f *faulty) Change(ctx context.Context, c pawl.Change) ([]pawl.Changed, error) {
	return reply(ctx, f, change, func() ([]pawl.Changed, error) { return f.s.Change(ctx, c) })
}

func (f *faulty) Configure(ctx context.Context, queue string, s pawl.QueueSettings) error {
	_, err := reply(ctx, f, configure, func() (struct{}, error) { return struct{}{}, f.s.Configure(ctx, queue, s) })
	return err
}

type faultyWatcher struct {
	f *faulty
	w pawl.Watcher
}

func (w faultyWatcher) Watch(ctx context.Context, f func(pawl.Event)) error {
	with := func(e pawl.Event) {
		for range 1 + w.f.ask(event).Copies {
			f(e)
		}
	}
	_, err := reply(ctx, w.f, watchFor, func() (struct{}, error) { return struct{}{}, w.w.Watch(ctx, with) })
	return err
}

type faultyCycler struct {
	f *faulty
	c pawl.Cycler
}

func (c faultyCycler) Cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) ([]pawl.Ref, pawl.Claimed, error) {
	type results struct {
		lost []pawl.Ref
		got  pawl.Claimed
	}
	r, err := reply(ctx, c.f, cycle, func() (r results, err error) {
		r.lost, r.got, err = c.c.Cycle(ctx, outcomes, spec)
		return r, err
	})
	return r.lost, r.got, err
}
