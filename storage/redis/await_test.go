package redis_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
)

// TestContexts makes calls of a server that does not answer: they end with their
// contexts, whatever the client is told.
func TestContexts(t *testing.T) {
	for name, o := range map[string]*client.Options{
		"default":               {ReadTimeout: time.Minute},
		"ContextTimeoutEnabled": {ReadTimeout: time.Minute, ContextTimeoutEnabled: true},
	} {
		t.Run(name, func(t *testing.T) {
			server := testserver.NewRedis(t, nil)
			c := server.Client(o)
			t.Cleanup(func() { _ = c.Close() })
			q := pawl.New(open(t, c, nil), nil)
			payload := []byte("as enqueued")
			first := request(pawl.Request{Payload: payload})
			if _, err := q.Enqueue(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			for range 5 {
				if _, err := q.Enqueue(t.Context(), request(pawl.Request{})); err != nil {
					t.Fatal(err)
				}
			}
			j, err := q.Claim(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := server.Pause(); err != nil {
				t.Fatal(err)
			}
			shared, alone := request(pawl.Request{Payload: payload}), request(pawl.Request{Payload: payload, MaxDepth: 10})
			for what, call := range map[string]func(ctx context.Context) error{
				"Enqueue":       func(ctx context.Context) error { _, err := q.Enqueue(ctx, shared); return err },
				"Enqueue alone": func(ctx context.Context) error { _, err := q.Enqueue(ctx, alone); return err },
				"Claim":         func(ctx context.Context) error { _, err := q.Claim(ctx, nil); return err },
				"Extend":        func(ctx context.Context) error { return q.Extend(ctx, j, nil) },
				"Ack":           func(ctx context.Context) error { return q.Ack(ctx, j, payload) },
				"Sweep":         func(ctx context.Context) error { _, err := q.Sweep(ctx); return err },
				"Stats":         func(ctx context.Context) error { _, err := q.Stats(ctx); return err },
				"Get":           func(ctx context.Context) error { _, err := q.Get(ctx, "default", j.ID); return err },
				"Pause":         func(ctx context.Context) error { return q.Pause(ctx, "other") },
			} {
				ctx, cancel := context.WithCancel(t.Context())
				start := time.Now()
				time.AfterFunc(50*time.Millisecond, cancel)
				if err := call(ctx); !errors.Is(err, context.Canceled) || time.Since(start) > 30*time.Second {
					t.Errorf("%s: error %v after %v", what, err, time.Since(start))
				}
				cancel()
			}
			copy(payload, "overwritten") // by its owner, who has no call under way
			if err := server.Resume(); err != nil {
				t.Fatal(err)
			}
			released(t, q)
			for _, r := range []*pawl.Request{shared, alone} {
				r.Payload = []byte("as enqueued")
				if _, err := q.Enqueue(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				if got, err := q.Get(t.Context(), "default", r.ID); err != nil || string(got.Payload) != "as enqueued" {
					t.Errorf("found %+v, error %v", got, err)
				}
			}
		})
	}
}

// released waits until what was claimed for a caller that had left is released.
func released(t *testing.T, q *pawl.Queue) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		releases, running := 0, 0
		for j, err := range q.Jobs(t.Context(), pawl.Filter{Queue: "default"}) {
			if err != nil {
				t.Fatal(err)
			}
			releases += j.Counts.Releases
			if j.State == pawl.Running {
				running++
			}
		}
		switch {
		case releases > 0 && running == 0:
			return
		case time.Now().After(deadline):
			t.Fatalf("%d jobs run that nobody has, %d were released", running, releases)
		}
	}
}

// held keeps back the answer to the next script.
type held struct {
	armed    atomic.Bool
	answered chan struct{} // by the server
	free     chan struct{}
}

func (h *held) DialHook(next client.DialHook) client.DialHook { return next }

func (h *held) ProcessPipelineHook(next client.ProcessPipelineHook) client.ProcessPipelineHook {
	return next
}

func (h *held) ProcessHook(next client.ProcessHook) client.ProcessHook {
	return func(ctx context.Context, cmd client.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "evalsha" && h.armed.CompareAndSwap(true, false) {
			close(h.answered)
			<-h.free
		}
		return err
	}
}

// Who repeats a claim that was given up keeps its jobs, however late the first answer is.
func TestRepeatedBeforeTheLateAnswer(t *testing.T) {
	c := testserver.NewRedis(t, nil).Client(nil)
	t.Cleanup(func() { _ = c.Close() })
	h := &held{answered: make(chan struct{}), free: make(chan struct{})}
	s := open(t, c, nil)
	c.AddHook(h)
	mustEnqueue(t, s, requests(3, pawl.Request{})...)
	spec := asking(2)
	if _, err := s.Claim(t.Context(), asking(1)); err != nil { // the script is there
		t.Fatal(err)
	}
	h.armed.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-h.answered; cancel() }()
	if _, err := s.Claim(ctx, spec); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	spec.Repeat = true
	got, err := s.Claim(t.Context(), spec)
	if err != nil || len(got.Jobs) != 2 {
		t.Fatalf("claimed %v, error %v", got.Jobs, err)
	}
	close(h.free)
	eventually(t, "no call without an answer", func() bool { return s.Claiming() == 0 })
	lost, err := s.Settle(t.Context(), []pawl.Outcome{
		{Ref: got.Jobs[0].Ref, Verb: pawl.Ack}, {Ref: got.Jobs[1].Ref, Verb: pawl.Ack},
	})
	if err != nil || len(lost) > 0 {
		t.Errorf("lost %v, error %v", lost, err)
	}
}
