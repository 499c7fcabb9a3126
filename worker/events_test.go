package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/worker"
)

// lines tells events in short, with the time since the first, to the millisecond, which storages exceed.
func lines(events []worker.Event) (all []string) {
	for _, e := range events {
		line := fmt.Sprintf("%v %v %s %d %v %s", e.At.Sub(events[0].At).Round(time.Millisecond), e.Type, e.Kind, e.Attempt, e.Duration, e.Error)
		all = append(all, strings.TrimSpace(line))
	}
	return all
}

func types(events []worker.Event) (all []worker.EventType) {
	for _, e := range events {
		all = append(all, e.Type)
	}
	return all
}

// A job's events tell its life.
func TestEventsOfAJob(t *testing.T) {
	until := func(ctx context.Context, d time.Duration, err error) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return err
		}
	}
	cases := map[string]struct {
		run    worker.Func
		meddle func(f *fixture, id pawl.ID)
		want   []string
	}{
		"completes": {
			run:  func(ctx context.Context, _ *pawl.Job) error { return until(ctx, time.Second, nil) },
			want: []string{"0s started k 1 0s", "1s completed k 1 1s"},
		},
		"is buried": {
			run: func(ctx context.Context, j *pawl.Job) error {
				if j.Attempt == 2 {
					return pawl.Permanent(errors.New("no way"))
				}
				return until(ctx, time.Second, pawl.RetryAfter(time.Second, errors.New("not now")))
			},
			want: []string{"0s started k 1 0s", "1s failed k 1 1s not now",
				"2s started k 2 0s", "2s failed k 2 0s no way", "2s buried k 2 0s no way"},
		},
		"snoozes, and says why": {
			run: func(_ context.Context, j *pawl.Job) error {
				if j.Counts.Snoozes < 2 {
					return fmt.Errorf("not yet: %w", pawl.Snooze(time.Second))
				}
				return nil
			},
			want: []string{"0s started k 1 0s", "0s released k 1 0s not yet: pawl: snooze for 1s",
				"1s started k 1 0s", "1s released k 1 0s not yet: pawl: snooze for 1s", "2s started k 1 0s", "2s completed k 1 0s"},
		},
		"snoozes": {
			run: func(_ context.Context, j *pawl.Job) error {
				if j.Counts.Snoozes == 0 {
					return pawl.Snooze(time.Second)
				}
				return nil
			},
			want: []string{"0s started k 1 0s", "0s released k 1 0s", "1s started k 1 0s", "1s completed k 1 0s"},
		},
		"is canceled": {
			run: func(ctx context.Context, _ *pawl.Job) error { return until(ctx, time.Hour, nil) },
			meddle: func(f *fixture, id pawl.ID) {
				rest(time.Second)
				if err := f.q.Cancel(context.Background(), "", id); err != nil {
					f.t.Error(err)
				}
			},
			want: []string{"0s started k 1 0s", "1s canceled k 1 1s"},
		},
		"ignores its timeout": {
			run: func(_ context.Context, j *pawl.Job) error {
				if j.Attempt == 1 {
					time.Sleep(31 * time.Minute)
				}
				return nil
			},
			want: []string{"0s started k 1 0s", "30m1s failed k 1 30m1s worker: handler timed out after 30m0s and ignored it",
				"1h30m1s started k 2 0s", "1h30m1s completed k 2 0s"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := start(t, cycling, c.run, nil)
				id := f.enqueue(&pawl.Request{})
				if c.meddle != nil {
					synctest.Wait()
					c.meddle(f, id)
				}
				rest(2 * time.Hour)
				events := f.drain()
				if diff := cmp.Diff(c.want, lines(events)); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				for _, e := range events {
					if e.ID != id || e.Queue != "default" {
						t.Errorf("event %+v", e)
					}
				}
				f.told = nil
				f.stop()
			})
		})
	}
}

// Jobs of dead workers are told by those who take them back.
func TestEventsOfRescues(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, watched)
		ids := []pawl.ID{f.enqueue(&pawl.Request{}), f.enqueue(&pawl.Request{MaxRescues: pawl.NoRescues})}
		c, err := f.q.ClaimBatch(t.Context(), pawl.ClaimSpec{
			Queues: []pawl.QueueAsk{{Queue: "default", Max: 2}}, Max: 2, Lease: time.Second, Worker: "dead",
		})
		if err != nil || len(c.Jobs) != 2 {
			t.Fatalf("claimed %v, error %v", c.Jobs, err)
		}
		f.start(returning(nil), nil)
		rest(time.Minute)
		told := make(map[worker.EventType]pawl.ID)
		for _, e := range f.drain() {
			told[e.Type] = e.ID
		}
		want := map[worker.EventType]pawl.ID{worker.EventRescued: ids[0], worker.EventStarted: ids[0],
			worker.EventCompleted: ids[0], worker.EventBuried: ids[1]}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		f.told = nil
		f.stop()
	})
}

// Whoever finds it, a claim that ended before its lease was ended by hand.
func TestCanceledIsTold(t *testing.T) {
	cases := map[string]struct {
		sort func(*disturbed) pawl.Storage
		runs time.Duration // how long the handler does
		fail string        // calls that do
		want []string
	}{
		"by the storage's event":   {watched, time.Minute, "", []string{"0s started k 1 0s", "500ms canceled k 1 500ms"}},
		"by the heartbeat":         {bare, time.Minute, "", []string{"0s started k 1 0s", "10s canceled k 1 10s"}},
		"by its settle":            {bare, time.Second, "", []string{"0s started k 1 0s", "1s canceled k 1 1s"}},
		"not, for the lease ended": {bare, time.Minute, "extend", []string{"0s started k 1 0s", "28.125s lost k 1 28.125s"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, c.sort)
				f.storage.fail(false, c.fail)
				id := f.enqueue(&pawl.Request{})
				f.start(&lasting{takes: c.runs}, nil)
				rest(time.Second / 2)
				if err := f.q.Cancel(t.Context(), "", id); err != nil {
					t.Fatal(err)
				}
				rest(2 * time.Minute)
				if diff := cmp.Diff(c.want, lines(f.drain())); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				f.told = nil
				f.stop()
			})
		})
	}
}

// So it is of a job that waits in the pool, when it would start.
func TestCanceledWhileItWaited(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, bare)
		f.enqueue(&pawl.Request{Priority: -1})
		id := f.enqueue(&pawl.Request{})
		f.start(&lasting{takes: 20 * time.Second}, &worker.Options{Concurrency: 1, Prefetch: 1})
		if err := f.q.Cancel(t.Context(), "", id); err != nil {
			t.Fatal(err)
		}
		rest(time.Minute)
		want := []string{"0s started k 1 0s", "20s canceled k 1 0s", "20s completed k 1 20s"}
		if diff := cmp.Diff(want, lines(f.drain())); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		f.told = nil
		f.stop()
	})
}

// What was told before the end of a subscription, or of the reader's context,
// can be read after it.
func TestRestOfASubscription(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := prepare(t, bare)
		sub := f.events.Subscribe(&worker.SubscribeOptions{Types: []worker.EventType{worker.EventCompleted}})
		f.start(returning(nil), nil)
		f.enqueueMany("default", 200)
		rest(time.Minute)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for i := range 200 {
			if i == 100 {
				sub.Close()
			}
			if e, err := sub.Next(over); err != nil || e.Type != worker.EventCompleted {
				t.Fatalf("event %d: %+v, error %v", i, e, err)
			}
		}
		if e, err := sub.Next(t.Context()); !errors.Is(err, pawl.ErrClosed) {
			t.Errorf("after the last: %+v, error %v", e, err)
		}
		f.stop()
	})
}

// What is enqueued is told if it was stored.
func TestEventsOfEnqueues(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var events worker.Events
		q := pawl.New(memory.New(nil), &pawl.Options{Middleware: []pawl.EnqueueMiddleware{events.Enqueue}})
		sub := events.Subscribe(nil)
		defer sub.Close()
		reqs := []*pawl.Request{{Kind: "a", UniqueKey: "key"}, {Kind: "b", UniqueKey: "key"}, {Kind: "c", Queue: "other"}}
		receipts, err := q.EnqueueMany(t.Context(), reqs)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := q.Enqueue(t.Context(), &pawl.Request{}); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("without a kind: %v", err)
		}
		for _, want := range []worker.Event{
			{Type: worker.EventEnqueued, At: time.Now(), Queue: "default", ID: receipts[0].ID, Kind: "a"},
			{Type: worker.EventEnqueued, At: time.Now(), Queue: "other", ID: receipts[2].ID, Kind: "c"},
		} {
			if got, err := sub.Next(t.Context()); got != want || err != nil {
				t.Errorf("got %+v, error %v, want %+v", got, err, want)
			}
		}
		sub.Close()
		if _, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "a"}); err != nil { // with nobody to tell
			t.Fatal(err)
		}
		if e, err := sub.Next(t.Context()); !errors.Is(err, pawl.ErrClosed) {
			t.Errorf("Next after Close: %+v, %v", e, err)
		}
	})
}

// A subscription that is full keeps nothing from another.
func TestSubscriptionsAreApart(t *testing.T) {
	var events worker.Events
	q := pawl.New(memory.New(nil), &pawl.Options{Middleware: []pawl.EnqueueMiddleware{events.Enqueue}})
	var subs [3]*worker.Subscription
	for i, o := range []worker.SubscribeOptions{{Buffer: 1}, {Buffer: 5}, {Types: []worker.EventType{worker.EventLost}}} {
		subs[i] = events.Subscribe(&o)
		defer subs[i].Close()
	}
	enqueue(t, q, 7)
	for i, want := range []map[worker.EventType]int64{
		{worker.EventEnqueued: 6}, {worker.EventEnqueued: 2}, {},
	} {
		if diff := cmp.Diff(want, subs[i].Dropped()); diff != "" {
			t.Errorf("dropped by %d (-want +got):\n%s", i, diff)
		}
	}
}

// Nobody waits for a subscriber that does not read: what its buffer does not
// hold is dropped and counted, and takes no memory.
func TestSlowSubscriber(t *testing.T) {
	const n = 50_000 // jobs, of two events
	q := pawl.New(memory.New(nil), nil)
	var events worker.Events
	runAll := func() {
		enqueue(t, q, n)
		var ran atomic.Int64
		all := make(chan struct{})
		h := worker.Func(func(context.Context, *pawl.Job) error {
			if ran.Add(1) == n {
				close(all)
			}
			return nil
		})
		run(t, worker.New(q, h, &worker.Options{Events: &events}), func() { <-all })
	}
	runAll() // for the storage to grow as it will
	before := heap()
	sub := events.Subscribe(&worker.SubscribeOptions{Buffer: 50})
	defer sub.Close()
	runAll()
	if grown := heap() - before; grown > 1<<20 { // the events had 14 MB
		t.Errorf("%d bytes more are in use", grown)
	}
	dropped := sub.Dropped()
	if dropped[worker.EventStarted]+dropped[worker.EventCompleted] != 2*n-50 || len(dropped) != 2 {
		t.Errorf("dropped %v", dropped)
	}
	for range 50 {
		if _, err := sub.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if e, err := sub.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Next: %+v, %v", e, err)
	}
}

// An event holds as much of an error text as records do.
func TestEventsHoldLittleText(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := start(t, cycling, returning(errors.New(strings.Repeat("ä", 20_000)+"\x00")), nil)
		f.enqueue(&pawl.Request{})
		rest(time.Minute)
		for _, e := range f.drain() {
			if e.Type == worker.EventFailed && (len(e.Error) < pawl.MaxErrorText-2 || len(e.Error) > pawl.MaxErrorText) {
				t.Errorf("an event holds %d bytes of text", len(e.Error))
			}
		}
		f.told = nil
		f.stop()
	})
}

// heap returns how many bytes are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestEventTypesAsText(t *testing.T) {
	b, err := json.Marshal(map[worker.EventType]int{worker.EventDeadLetters: 1, worker.EventEnqueued: 2, 99: 3})
	if want := `{"dead_letters":1,"enqueued":2,"invalid":3}`; err != nil || string(b) != want {
		t.Errorf("got %s, error %v, want %s", b, err, want)
	}
}

// lacking is what package task returns for a payload that it can't decode here.
type lacking struct{}

func (l *lacking) Error() string   { return "no key" }
func (l *lacking) Lacking() string { return "key 2025" }

// What a kind lacks to run its jobs is told once in the log, and by each event.
func TestLackingIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := worker.Func(func(_ context.Context, j *pawl.Job) error {
			if j.Counts.Snoozes < 2 {
				return errors.Join(&lacking{}, pawl.Snooze(time.Second))
			}
			return nil
		})
		f := start(t, cycling, h, nil)
		for _, kind := range []string{"a", "a", "b"} {
			f.enqueue(&pawl.Request{Kind: kind})
		}
		rest(time.Minute)
		released := 0
		for _, e := range f.drain() {
			if e.Type == worker.EventReleased {
				released++
				if !strings.HasPrefix(e.Error, "no key\n") {
					t.Errorf("event %+v", e)
				}
			}
		}
		if released != 6 {
			t.Errorf("%d events", released)
		}
		for _, kind := range []string{"a", "b"} {
			if n := f.log.count(`level=WARN msg="worker: jobs of this kind are handed back, for something is lacking here" kind=` + kind); n != 1 {
				t.Errorf("logged %d times of %s", n, kind)
			}
		}
		f.told = nil
		f.stop()
	})
}
