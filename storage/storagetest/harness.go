package storagetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// A Harness gives the tests a storage. Only Open is required.
type Harness struct {
	// Open returns a fresh and empty storage that takes the time from clock
	// alone, also where a server has a clock of its own, and registers its
	// cleanup with t. It is called for each case.
	Open func(t testing.TB, clock func() time.Time) pawl.Storage

	// Reopen returns another handle onto the data of s, such as another
	// process has. It is nil if there can only be one handle.
	Reopen func(t testing.TB, s pawl.Storage, clock func() time.Time) pawl.Storage

	// Begin begins a caller's transaction in the database of s. It is nil if
	// the storage has no transactions.
	Begin func(t testing.TB, s pawl.Storage) (w pawl.Writer, commit, rollback func() error)

	// Groups are the groups of cases to run; nil means all. It is for a second
	// run, over another way to the same storage.
	Groups []string

	Capabilities

	patience time.Duration // 0 means eventTimeout
}

// Capabilities are the exceptions that the capability table grants a storage.
// The zero value has none. A case that an exception excludes is not run at all.
type Capabilities struct {
	// PartialEnqueue: an Enqueue that fails may have stored some requests.
	PartialEnqueue bool
	// SampledDepth: MaxDepth is kept roughly.
	SampledDepth bool
	// OneWriter: an open transaction that has written holds up every other
	// write to the database.
	OneWriter bool
	// Part is not nil if queues are divided, and says in which part of its queue
	// the job of a request is, by its UniqueKey and ID alone. For each part, and
	// not for the queue, hold the order of claims, that requests of a call are stored
	// in order, and that an ID that is present changes nothing; where jobs tie in all
	// but their insertion, any part may come first. MaxCompleted, MaxBuried and
	// MaxCanceled keep up to one job a part more. NextDue may leave out a queue that gave all that it was asked for.
	Part func(q *pawl.Request) int
}

// Run runs the whole contract against the storage of h: the transition table,
// the rules, transactions, wake-ups, concurrent use, and a random model. Names
// of cases are stable, such as "rules/claim order", and a failure prints the
// sentence of the contract that was broken.
func Run(t *testing.T, h Harness) {
	for _, g := range groups(traitsOf(t, h)) {
		if h.Groups != nil && !slices.Contains(h.Groups, g.name) {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.cases {
				t.Run(c.name, func(t *testing.T) {
					if !c.alone {
						t.Parallel()
					}
					c.check(t, h)
				})
			}
		})
	}
}

type group struct {
	name  string
	cases []testCase
}

// groups returns the cases that a storage must pass.
func groups(h traits) []group {
	all := []group{
		{"table", tableCases()},
		{"rules", ruleCases()},
		{"tx", txCases()},
		{"watch", watchCases()},
		{"concurrent", concurrentCases()},
		{"model", modelCases()},
	}
	for i, g := range all {
		var cases []testCase
		for _, c := range g.cases {
			if c.needs == nil || c.needs(h) {
				cases = append(cases, c)
			}
		}
		all[i].cases = cases
	}
	return all
}

// A testCase is one sentence of the contract and how to see that it holds.
type testCase struct {
	name  string
	says  string
	run   func(w *world)
	needs func(h traits) bool // nil: applies to every storage
	alone bool                // not beside other cases
	// ordered: jobs are to come in one order, so they are all in one part of a
	// divided queue.
	ordered bool
}

// check runs the case on a fresh storage.
func (c testCase) check(t testing.TB, h Harness) {
	t.Helper()
	w := newWorld(t, h, c.says)
	w.ordered = c.ordered
	c.run(w)
}

// traits are what decides which cases apply to a storage.
type traits struct {
	Harness
	watches, cycles bool
}

func traitsOf(t testing.TB, h Harness) traits {
	t.Helper()
	has := traits{Harness: h}
	scoped(t, func(t testing.TB) {
		s := h.Open(t, NewClock().Now)
		_, has.watches = pawl.Find[pawl.Watcher](s)
		_, has.cycles = pawl.Find[pawl.Cycler](s)
	})
	return has
}

func (h traits) reopens() bool       { return h.Reopen != nil }
func (h traits) hasTx() bool         { return h.Begin != nil }
func (h traits) cyclesIt() bool      { return h.cycles }
func (h traits) watchesIt() bool     { return h.watches }
func (h traits) exactDepth() bool    { return !h.SampledDepth }
func (h traits) atomicEnqueue() bool { return !h.PartialEnqueue }

// A world is what one case works with: a fresh storage, its clock, and the
// sentence that is printed if the case fails.
type world struct {
	testing.TB
	h     Harness
	says  string
	ctx   context.Context
	clock *Clock
	s     pawl.Storage

	ordered bool // as of its case
}

func newWorld(t testing.TB, h Harness, says string) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), caseTimeout)
	clock := NewClock()
	w := &world{TB: t, h: h, says: says, ctx: ctx, clock: clock, s: h.Open(t, clock.Now)}
	t.Cleanup(cancel) // before the storage is closed
	return w
}

// caseTimeout bounds the calls of one case, so that a storage that hangs fails
// the case that it hangs in.
const caseTimeout = 2 * time.Minute

// Fatalf reports the broken sentence and ends the case.
func (w *world) Fatalf(format string, args ...any) {
	w.Helper()
	w.TB.Fatalf("the contract says: %s\n%s", w.says, fmt.Sprintf(format, args...))
}

// Errorf reports the broken sentence.
func (w *world) Errorf(format string, args ...any) {
	w.Helper()
	w.TB.Errorf("the contract says: %s\n%s", w.says, fmt.Sprintf(format, args...))
}
