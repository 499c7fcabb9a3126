package storagetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// calls calls each method of a storage once, in the order of methods.
func calls(ctx context.Context, s pawl.Storage) map[string]func() error {
	cycler, _ := pawl.Find[pawl.Cycler](s)
	watcher, _ := pawl.Find[pawl.Watcher](s)
	return map[string]func() error{
		"Enqueue":   func() error { _, err := s.Enqueue(ctx, complete(pawl.Request{})); return err },
		"Settle":    func() error { _, err := s.Settle(ctx, nil); return err },
		"Claim":     func() error { _, err := s.Claim(ctx, asking(queueA, 1)); return err },
		"Extend":    func() error { _, err := s.Extend(ctx, nil); return err },
		"Sweep":     func() error { _, err := s.Sweep(ctx, pawl.SweepSpec{Limit: 1}); return err },
		"Get":       func() error { _, err := s.Get(ctx, queueA); return err },
		"List":      func() error { _, err := s.List(ctx, pawl.ListSpec{Limit: 1}); return err },
		"Count":     func() error { _, err := s.Count(ctx); return err },
		"Change":    func() error { _, err := s.Change(ctx, pawl.Change{Verb: pawl.Cancel}); return err },
		"Configure": func() error { return s.Configure(ctx, queueA, pawl.QueueSettings{}) },
		"Cycle":     func() error { _, _, err := cycler.Cycle(ctx, nil, asking(queueA, 1)); return err },
		"Watch":     func() error { return watcher.Watch(ctx, func(pawl.Event) {}) },
	}
}

func TestWrapReachesEveryMethod(t *testing.T) {
	broken := errors.New("broken")
	for name := range calls(t.Context(), nil) {
		s := Wrap(newReference(NewClock().Now), func(c Call) Fault {
			if c.Method == name && c.N == 1 && c.Nth == 1 {
				return Fault{Err: broken}
			}
			return Fault{}
		})
		if err := calls(t.Context(), s)[name](); !errors.Is(err, broken) {
			t.Errorf("%s: error is %v, want the fault", name, err)
		}
	}
}

func TestWrapHangs(t *testing.T) {
	for name := range calls(t.Context(), nil) {
		ctx, cancel := context.WithCancel(t.Context())
		s := Wrap(newReference(NewClock().Now), func(Call) Fault {
			cancel()
			return Fault{Hang: true}
		})
		if err := calls(ctx, s)[name](); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error is %v, want that of the context", name, err)
		}
	}
}

func TestWrapBeforeAndAfterTheEffect(t *testing.T) {
	for _, after := range []bool{false, true} {
		inner := newReference(NewClock().Now)
		s := Wrap(inner, func(c Call) Fault { return Fault{Err: ErrFault, After: after} })
		receipts, err := s.Enqueue(t.Context(), complete(pawl.Request{}))
		if !errors.Is(err, ErrFault) || receipts != nil {
			t.Errorf("after %v: receipts %v, error %v", after, receipts, err)
		}
		if stored := len(inner.m.jobs) == 1; stored != after {
			t.Errorf("after %v: stored is %v", after, stored)
		}
	}
}

func TestWrapKeepsTheStoragesOwnError(t *testing.T) {
	s := Wrap(newReference(NewClock().Now), func(Call) Fault { return Fault{After: true} })
	reqs := complete(pawl.Request{MaxDepth: 1}, pawl.Request{MaxDepth: 1})
	if _, err := s.Enqueue(t.Context(), reqs); !errors.Is(err, pawl.ErrFull) {
		t.Errorf("error is %v, want ErrFull", err)
	}
}

func TestWrapEvents(t *testing.T) {
	listens := make(chan struct{})
	inner := newReference(NewClock().Now)
	inner.joined = func() { close(listens) }
	s := Wrap(inner, func(c Call) Fault {
		switch {
		case c.Method == Event && c.Nth == 1:
			return Fault{Copies: -1}
		case c.Method == Event:
			return Fault{Copies: 1}
		}
		return Fault{}
	})
	watcher, ok := pawl.Find[pawl.Watcher](s)
	if !ok {
		t.Fatal("a wrapped Watcher is none")
	}
	ctx, cancel := context.WithCancel(t.Context())
	events := make(chan pawl.Event, 10)
	ended := make(chan error)
	go func() { ended <- watcher.Watch(ctx, func(e pawl.Event) { events <- e }) }()
	<-listens
	for _, paused := range []bool{true, false} {
		if err := s.Configure(t.Context(), queueA, pawl.QueueSettings{Paused: &paused}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if e := <-events; e.Kind != pawl.EventReady {
			t.Errorf("event %v, want the second one twice", e)
		}
	}
	cancel()
	<-ended
	if len(events) != 0 {
		t.Errorf("%d events more than wanted", len(events))
	}
}

func TestWrapImplementsWhatItsStorageDoes(t *testing.T) {
	s := Wrap(struct{ pawl.Storage }{newReference(NewClock().Now)}, func(Call) Fault { return Fault{} })
	if _, ok := pawl.Find[pawl.Watcher](s); ok {
		t.Error("a storage that is no Watcher became one")
	}
	if _, ok := pawl.Find[pawl.Cycler](s); ok {
		t.Error("a storage that is no Cycler became one")
	}
}

func TestWrappedStoragePasses(t *testing.T) {
	h := referenceHarness()
	open := h.Open
	h.Open = func(t testing.TB, clock func() time.Time) pawl.Storage {
		return Wrap(open(t, clock), func(Call) Fault { return Fault{} })
	}
	for _, name := range []string{"model/random", "watch/ready after enqueue", "rules/cycle is settle and claim"} {
		if r := failingCase(t, h, name); r.Failed() {
			t.Errorf("%s failed:\n%s", name, &r.log)
		}
	}
}

// lifeOf takes one job through its life, with or without repeating what failed.
func lifeOf(q *pawl.Request, token int64, repeats bool) func(pawl.Storage) error {
	again := func(call func(repeat bool) error) error {
		err := call(false)
		if err != nil && repeats {
			return call(true)
		}
		return err
	}
	return func(s pawl.Storage) error {
		ctx := context.Background()
		if err := again(func(bool) error { _, err := s.Enqueue(ctx, []*pawl.Request{q}); return err }); err != nil {
			return err
		}
		spec := asking(queueA, 1)
		spec.Token = token
		var jobs []*pawl.Job
		err := again(func(repeat bool) error {
			spec.Repeat = repeat || !repeats
			c, err := s.Claim(ctx, spec)
			jobs = c.Jobs
			return err
		})
		if err != nil {
			return err
		}
		return again(func(repeat bool) error {
			lost, err := s.Settle(ctx, outcomesOf(jobs, repeat))
			if len(lost) > 0 {
				return fmt.Errorf("lost %v", lost)
			}
			return err
		})
	}
}

func outcomesOf(jobs []*pawl.Job, repeat bool) []pawl.Outcome {
	outcomes := acks(jobs)
	for i := range outcomes {
		outcomes[i].Repeat = repeat
	}
	return outcomes
}

func TestStepSweep(t *testing.T) {
	for _, repeats := range []bool{false, true} {
		q, token := complete(pawl.Request{})[0], newToken()
		runs := 0
		StepSweep(t, func(testing.TB) pawl.Storage { return newReference(NewClock().Now) }, lifeOf(q, token, repeats),
			func(t testing.TB, s pawl.Storage) {
				runs++
				jobs, err := s.Get(t.Context(), "", q.ID)
				if err != nil || jobs[0] == nil || jobs[0].State != pawl.Completed || jobs[0].Attempt != 1 {
					t.Fatalf("the job is %+v, error %v; want completed in one attempt", jobs[0], err)
				}
			})
		if runs != 2*(3+1) {
			t.Errorf("repeats %v: %d runs, want 8: each of 3 calls failed before and after its effect, and 2 without", repeats, runs)
		}
	}
}

func TestStepSweepSeesWhatDoesNotSurvive(t *testing.T) {
	q := complete(pawl.Request{})[0]
	careless := func(s pawl.Storage) error { // a new token each time: the first claim is lost
		return lifeOf(q, newToken(), false)(s)
	}
	r := recorded(t, func(t testing.TB) {
		StepSweep(t, func(testing.TB) pawl.Storage { return newReference(NewClock().Now) }, careless,
			func(t testing.TB, s pawl.Storage) {
				if jobs, _ := s.Get(t.Context(), "", q.ID); jobs[0].State != pawl.Completed {
					t.Fatalf("the job is %v", jobs[0].State)
				}
			})
	})
	if !r.Failed() {
		t.Error("an operation that loses its job passed")
	}
}
