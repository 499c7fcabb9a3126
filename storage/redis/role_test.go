package redis_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// TestUsers works as users with few rights. New says what they lack, and nothing that a
// call has done is then reported as an error.
func TestUsers(t *testing.T) {
	server := testserver.NewRedis(t, nil)
	root := connect(t, server)
	for name, user := range map[string]struct {
		rules string
		says  []string
		safe  bool // as far as the user may know
	}{
		"least": {
			rules: "~pawl:least:* &pawl:least:events* -@all +@hash +@sortedset +@scripting +@pubsub +hello +info +config|get +exists +del +time +ping",
			safe:  true,
		},
		"usual":    {rules: "~* &* +@all -@dangerous", says: []string{"may not ask for the server's settings"}},
		"config":   {rules: "~* &* +@all -config", says: []string{"appendfsync is not known"}},
		"channels": {rules: "~* +@all", says: []string{"no wake-ups"}, safe: true},
	} {
		t.Run(name, func(t *testing.T) {
			rules := strings.Fields("on >secret " + user.rules)
			args := []any{"acl", "setuser", name}
			for _, rule := range rules {
				args = append(args, rule)
			}
			if err := root.Do(t.Context(), args...).Err(); err != nil {
				t.Fatal(err)
			}
			c := server.Client(&client.Options{Username: name, Password: "secret"})
			t.Cleanup(func() { _ = c.Close() })
			var log bytes.Buffer
			s := open(t, c, &redis.Options{Prefix: "pawl:" + name, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			for _, says := range user.says {
				if !strings.Contains(log.String(), says) {
					t.Errorf("the log has %q, want %q in it", &log, says)
				}
			}
			if len(user.says) == 0 && log.Len() > 0 {
				t.Errorf("the log has %q", &log)
			}
			strict, err := redis.New(t.Context(), c, &redis.Options{Prefix: "pawl:" + name, Strict: true, Logger: slog.New(slog.DiscardHandler)})
			if user.safe != (err == nil) || !user.safe && !errors.Is(err, redis.ErrServer) {
				t.Errorf("with Strict the error is %v", err)
			}
			if err == nil {
				strict.Close()
			}
			everyCall(t, s)
		})
	}
}

// everyCall makes each call of the contract, on jobs that others are told of.
func everyCall(t *testing.T, s *redis.Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan error)
	go func() { watched <- s.Watch(ctx, func(pawl.Event) {}) }()
	mustEnqueue(t, s, requests(2, pawl.Request{})...)
	mustEnqueue(t, s, request(pawl.Request{UniqueKey: "key"}))
	mustEnqueue(t, s, request(pawl.Request{Delay: time.Hour}))
	jobs := mustClaim(t, s, 3)
	lost, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: jobs[0].Ref, Lease: time.Minute}})
	if err != nil || len(lost) > 0 {
		t.Error(lost, err)
	}
	mustSettle(t, s, []pawl.Outcome{{Ref: jobs[0].Ref, Verb: pawl.Nack, Delay: time.Minute}, {Ref: jobs[1].Ref, Verb: pawl.Ack}})
	changed, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Cancel, Queue: "default", IDs: []pawl.ID{jobs[2].ID}})
	if err != nil || changed[0].Status != pawl.Done {
		t.Error(changed, err)
	}
	if _, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 10}); err != nil {
		t.Error(err)
	}
	if got, err := s.Get(t.Context(), "", jobs[0].ID); err != nil || got[0] == nil {
		t.Error(got, err)
	}
	if page, err := s.List(t.Context(), pawl.ListSpec{Limit: 10}); err != nil || len(page.Jobs) != 4 {
		t.Error(len(page.Jobs), err)
	}
	wantStats(t, s, pawl.QueueStats{Scheduled: 2, Retrying: 1, Completed: 1, Canceled: 1})
	paused := true
	if err := s.Configure(t.Context(), "default", pawl.QueueSettings{Paused: &paused}); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A saying is a log of which a test hears.
type saying struct {
	slog.Handler
	said chan string
}

func (s saying) Enabled(context.Context, slog.Level) bool { return true }

func (s saying) Handle(_ context.Context, r slog.Record) error {
	select {
	case s.said <- r.Message:
	default:
	}
	return nil
}

// TestNeverListens says so if there never was a connection that listens.
func TestNeverListens(t *testing.T) {
	server := testserver.NewRedis(t, nil)
	if err := connect(t, server).Do(t.Context(), "acl", "setuser", "deaf", "on", ">secret", "~*", "&*", "+@all", "-subscribe").Err(); err != nil {
		t.Fatal(err)
	}
	c := server.Client(&client.Options{Username: "deaf", Password: "secret"})
	t.Cleanup(func() { _ = c.Close() })
	log := saying{slog.DiscardHandler, make(chan string, 100)}
	s := open(t, c, &redis.Options{Logger: slog.New(log)})
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan error)
	go func() { watched <- s.Watch(ctx, func(pawl.Event) {}) }()
	select {
	case said := <-log.said:
		if !strings.Contains(said, "no connection listens") {
			t.Errorf("the log says %q", said)
		}
	case <-time.After(patience):
		t.Error("the log says nothing")
	}
	cancel()
	<-watched
}
