package testserver

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestRedisSurvivesKill(t *testing.T) {
	s := NewRedis(t, &RedisOptions{Fsync: "always", Settings: map[string]string{"maxmemory": "50mb"}})
	client := s.Client(&redis.Options{MaxRetries: -1})
	defer client.Close()
	if err := client.Set(t.Context(), "kept", "7", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Fatal("a killed server answers")
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if got := client.Get(t.Context(), "kept").Val(); got != "7" {
		t.Errorf("after a restart the value is %q", got)
	}
	if got := client.ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"]; got != "52428800" {
		t.Errorf("maxmemory is %s", got)
	}
}

func TestRedisShared(t *testing.T) {
	var first *RedisServer
	t.Run("group", func(t *testing.T) {
		first = Redis(t)
		if second := Redis(t); second != first {
			t.Error("two servers in one binary")
		}
	})
	if _, err := os.Stat(first.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server outlived its last user: %v", err)
	}
}

// A replica takes over from a master that was killed, and has its data.
func TestRedisClusterFailover(t *testing.T) {
	c := NewRedisCluster(t, nil)
	client := c.Client(nil)
	defer client.Close()
	for _, key := range []string{"a", "b", "c", "d"} {
		if err := client.Set(t.Context(), key, "7", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	master, err := c.MasterOf(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	replicated(t, master, "a", "7")
	master.Kill()
	if err := soon(t, func() error {
		client.ReloadState(t.Context())
		return client.Get(t.Context(), "a").Err()
	}); err != nil {
		t.Fatal(err)
	}
	if now, err := c.MasterOf(t.Context(), "a"); err != nil || now == master {
		t.Errorf("the master is %p as before %p, or not known: %v", now, master, err)
	}
	if err := master.Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.Ready(); err != nil {
		t.Error(err)
	}
}

// replicated sets a key of a master again, and waits until a replica has that and all before.
// WAIT is about what its own connection has written.
func replicated(t *testing.T, master *RedisServer, key, value string) {
	t.Helper()
	one := master.Client(nil)
	defer one.Close()
	conn := one.Conn()
	defer conn.Close()
	if err := conn.Set(t.Context(), key, value, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Wait(t.Context(), 1, startTimeout).Result(); err != nil || n < 1 {
		t.Fatalf("%d replicas have it: %v", n, err)
	}
}

// The replica becomes the master when the sentinels miss that, and the old master its
// replica when it is back.
func TestRedisSentinelFailover(t *testing.T) {
	s := NewRedisSentinel(t, nil)
	client := s.Client(nil)
	defer client.Close()
	if err := client.Set(t.Context(), "a", "7", 0).Err(); err != nil {
		t.Fatal(err)
	}
	master, err := s.Master(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	replicated(t, master, "a", "7")
	master.Kill()
	if err := soon(t, func() error { return client.Set(t.Context(), "b", "8", 0).Err() }); err != nil {
		t.Fatal(err)
	}
	if err := master.Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(); err != nil {
		t.Fatal(err)
	}
	if now, err := s.Master(t.Context()); err != nil || now == master {
		t.Errorf("the master is %p as before %p, or not known: %v", now, master, err)
	}
	if got := client.MGet(t.Context(), "a", "b").Val(); len(got) != 2 || got[0] != "7" || got[1] != "8" {
		t.Errorf("values %v", got)
	}
}

// soon repeats f until it succeeds, for as long as a server may take to start.
func soon(t *testing.T, f func() error) error {
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	return until(ctx, f)
}
