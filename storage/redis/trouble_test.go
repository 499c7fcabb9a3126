package redis_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
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

// TestPoolWritesRefused lets the server take no writes for a while, since it has too few
// replicas, or has failed to save.
func TestPoolWritesRefused(t *testing.T) {
	for word, o := range map[string]struct {
		begin, end func(*testing.T, *testserver.RedisServer, *client.Client)
	}{
		"NOREPLICAS": {
			func(t *testing.T, _ *testserver.RedisServer, c *client.Client) {
				configure(t, c, "min-replicas-to-write", "1")
			},
			func(t *testing.T, _ *testserver.RedisServer, c *client.Client) {
				configure(t, c, "min-replicas-to-write", "0")
			},
		},
		"MISCONF": {
			func(t *testing.T, s *testserver.RedisServer, c *client.Client) {
				configure(t, c, "save", "3600 1")
				save(t, s, c, 0o500, "err")
			},
			func(t *testing.T, s *testserver.RedisServer, c *client.Client) { save(t, s, c, 0o700, "ok") },
		},
	} {
		t.Run(word, func(t *testing.T) {
			c, server, one := serverCrew(t, nil)
			c.work(100)
			o.begin(t, server, one)
			c.refused(word)
			o.end(t, server, one)
			c.work(100)
			c.rest()
			c.finish(c.known())
		})
	}
}

func configure(t *testing.T, c *client.Client, name, value string) {
	t.Helper()
	if err := c.ConfigSet(t.Context(), name, value).Err(); err != nil {
		t.Fatal(err)
	}
}

// save makes a snapshot in a folder with these rights, and waits for what comes of it.
func save(t *testing.T, server *testserver.RedisServer, c *client.Client, rights os.FileMode, status string) {
	t.Helper()
	if err := os.Chmod(filepath.Dir(server.Addr()), rights); err != nil {
		t.Fatal(err)
	}
	if err := c.BgSave(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "status "+status+" of a snapshot", func() bool {
		info, err := c.Info(t.Context(), "persistence").Result()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(info, "rdb_last_bgsave_status:"+status) && strings.Contains(info, "rdb_bgsave_in_progress:0")
	})
}

// TestPoolHangs stops the server in its tracks, for longer than the client waits. What it
// had been asked it does later, for nobody.
func TestPoolHangs(t *testing.T) {
	server := testserver.NewRedis(t, &testserver.RedisOptions{Fsync: "always"})
	one := server.Client(&client.Options{ReadTimeout: time.Second})
	t.Cleanup(func() { _ = one.Close() })
	c := startCrew(t, open(t, one, nil))
	for range 2 {
		c.work(100)
		if err := server.Pause(); err != nil {
			t.Fatal(err)
		}
		c.refused("i/o") // on connections that are new
		if err := server.Resume(); err != nil {
			t.Fatal(err)
		}
	}
	c.work(100)
	c.rest()
	c.finish(c.known())
}

// TestPoolFlushed empties the database under a pool that has jobs in hand. It goes on with
// what comes later.
func TestPoolFlushed(t *testing.T) {
	for name, o := range map[string]*redis.Options{"whole": nil, "divided": {Shards: map[string]int{"default": testShards}}} {
		t.Run(name, func(t *testing.T) {
			one := connect(t, testserver.NewRedis(t, nil))
			c := startCrew(t, open(t, one, o))
			c.work(100)
			c.rest()
			mustEnqueue(t, c.s, requests(2000, pawl.Request{})...)
			c.work(10)
			if err := one.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			var ids []pawl.ID
			for range 20 {
				q := request(pawl.Request{})
				mustEnqueue(t, c.s, q)
				ids = append(ids, q.ID)
			}
			mustEnqueue(t, open(t, one, o), request(pawl.Request{})) // by who comes later
			c.finish(ids)
		})
	}
}

// TestPoolClients works through clients with settings that are not the library's own.
func TestPoolClients(t *testing.T) {
	server := testserver.NewRedis(t, nil)
	for name, o := range map[string]*client.Options{
		"RESP2":    {Protocol: 2},
		"one":      {PoolSize: 1, PoolTimeout: patience},
		"deadline": {ContextTimeoutEnabled: true, MaxRetries: -1, DB: 3},
	} {
		t.Run(name, func(t *testing.T) {
			one := server.Client(o)
			t.Cleanup(func() { _ = one.Close() })
			c := startCrew(t, open(t, one, &redis.Options{Prefix: name}))
			c.work(200)
			c.rest()
			c.finish(c.known())
		})
	}
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
