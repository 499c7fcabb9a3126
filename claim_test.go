package pawl_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
)

func TestClaimWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{Poll: time.Hour})
		start := time.Now()
		got := make(chan *pawl.Job)
		go func() {
			j, err := q.Claim(t.Context(), nil)
			if err != nil {
				t.Error(err)
			}
			got <- j
		}()
		synctest.Wait()
		if stats, _ := q.Stats(t.Context(), pawl.DefaultQueue); len(stats) != 1 || stats[0].Waiting != 1 {
			t.Errorf("stats %+v, want 1 claimer waiting", stats)
		}
		id := enqueue(t, q, &pawl.Request{Delay: 10 * time.Minute})
		if j := <-got; j.ID != id {
			t.Errorf("claimed %v, want %v", j.ID, id)
		}
		if d := time.Since(start); d < 10*time.Minute || d > 10*time.Minute+100*time.Millisecond {
			t.Errorf("claimed after %v, want 10m", d)
		}
	})
}

func TestClaimEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := q.Claim(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

func TestManyClaimersGetAJobEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{Poll: time.Hour})
		got := make(chan pawl.ID)
		const n = 20
		for range n {
			go func() {
				j, err := q.Claim(t.Context(), nil)
				if err != nil {
					t.Error(err)
				}
				got <- j.ID
			}()
		}
		synctest.Wait()
		start := time.Now()
		reqs := slices.Repeat([]*pawl.Request{{Kind: "test"}}, n)
		if _, err := q.EnqueueMany(t.Context(), reqs); err != nil {
			t.Fatal(err)
		}
		seen := map[pawl.ID]bool{}
		for range n {
			seen[<-got] = true
		}
		if len(seen) != n || time.Since(start) > time.Second {
			t.Errorf("%d different jobs after %v", len(seen), time.Since(start))
		}
	})
}

func TestClaimInStrictOrder(t *testing.T) {
	q := open(t, nil)
	enqueue(t, q, &pawl.Request{Kind: "low", Queue: "low"})
	enqueue(t, q, &pawl.Request{Kind: "high", Queue: "high"})
	for _, want := range []string{"high", "low"} {
		j, err := q.Claim(t.Context(), &pawl.ClaimOptions{Queues: []string{"high", "low"}})
		if err != nil || j.Queue != want {
			t.Fatalf("claimed from %v (%v), want %s", j, err, want)
		}
	}
}

func TestClaimByKindHandsOthersBack(t *testing.T) {
	q := open(t, nil)
	other := enqueue(t, q, &pawl.Request{Kind: "other"})
	mine := enqueue(t, q, &pawl.Request{Kind: "mine"})
	j, err := q.Claim(t.Context(), &pawl.ClaimOptions{Kinds: []string{"mine"}})
	if err != nil || j.ID != mine {
		t.Fatalf("claimed %v, %v", j, err)
	}
	o := get(t, q, other)
	if o.State != pawl.Scheduled || o.Reason != pawl.ReasonSkip || o.Attempt != 0 || o.Counts.Skips != 1 {
		t.Errorf("the other kind is %v, %v, attempt %d, skips %d", o.State, o.Reason, o.Attempt, o.Counts.Skips)
	}
}

func TestClaimRefusesBadOptions(t *testing.T) {
	q := open(t, nil)
	for field, o := range map[string]pawl.ClaimOptions{
		"Queues":  {Queues: []string{"a b"}},
		"Queues ": {Queues: []string{"a", "a"}},
		"Kinds":   {Kinds: []string{""}},
		"Lease":   {Lease: 1},
	} {
		_, err := q.Claim(t.Context(), &o)
		var invalid *pawl.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != strings.TrimSpace(field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, spec := range []pawl.ClaimSpec{
		{}, {Max: 1001, Lease: time.Second}, {Max: 1},
		{Max: 1, Lease: time.Second, Queues: []pawl.QueueAsk{{Queue: "a"}}},
		{Max: 1, Lease: time.Second, Worker: "\x00"},
	} {
		if _, err := q.ClaimBatch(t.Context(), spec); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%+v: %v", spec, err)
		}
		if _, _, err := q.Cycle(t.Context(), nil, spec); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("Cycle %+v: %v", spec, err)
		}
	}
}

// A lossy storage claims but loses the reply of the first claim.
type lossy struct {
	pawl.Storage
	after func()
	lost  bool
}

func (l *lossy) Unwrap() pawl.Storage { return l.Storage }

func (l *lossy) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	c, err := l.Storage.Claim(ctx, spec)
	if err == nil && !l.lost {
		l.lost = true
		l.after()
		return pawl.Claimed{}, errors.New("connection lost")
	}
	return c, err
}

func TestClaimFindsWhatALostReplyClaimed(t *testing.T) {
	q := open(t, nil)
	first := enqueue(t, q, &pawl.Request{})
	enqueue(t, q, &pawl.Request{})
	l := pawl.New(&lossy{Storage: q.Storage(), after: func() {}}, nil)
	j, err := l.Claim(t.Context(), nil)
	if err != nil || j.ID != first || j.Attempt != 1 {
		t.Fatalf("claimed %+v, %v", j, err)
	}
}

func TestClaimHandsBackWhenItsCallerHasGone(t *testing.T) {
	q := open(t, nil)
	id := enqueue(t, q, &pawl.Request{})
	ctx, cancel := context.WithCancel(t.Context())
	l := pawl.New(&lossy{Storage: q.Storage(), after: cancel}, nil)
	if _, err := l.Claim(ctx, nil); err == nil {
		t.Fatal("claimed although the reply was lost and the caller had gone")
	}
	if j := get(t, q, id); j.State != pawl.Ready || j.Attempt != 0 || j.Counts.Releases != 1 {
		t.Errorf("job is %v, attempt %d, releases %d", j.State, j.Attempt, j.Counts.Releases)
	}
}

// A stubborn storage ends the context of the first Claim, whose reply is lost, and fails at
// each second call from then on.
type stubborn struct {
	pawl.Storage
	end           context.CancelFunc
	claim, settle int
}

func (s *stubborn) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	s.claim++
	if s.claim == 2 {
		return pawl.Claimed{}, errors.New("no answer")
	}
	c, err := s.Storage.Claim(ctx, spec)
	if s.claim == 1 {
		s.end()
		return pawl.Claimed{}, errors.Join(err, errors.New("lost reply"))
	}
	return c, err
}

func (s *stubborn) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	s.settle++
	if s.settle == 1 {
		return nil, errors.New("no answer")
	}
	return s.Storage.Settle(ctx, outcomes)
}

// TestHandBackIsTriedAgain: what was claimed when its caller had gone is handed back in spite
// of calls that fail.
func TestHandBackIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubborn{Storage: memory.New(nil)}
		q := pawl.New(s, &pawl.Options{Poll: time.Hour})
		id := enqueue(t, q, &pawl.Request{})
		var ctx context.Context
		ctx, s.end = context.WithCancel(t.Context())
		_, err := q.ClaimBatch(ctx, pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: pawl.DefaultQueue, Max: 1}}, Max: 1, Lease: time.Hour, Worker: "w"})
		if err == nil {
			t.Error("a claim whose reply is lost succeeded")
		}
		if j := get(t, q, id); j.State != pawl.Ready || j.Attempt != 0 {
			t.Errorf("the job is %v with attempt %d, want it ready and its attempt given back", j.State, j.Attempt)
		}
		if s.claim != 3 || s.settle != 2 {
			t.Errorf("%d claims and %d settles, want 3 and 2", s.claim, s.settle)
		}
	})
}

// A hasty caller is gone when the storage has claimed.
type hasty struct {
	pawl.Storage
	leave func()
}

func (h hasty) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	c, err := h.Storage.Claim(ctx, spec)
	h.leave()
	return c, err
}

func TestClaimHandsOtherKindsBackWhenItsCallerHasGone(t *testing.T) {
	q := open(t, nil)
	id := enqueue(t, q, &pawl.Request{Kind: "other"})
	ctx, cancel := context.WithCancel(t.Context())
	h := pawl.New(hasty{q.Storage(), cancel}, nil)
	_, err := h.Claim(ctx, &pawl.ClaimOptions{Kinds: []string{"mine"}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if j := get(t, q, id); j.State != pawl.Scheduled || j.Counts.Skips != 1 {
		t.Errorf("job is %v, skips %d", j.State, j.Counts.Skips)
	}
}

// A lingering storage takes long to end a Watch, and counts them.
type lingering struct {
	pawl.Storage
	watches, most *atomic.Int64
}

func (l lingering) Watch(ctx context.Context, f func(pawl.Event)) error {
	l.most.Store(max(l.most.Load(), l.watches.Add(1)))
	defer l.watches.Add(-1)
	err := l.Storage.(pawl.Watcher).Watch(ctx, f)
	time.Sleep(time.Minute) // of the bubble's time
	return err
}

func TestClaimDoesNotWaitForTheEndOfAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var watches, most atomic.Int64
		q := pawl.New(lingering{memory.New(nil), &watches, &most}, &pawl.Options{Poll: time.Hour})
		start := time.Now()
		for range 3 { // the first one's Watch is still ending when the others come
			enqueue(t, q, &pawl.Request{})
			claim(t, q)
			synctest.Wait()
		}
		if d := time.Since(start); d > 0 {
			t.Errorf("claims of jobs that were there took %v", d)
		}
		got := make(chan error)
		go func() {
			_, err := q.Claim(t.Context(), nil)
			got <- err
		}()
		time.Sleep(2 * time.Minute) // of the bubble's time
		enqueue(t, q, &pawl.Request{})
		if err := <-got; err != nil || time.Since(start) > 2*time.Minute {
			t.Errorf("claimed after %v, %v; want by the wake-up of a new Watch", time.Since(start), err)
		}
		time.Sleep(2 * time.Minute) // of the bubble's time
		if watches.Load() != 0 || most.Load() != 1 {
			t.Errorf("%d watches are left; at most %d at a time, want 1", watches.Load(), most.Load())
		}
	})
}

func TestPauseAndResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{Poll: time.Hour})
		ctx := t.Context()
		if err := q.Pause(ctx, pawl.DefaultQueue); err != nil {
			t.Fatal(err)
		}
		enqueue(t, q, &pawl.Request{})
		got := make(chan error)
		go func() {
			_, err := q.Claim(ctx, nil)
			got <- err
		}()
		synctest.Wait()
		select {
		case <-got:
			t.Fatal("claimed from a paused queue")
		default:
		}
		if names, err := q.Queues(ctx); err != nil || !slices.Equal(names, []string{"default"}) {
			t.Errorf("queues %v, %v", names, err)
		}
		start := time.Now()
		if err := q.Resume(ctx, pawl.DefaultQueue); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil || time.Since(start) > 0 {
			t.Errorf("claimed %v after Resume: %v", time.Since(start), err)
		}
		if err := q.Pause(ctx, "a b"); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("bad name: %v", err)
		}
	})
}

func TestSweepByAWaitingClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{Poll: time.Second})
		id := enqueue(t, q, &pawl.Request{Lease: 10 * time.Second})
		claim(t, q) // by a worker that dies
		start := time.Now()
		j, err := q.Claim(t.Context(), nil)
		if err != nil || j.ID != id || j.Rescued != 1 {
			t.Fatalf("claimed %+v, %v", j, err)
		}
		if d := time.Since(start); d < 10*time.Second || d > 15*time.Second+100*time.Millisecond {
			t.Errorf("rescued after %v, want within lease + 5s", d)
		}
	})
}

func TestWatchUnsupported(t *testing.T) {
	q := pawl.New(struct{ pawl.Storage }{memory.New(nil)}, &pawl.Options{Logger: slog.New(slog.DiscardHandler)})
	if err := q.Watch(t.Context(), func(pawl.Event) {}); !errors.Is(err, pawl.ErrUnsupported) {
		t.Errorf("error %v", err)
	}
	// Without a Watcher and a Cycler, claims poll and cycles take two calls.
	enqueue(t, q, &pawl.Request{})
	enqueue(t, q, &pawl.Request{})
	j, err := q.Claim(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: pawl.DefaultQueue, Max: 9}}, Max: 9, Lease: time.Minute}
	lost, c, err := q.Cycle(t.Context(), []pawl.Outcome{{Ref: j.Ref, Verb: pawl.Ack}}, spec)
	if err != nil || len(lost) != 0 || len(c.Jobs) != 1 {
		t.Errorf("Cycle: lost %v, %d jobs, %v", lost, len(c.Jobs), err)
	}
}

func TestFindUnwraps(t *testing.T) {
	s := memory.New(nil)
	if w, ok := pawl.Find[pawl.Watcher](&lossy{Storage: s}); !ok || w != pawl.Watcher(s) {
		t.Error("the Watcher below was not found")
	}
	if _, ok := pawl.Find[pawl.Watcher](struct{ pawl.Storage }{s}); ok {
		t.Error("a Watcher was found that can't be seen")
	}
}
