package redis_test

import (
	"testing"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// serverCrew starts a crew on a server of its own.
func serverCrew(t *testing.T, settings map[string]string) (*crew, *testserver.RedisServer, *client.Client) {
	t.Helper()
	server := testserver.NewRedis(t, &testserver.RedisOptions{Fsync: "always", Settings: settings})
	c := connect(t, server)
	return startCrew(t, open(t, c, nil)), server, c
}

// TestPoolLoading restarts the server, which takes long to load its data.
func TestPoolLoading(t *testing.T) {
	c, server, _ := serverCrew(t, map[string]string{"key-load-delay": "200"})
	c.work(500)
	server.Kill()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	c.note(func() {
		if c.errors["LOADING"] == 0 {
			t.Errorf("nobody was told that it loads: %v", c.errors)
		}
	})
	c.work(100)
	c.rest()
	c.finish(c.known())
}

// TestPoolReadOnly makes the server a replica for a while.
func TestPoolReadOnly(t *testing.T) {
	c, _, one := serverCrew(t, nil)
	c.work(100)
	for _, of := range [][]any{{"replicaof", "127.0.0.1", "1"}, {"replicaof", "no", "one"}} {
		if err := one.Do(t.Context(), of...).Err(); err != nil {
			t.Fatal(err)
		}
		if of[1] != "no" {
			c.refused("READONLY")
		}
	}
	c.work(100)
	c.rest()
	c.finish(c.known())
}

// TestPoolMemoryFull fills the memory: what is stored is worked off meanwhile.
func TestPoolMemoryFull(t *testing.T) {
	c, _, one := serverCrew(t, nil)
	c.work(100)
	if err := one.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	c.refused("OOM")
	c.until("an empty queue", func() bool { return len(c.runs) >= len(c.accepted) })
	if err := one.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	c.work(100)
	c.rest()
	c.finish(c.known())
}

// clusterCrew starts a crew on a cluster of its own.
func clusterCrew(t *testing.T, o *redis.Options) (*crew, *testserver.RedisClusterServer) {
	t.Helper()
	cluster := testserver.NewRedisCluster(t, nil)
	c := cluster.Client(nil)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return startCrew(t, open(t, c, o)), cluster
}

// TestPoolSlotMoves moves the slot of the queue to another node, twice. Calls fail
// between, and nothing is lost.
func TestPoolSlotMoves(t *testing.T) {
	c, cluster := clusterCrew(t, nil)
	c.work(100)
	for range 2 {
		if err := cluster.MoveSlot(t.Context(), "pawl:{default}:i", func() { c.refused("TRYAGAIN") }); err != nil {
			t.Fatal(err)
		}
		c.work(100)
	}
	c.rest()
	c.finish(c.known())
}

// TestPoolClusterDown ends a master and its replica, so that the cluster is down until
// they are back. A queue on another node waits too.
func TestPoolClusterDown(t *testing.T) {
	c, cluster := clusterCrew(t, nil)
	c.work(100)
	other := elsewhere(t, cluster, "pawl:{default}:i")
	for _, s := range cluster.Pair(other) {
		s.Kill()
	}
	c.refused("CLUSTERDOWN")
	for _, s := range cluster.Pair(other) {
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := cluster.Ready(); err != nil {
		t.Fatal(err)
	}
	c.work(100)
	c.rest()
	c.finish(c.known())
}

// elsewhere returns a master that does not have the key.
func elsewhere(t *testing.T, cluster *testserver.RedisClusterServer, key string) *testserver.RedisServer {
	t.Helper()
	has, err := cluster.MasterOf(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"a", "b", "c", "d"} { // of all three masters
		s, err := cluster.MasterOf(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		if s != has {
			return s
		}
	}
	t.Fatal("all keys are on one node")
	return nil
}

// replicated waits until the replica has all that the master has.
func replicated(t *testing.T, master *testserver.RedisServer, mark string) {
	t.Helper()
	one := master.Client(nil)
	defer one.Close()
	conn := one.Conn()
	defer conn.Close()
	if err := conn.Set(t.Context(), mark, 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Wait(t.Context(), 1, patience).Result(); err != nil || n < 1 {
		t.Fatalf("%d replicas have it: %v", n, err)
	}
}
