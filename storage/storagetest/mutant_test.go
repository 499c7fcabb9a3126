package storagetest

import (
	"context"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// TestMain keeps random checks that are meant to fail from looking long for a
// smaller failure, and from writing it down.
func TestMain(m *testing.M) {
	flag.Parse()
	for name, value := range map[string]string{"rapid.nofailfile": "true", "rapid.shrinktime": "10ms"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// A mutant is a correct storage with one bug, and the cases that must see it.
type mutant struct {
	bug  string
	of   func(s *reference) pawl.Storage
	seen []string
}

func TestMutantsAreSeen(t *testing.T) {
	for _, m := range mutants() {
		t.Run(m.bug, func(t *testing.T) {
			t.Parallel()
			h := referenceHarness()
			h.Open = func(_ testing.TB, clock func() time.Time) pawl.Storage { return m.of(newReference(clock)) }
			h.patience = time.Second
			for _, name := range m.seen {
				r := failingCase(t, h, name)
				if !r.Failed() {
					t.Errorf("%s did not fail", name)
				}
				if !strings.Contains(r.log.String(), "the contract says: ") {
					t.Errorf("%s failed without the sentence of the contract:\n%s", name, &r.log)
				}
			}
		})
	}
}

// broken is a storage some of whose methods are replaced.
type broken struct {
	*reference
	enqueue func(context.Context, []*pawl.Request) ([]pawl.Receipt, error)
	settle  func(context.Context, []pawl.Outcome) ([]pawl.Ref, error)
	claim   func(context.Context, pawl.ClaimSpec) (pawl.Claimed, error)
	extend  func(context.Context, []pawl.Renewal) ([]pawl.Ref, error)
	sweep   func(context.Context, pawl.SweepSpec) (pawl.Swept, error)
	get     func(context.Context, string, ...pawl.ID) ([]*pawl.Job, error)
	list    func(context.Context, pawl.ListSpec) (pawl.Page, error)
	count   func(context.Context, ...string) ([]pawl.QueueStats, error)
	change  func(context.Context, pawl.Change) ([]pawl.Changed, error)
	watch   func(context.Context, func(pawl.Event)) error
}

func breaking(s *reference) *broken {
	return &broken{
		s, s.Enqueue, s.Settle, s.Claim, s.Extend, s.Sweep, s.Get, s.List, s.Count, s.Change, s.Watch,
	}
}

func (b *broken) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	return b.enqueue(ctx, reqs)
}
func (b *broken) Settle(ctx context.Context, o []pawl.Outcome) ([]pawl.Ref, error) {
	return b.settle(ctx, o)
}
func (b *broken) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	return b.claim(ctx, spec)
}
func (b *broken) Extend(ctx context.Context, n []pawl.Renewal) ([]pawl.Ref, error) {
	return b.extend(ctx, n)
}
func (b *broken) Sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	return b.sweep(ctx, spec)
}
func (b *broken) Get(ctx context.Context, queue string, ids ...pawl.ID) ([]*pawl.Job, error) {
	return b.get(ctx, queue, ids...)
}
func (b *broken) List(ctx context.Context, spec pawl.ListSpec) (pawl.Page, error) {
	return b.list(ctx, spec)
}
func (b *broken) Count(ctx context.Context, queues ...string) ([]pawl.QueueStats, error) {
	return b.count(ctx, queues...)
}
func (b *broken) Change(ctx context.Context, c pawl.Change) ([]pawl.Changed, error) {
	return b.change(ctx, c)
}
func (b *broken) Watch(ctx context.Context, f func(pawl.Event)) error { return b.watch(ctx, f) }

// inside runs f on the model of the storage.
func (s *reference) inside(f func(m *model, now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.m, s.clock())
}

func mutants() []mutant {
	return slices.Concat(
		settleMutants(), claimMutants(), sweepMutants(), enqueueMutants(), changeMutants(), readMutants(), callMutants(), txMutants(),
	)
}
