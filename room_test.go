package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
)

// full returns a Queue on s, one of whose queues has two places, both taken.
func full(t *testing.T, s pawl.Storage, poll time.Duration) *pawl.Queue {
	t.Helper()
	q := pawl.New(s, &pawl.Options{Depth: map[string]int{"": 2}, WhenFull: pawl.Block, Poll: poll})
	for range 2 {
		enqueue(t, q, &pawl.Request{})
	}
	return q
}

// waiting enqueues from a goroutine of its own.
func waiting(ctx context.Context, q *pawl.Queue, reqs ...*pawl.Request) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := q.EnqueueMany(ctx, reqs)
		done <- err
	}()
	synctest.Wait()
	return done
}

func wantBlocked(t *testing.T, done <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-done:
		t.Errorf("the enqueue did not wait: error %v", err)
	default:
	}
}

// wantDone checks that the enqueue has ended by now.
func wantDone(t *testing.T, done <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	default:
		t.Error("the enqueue still waits")
	}
}

// Whatever makes room lets an enqueue go on that waits for it, at once if this
// process did it.
func TestBlockWaitsForRoom(t *testing.T) {
	claim := func(t *testing.T, q *pawl.Queue) {
		if _, err := q.Claim(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
	first := func(t *testing.T, q *pawl.Queue) *pawl.Job {
		j, err := q.Peek(t.Context(), "default", pawl.Ready)
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	cases := map[string]func(t *testing.T, q *pawl.Queue){
		"claim": claim,
		"cycle": func(t *testing.T, q *pawl.Queue) {
			j, err := pawl.New(q.Storage(), nil).Claim(t.Context(), nil) // unseen by q
			if err != nil {
				t.Fatal(err)
			}
			spec := pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: "default", Max: 1}}, Max: 1, Lease: time.Minute}
			if _, _, err = q.Cycle(t.Context(), []pawl.Outcome{{Ref: j.Ref, Verb: pawl.Ack}}, spec); err != nil {
				t.Error(err)
			}
		},
		"cancel": func(t *testing.T, q *pawl.Queue) {
			if err := q.Cancel(t.Context(), "", first(t, q).ID); err != nil {
				t.Error(err)
			}
		},
		"delete all": func(t *testing.T, q *pawl.Queue) {
			if n, err := q.DeleteAll(t.Context(), pawl.Filter{}, 0); n != 2 || err != nil {
				t.Errorf("deleted %d, error %v", n, err)
			}
		},
		"expiry": func(t *testing.T, q *pawl.Queue) {
			at := time.Now().Add(time.Second)
			if err := q.Edit(t.Context(), "", first(t, q).ID, pawl.EditFields{StartBefore: &at}); err != nil {
				t.Error(err)
			}
			time.Sleep(2 * time.Second) // of the bubble's time
			if s, err := q.Sweep(t.Context()); s.Expired != 1 || err != nil {
				t.Errorf("swept %+v, error %v", s, err)
			}
		},
	}
	for name, makeRoom := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := full(t, memory.New(nil), time.Hour)
				done := waiting(t.Context(), q, &pawl.Request{Kind: "test"})
				wantBlocked(t, done)
				makeRoom(t, q)
				wantDone(t, done)
			})
		})
	}
}

// One place lets one of many go on, and no other try.
func TestBlockedEnqueuesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &counting{Storage: memory.New(nil)}
		q := full(t, s, time.Hour)
		var stored atomic.Int64
		for range 10 {
			go func() {
				if _, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "test"}); err != nil {
					t.Error(err)
				}
				stored.Add(1)
			}()
		}
		synctest.Wait()
		for i := range int64(12) {
			if n := stored.Load(); n != min(i, 10) {
				t.Errorf("%d of %d stored", n, i)
			}
			s.enqueues.Store(0)
			if _, err := q.Claim(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := s.enqueues.Load(); n > 1 {
				t.Errorf("%d tries for one place", n)
			}
		}
	})
}

// Who is told of room and can't use it tells those who can.
func TestBlockPassesRoomOn(t *testing.T) {
	request := func(queue string) *pawl.Request { return &pawl.Request{Kind: "test", Queue: queue} }
	known := request("")
	known.ID = pawl.ID{1}
	cases := map[string][]*pawl.Request{
		"needs more":               {request(""), request("")},
		"is blocked elsewhere":     {request(""), request("other")},
		"was blocked elsewhere":    {request("other"), request("")},
		"is there by now":          {known},
		"has ended in the storage": {{Kind: "end", Queue: "default"}},
	}
	for name, first := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				q := full(t, ending{memory.New(nil)}, time.Hour)
				for range 2 {
					enqueue(t, q, &pawl.Request{Queue: "other"})
				}
				blocked := waiting(ctx, q, first...)
				one := waiting(t.Context(), q, request(""))
				again := waiting(t.Context(), q, request(""))
				time.Sleep(3 * time.Hour) // of the bubble's time
				wantBlocked(t, one)
				claim := func() {
					if _, err := q.Claim(t.Context(), nil); err != nil {
						t.Fatal(err)
					}
				}
				if name == "is there by now" {
					unseen := *known
					unseen.MaxDepth = pawl.Unlimited
					enqueue(t, pawl.New(q.Storage(), nil), &unseen)
					claim() // no room yet
				}
				claim()
				wantDone(t, one)
				wantBlocked(t, again)
				claim()
				wantDone(t, again)
				cancel()
				<-blocked
			})
		})
	}
}

// ending is a storage whose Enqueue fails for a job of kind "end" once its queue
// has room.
type ending struct{ pawl.Storage }

func (e ending) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	if reqs[0].Kind == "end" {
		if stats, err := e.Count(ctx, "default"); err != nil || stats[0].Ready < 2 {
			return nil, context.Canceled
		}
	}
	return e.Storage.Enqueue(ctx, reqs)
}

// holding is a storage in which an Enqueue of kind "held" waits for its context's
// end, but for the first.
type holding struct {
	pawl.Storage
	tries atomic.Int64
}

func (h *holding) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	if reqs[0].Kind == "held" && h.tries.Add(1) > 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.Storage.Enqueue(ctx, reqs)
}

// A waiter that was told of room while it tried, and does not try again, leaves
// it to others.
func TestBlockLeavesRoomToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := full(t, &holding{Storage: memory.New(nil)}, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		first := waiting(ctx, q, &pawl.Request{Kind: "held"})
		second := waiting(t.Context(), q, &pawl.Request{Kind: "test"})
		if _, err := q.Claim(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		wantBlocked(t, second)
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) || errors.Is(err, pawl.ErrFull) {
			t.Errorf("error %v", err)
		}
		wantDone(t, second)
	})
}

// One that comes later leaves the room that another process has made to those
// before it.
func TestBlockKeepsTheOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := full(t, memory.New(nil), time.Second)
		other := pawl.New(q.Storage(), &pawl.Options{Lease: time.Hour})
		var line []<-chan error
		for range 20 {
			line = append(line, waiting(t.Context(), q, &pawl.Request{Kind: "test"}))
			time.Sleep(10 * time.Second) // of the bubble's time
		}
		for _, first := range line {
			if _, err := other.Claim(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			last := waiting(t.Context(), q, &pawl.Request{Kind: "test"})
			wantBlocked(t, last)
			time.Sleep(2 * time.Second) // of the bubble's time
			wantDone(t, first)
			line = append(line, last)
			wantBlocked(t, last)
		}
		for range line[20:] { // let those end that still wait
			if _, err := q.Claim(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Who needs no room does not wait for those who do, nor in an empty queue.
func TestBlockOfWhatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := full(t, memory.New(nil), time.Hour)
		known := &pawl.Request{Kind: "test", ID: pawl.ID{1}, UniqueKey: "key", MaxDepth: pawl.Unlimited}
		enqueue(t, q, known)
		first := waiting(t.Context(), q, &pawl.Request{Kind: "test"})
		wantBlocked(t, first)
		for want, r := range map[pawl.ReceiptStatus]*pawl.Request{
			pawl.Exists:    {Kind: "test", ID: pawl.ID{1}, UniqueKey: "key"},
			pawl.Duplicate: {Kind: "test", UniqueKey: "key"},
		} {
			if receipt, err := q.Enqueue(t.Context(), r); err != nil || receipt.Status != want {
				t.Errorf("%v, error %v; want %v", receipt.Status, err, want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var full *pawl.FullError
		if _, err := q.Enqueue(ctx, &pawl.Request{Kind: "test"}); !errors.As(err, &full) || full.Limit != 2 {
			t.Errorf("error %v, want one of the queue's limit of 2", err)
		}
		for range 3 {
			if _, err := pawl.New(q.Storage(), nil).Claim(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		enqueue(t, q, &pawl.Request{})
		wantBlocked(t, first)     // it is told by the next poll
		time.Sleep(2 * time.Hour) // of the bubble's time
		wantDone(t, first)
	})
}

// All that wait for a queue share one poll, and one that finds room lets as many
// go on as fit.
func TestBlockSharesAPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &counting{Storage: memory.New(nil)}
		q := full(t, s, time.Second)
		var done []<-chan error
		for range 20 {
			done = append(done, waiting(t.Context(), q, &pawl.Request{Kind: "test"}))
		}
		s.enqueues.Store(0)
		time.Sleep(time.Minute) // of the bubble's time
		if n := s.enqueues.Load(); n < 50 || n > 90 {
			t.Errorf("%d tries in a minute", n)
		}
		for i := 0; i < len(done); i += 2 {
			for range 2 {
				if _, err := pawl.New(s, nil).Claim(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(1250 * time.Millisecond) // of the bubble's time
			wantDone(t, done[i])
			wantDone(t, done[i+1])
			if i+2 < len(done) {
				wantBlocked(t, done[i+2])
			}
		}
	})
}

// Waiting enqueues are bounded.
func TestBlockTooManyWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := pawl.New(memory.New(nil), &pawl.Options{Depth: map[string]int{"": 1}, WhenFull: pawl.Block, MaxWaiters: 2})
		enqueue(t, q, &pawl.Request{})
		first := waiting(t.Context(), q, &pawl.Request{Kind: "test"})
		second := waiting(t.Context(), q, &pawl.Request{Kind: "test"})
		if _, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "test"}); !errors.Is(err, pawl.ErrTooManyWaiters) || !errors.Is(err, pawl.ErrFull) {
			t.Errorf("error %v", err)
		}
		for _, done := range []<-chan error{first, second} {
			if _, err := q.Claim(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			wantDone(t, done)
		}
	})
}

// counting counts the enqueues of a storage.
type counting struct {
	pawl.Storage
	enqueues atomic.Int64
}

func (c *counting) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	c.enqueues.Add(1)
	for _, r := range reqs {
		if r.WhenFull == pawl.Block {
			return nil, errors.New("a storage was asked to block")
		}
	}
	return c.Storage.Enqueue(ctx, reqs)
}

// Room that others make is found by polling with growing pauses.
func TestBlockPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &counting{Storage: memory.New(nil)}
		q := full(t, s, time.Second)
		s.enqueues.Store(0)
		done := waiting(t.Context(), q, &pawl.Request{Kind: "test"})
		time.Sleep(time.Minute) // of the bubble's time
		wantBlocked(t, done)
		if n := s.enqueues.Load(); n < 50 || n > 90 {
			t.Errorf("%d tries in a minute", n)
		}
		if _, err := pawl.New(s, nil).Claim(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1250 * time.Millisecond) // of the bubble's time
		wantDone(t, done)
	})
}

func TestBlockEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := full(t, memory.New(nil), 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		receipt, err := q.Enqueue(ctx, &pawl.Request{Kind: "test"})
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, pawl.ErrFull) {
			t.Errorf("error %v", err)
		}
		if _, err := q.Get(t.Context(), "", receipt.ID); !errors.Is(err, pawl.ErrNotFound) {
			t.Errorf("Get: %v", err)
		}
	})
}

// An enqueue does not wait for what can't come, nor with a transaction open.
func TestBlockRejects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := full(t, memory.New(nil), 0)
		some := func(n int, when pawl.WhenFull) (reqs []*pawl.Request) {
			for range n {
				reqs = append(reqs, &pawl.Request{Kind: "test", WhenFull: when})
			}
			return reqs
		}
		mixed := append(some(1, pawl.Reject), some(1, pawl.Block)...)
		never := append(some(1, pawl.Block), &pawl.Request{Kind: "test", Queue: "other", MaxDepth: 1}, &pawl.Request{Kind: "test", Queue: "other", MaxDepth: 1})
		tx := q.WithTx(q.Storage())
		for name, enqueue := range map[string]func() ([]pawl.Receipt, error){
			"too many at once": func() ([]pawl.Receipt, error) { return q.EnqueueMany(t.Context(), some(3, pawl.Block)) },
			"some rejected":    func() ([]pawl.Receipt, error) { return q.EnqueueMany(t.Context(), mixed) },
			"never elsewhere":  func() ([]pawl.Receipt, error) { return q.EnqueueMany(t.Context(), never) },
			"reject":           func() ([]pawl.Receipt, error) { return q.EnqueueMany(t.Context(), some(1, pawl.Reject)) },
			"transaction":      func() ([]pawl.Receipt, error) { return tx.EnqueueMany(t.Context(), some(1, pawl.Block)) },
		} {
			if _, err := enqueue(); !errors.Is(err, pawl.ErrFull) {
				t.Errorf("%s: error %v", name, err)
			}
		}
		if _, err := q.Enqueue(t.Context(), some(1, pawl.DropOldest)[0]); err != nil {
			t.Error(err)
		}
		filled, err := q.Prepare(some(1, pawl.Block)...)
		if err != nil || filled[0].WhenFull != pawl.Reject {
			t.Errorf("prepared %+v, error %v", filled[0], err)
		}
	})
}

// A call for several queues waits until all have room, and stores all or none.
func TestBlockOnSeveralQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := full(t, memory.New(nil), time.Hour)
		for range 2 {
			enqueue(t, q, &pawl.Request{Queue: "other"})
		}
		done := waiting(t.Context(), q, &pawl.Request{Kind: "test"}, &pawl.Request{Kind: "test", Queue: "free"},
			&pawl.Request{Kind: "test", Queue: "other"})
		for i, queue := range []string{"default", "other"} {
			wantBlocked(t, done)
			stats, err := q.Stats(t.Context(), "free")
			if err != nil || stats[0].Ready != 0 {
				t.Errorf("after %d claims: %+v, error %v", i, stats, err)
			}
			if _, err := q.Claim(t.Context(), &pawl.ClaimOptions{Queues: []string{queue}}); err != nil {
				t.Fatal(err)
			}
		}
		wantDone(t, done)
	})
}

func ExampleBlock() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), &pawl.Options{Depth: map[string]int{"mail": 1}, WhenFull: pawl.Block})
	go func() {
		for range 3 {
			j, err := q.Claim(ctx, &pawl.ClaimOptions{Queues: []string{"mail"}})
			if err == nil {
				err = q.Ack(ctx, j, nil)
			}
			if err != nil {
				fmt.Println(err)
			}
		}
	}()
	for i := range 3 { // not faster than they are claimed
		_, err := q.Enqueue(ctx, &pawl.Request{Queue: "mail", Kind: "letter"})
		fmt.Println(i, err)
	}
	// Output:
	// 0 <nil>
	// 1 <nil>
	// 2 <nil>
}
