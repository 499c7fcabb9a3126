package redis_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
	"github.com/pawlq/pawl/storage/storagetest"
)

// failOver makes the replica of a node the master in its place. Without "force" the
// two agree on it and nothing is lost; with it the replica does not ask the master.
func failOver(t testing.TB, cluster *testserver.RedisClusterServer, master *testserver.RedisServer, how ...any) {
	t.Helper()
	replica := cluster.Pair(master)[1]
	c := replica.Client(nil)
	defer c.Close()
	knownReplica(t, cluster, replica)
	if err := c.Do(t.Context(), append([]any{"cluster", "failover"}, how...)...).Err(); err != nil {
		t.Fatal(err)
	}
	for end := time.After(patience); ; {
		role, err := c.Do(t.Context(), "role").Slice()
		if err == nil && len(role) > 0 && role[0] == "master" {
			return
		}
		select {
		case <-end:
			t.Fatalf("the replica is not the master: %v, %v", role, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// knownReplica waits until all nodes know that one is a replica: else they would not
// vote for it.
func knownReplica(t testing.TB, cluster *testserver.RedisClusterServer, replica *testserver.RedisServer) {
	t.Helper()
	c := cluster.Client(nil)
	defer c.Close()
	known := func(ctx context.Context, one *client.Client) error {
		nodes, err := one.ClusterNodes(ctx).Result()
		for line := range strings.Lines(nodes) {
			if strings.Contains(line, replica.Addr()+"@") && strings.Contains(line, "slave") {
				return err
			}
		}
		return fmt.Errorf("%v does not know the replica: %w", one, err)
	}
	for end := time.After(patience); ; {
		err := c.ForEachShard(t.Context(), known)
		if err == nil {
			return
		}
		select {
		case <-end:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// mastersOf returns the three masters of a cluster.
func mastersOf(t *testing.T, cluster *testserver.RedisClusterServer) []*testserver.RedisServer {
	t.Helper()
	first, err := cluster.MasterOf(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	second := elsewhere(t, cluster, "a")
	for _, key := range []string{"b", "c", "d"} {
		if third, err := cluster.MasterOf(t.Context(), key); err != nil {
			t.Fatal(err)
		} else if third != first && third != second {
			return []*testserver.RedisServer{first, second, third}
		}
	}
	t.Fatal("two nodes have all keys")
	return nil
}

// handingOver lets each master hand over to its replica while cases run, one after
// every so many storages.
func handingOver(t *testing.T, h storagetest.Harness, cluster *testserver.RedisClusterServer, every int64) storagetest.Harness {
	t.Helper()
	masters, opened, done := mastersOf(t, cluster), new(atomic.Int64), new(atomic.Int64)
	open := h.Open
	h.Open = func(t testing.TB, clock func() time.Time) pawl.Storage {
		t.Helper()
		if n := opened.Add(1); n%every == 0 && n/every <= int64(len(masters)) {
			failOver(t, cluster, masters[n/every-1])
			done.Add(1)
		}
		return open(t, clock)
	}
	t.Cleanup(func() {
		if n := done.Load(); n != int64(len(masters)) {
			t.Errorf("%d masters have handed over, want %d", n, len(masters))
		}
	})
	return h
}

// A loss is what a failover may have done to jobs that were accepted before it: no job
// that the replica had is lost, and one that it had as completed does not run again.
type loss struct {
	kept []pawl.ID
	runs map[pawl.ID]int // of those that were completed
}

// before returns what must outlive a failover of a node that has some of the jobs.
func (c *crew) before(master *testserver.RedisServer, mark string) loss {
	c.t.Helper()
	l := loss{kept: c.known(), runs: make(map[pawl.ID]int)}
	for _, j := range c.jobs(l.kept) {
		if j != nil && j.State == pawl.Completed {
			l.runs[j.ID] = 0
		}
	}
	replicated(c.t, master, mark)
	c.note(func() {
		for id := range l.runs {
			l.runs[id] = c.runs[id]
		}
	})
	return l
}

// TestPoolHandover lets a master hand over to its replica under a pool: all that was
// accepted, before and meanwhile, completes, and no run goes uncounted.
func TestPoolHandover(t *testing.T) {
	for name, o := range failoverOptions() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, cluster := clusterCrew(t, o)
			for range 2 { // there and back
				c.work(100)
				master, err := cluster.MasterOf(t.Context(), failoverKey(o))
				if err != nil {
					t.Fatal(err)
				}
				failOver(t, cluster, master)
			}
			c.work(100)
			c.rest()
			c.finish(c.known())
			if n := c.missing(); n > 0 {
				t.Errorf("%d of %d accepted jobs are not there", n, len(c.known()))
			}
		})
	}
}

func failoverOptions() map[string]*redis.Options {
	return map[string]*redis.Options{"whole": nil, "divided": {Shards: map[string]int{"default": testShards}}}
}

// failoverKey is a key on the node that fails.
func failoverKey(o *redis.Options) string {
	if o != nil {
		return "pawl:{default#0}:x"
	}
	return "pawl:{default}:x"
}

// TestPoolFailover takes the master from a pool: it is killed, or its replica takes
// over without asking it. What the replica had is kept, and the pool goes on by itself.
func TestPoolFailover(t *testing.T) {
	for name, o := range failoverOptions() {
		for _, how := range []string{"killed", "forced"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				c, cluster := clusterCrew(t, o)
				c.work(100)
				key := failoverKey(o)
				master, err := cluster.MasterOf(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				kept := c.before(master, key+"-mark")
				c.failovers++
				if how == "forced" {
					failOver(t, cluster, master, "force")
				} else {
					master.Kill()
					c.work(100)
					if err := master.Start(); err != nil {
						t.Fatal(err)
					}
				}
				if err := cluster.Ready(); err != nil {
					t.Fatal(err)
				}
				c.work(100)
				c.rest()
				c.finish(kept.kept)
				for id, n := range kept.runs {
					if c.runs[id] != n {
						t.Errorf("job %v had completed and ran again, %d times", id, c.runs[id]-n)
					}
				}
				t.Logf("%d of the %d jobs accepted before the failover and after were not there", c.missing(), len(c.known()))
			})
		}
	}
}
