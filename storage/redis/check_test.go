package redis_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// TestRisks sets the server in ways that can lose jobs: New warns, or refuses
// with Strict.
func TestRisks(t *testing.T) {
	c := connect(t, testserver.NewRedis(t, nil))
	for _, o := range []struct{ name, value, says string }{
		{"appendonly", "yes", ""},
		{"appendfsync", "no", "appendfsync is no"},
		{"appendfsync", "always", ""},
		{"maxmemory-policy", "allkeys-lru", ""}, // there is no limit
		{"maxmemory", "100mb", "maxmemory-policy is allkeys-lru"},
		{"maxmemory-policy", "noeviction", ""},
		{"appendonly", "no", "appendonly is off"},
	} {
		if err := c.ConfigSet(t.Context(), o.name, o.value).Err(); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		open(t, c, &redis.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if got := log.String(); o.says == "" && got != "" || !strings.Contains(got, o.says) {
			t.Errorf("with %s %s the log has %q, want %q in it", o.name, o.value, got, o.says)
		}
		s, err := redis.New(t.Context(), c, &redis.Options{Strict: true})
		if (o.says != "") != errors.Is(err, redis.ErrServer) || o.says != "" && !strings.Contains(err.Error(), o.says) {
			t.Errorf("with %s %s and Strict the error is %v, want %q", o.name, o.value, err, o.says)
		}
		if err == nil {
			s.Close()
		}
	}
}

func TestLayoutVersion(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	for _, have := range []string{"1", "3", "0", "x"} {
		if err := c.HSet(t.Context(), "other:meta", "version", have).Err(); err != nil {
			t.Fatal(err)
		}
		_, err := redis.New(t.Context(), c, &redis.Options{Prefix: "other"})
		var schema *pawl.SchemaError
		if !errors.As(err, &schema) || schema.Want != 2 {
			t.Errorf("with version %s the error is %v", have, err)
		}
	}
}

func TestPrefixes(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	for _, bad := range []string{"a b", "{a}", "a{", "é", strings.Repeat("a", 65), "a\n"} {
		if _, err := redis.New(t.Context(), c, &redis.Options{Prefix: bad}); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("prefix %q: %v", bad, err)
		}
	}
}

// TestForeignNames refuses names that would be those of a shard, or leave the hash tag.
func TestForeignNames(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	s := openDivided(t, c)
	paused := true
	for _, name := range []string{"default#0", "a}b", "{", strings.Repeat("a", pawl.MaxNameLen+1)} {
		q := request(pawl.Request{})
		q.Queue = name
		spec := asking(1)
		spec.Queues[0].Queue = name
		for what, f := range map[string]func() error{
			"enqueue": func() error { _, err := s.Enqueue(t.Context(), []*pawl.Request{q}); return err },
			"claim":   func() error { _, err := s.Claim(t.Context(), spec); return err },
			"get":     func() error { _, err := s.Get(t.Context(), name, q.ID); return err },
			"list": func() error {
				_, err := s.List(t.Context(), pawl.ListSpec{Filter: pawl.Filter{Queue: name}, Limit: 1})
				return err
			},
			"count":     func() error { _, err := s.Count(t.Context(), name); return err },
			"change":    func() error { _, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Delete, Queue: name}); return err },
			"configure": func() error { return s.Configure(t.Context(), name, pawl.QueueSettings{Paused: &paused}) },
		} {
			if err := f(); !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("%s of %q: %v", what, name, err)
			}
		}
	}
}

func TestUnusableServers(t *testing.T) {
	server := testserver.NewRedis(t, nil)
	c := connect(t, server)
	if err := c.Do(t.Context(), "replicaof", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := redis.New(t.Context(), c, nil); !errors.Is(err, redis.ErrServer) {
		t.Errorf("a replica: %v", err)
	}
	ring := client.NewRing(&client.RingOptions{})
	defer ring.Close()
	if _, err := redis.New(t.Context(), ring, nil); !errors.Is(err, pawl.ErrUnsupported) {
		t.Errorf("a ring: %v", err)
	}
	for _, o := range []client.ClusterOptions{{ReadOnly: true}, {RouteByLatency: true}, {RouteRandomly: true}} {
		cluster := client.NewClusterClient(&o)
		defer cluster.Close()
		if _, err := redis.New(t.Context(), cluster, nil); !errors.Is(err, pawl.ErrUnsupported) {
			t.Errorf("reads from replicas: %v", err)
		}
	}
	server.Kill()
	if _, err := redis.New(t.Context(), c, nil); err == nil {
		t.Error("no server, no error")
	}
}
