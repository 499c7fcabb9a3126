package redis_test

import (
	"context"
	"errors"
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
