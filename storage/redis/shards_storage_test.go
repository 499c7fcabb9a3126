package redis_test

import (
	"fmt"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
	"github.com/pawlq/pawl/storage/storagetest"
)

// testShards is how many shards queues have in tests.
const testShards = 4

// divided is a harness whose storages have all queues divided that the contract's
// cases use. With one, all jobs of a queue are in one shard, which is not the first:
// order is then that of one queue, and all else that knows of shards is in use.
func divided(c client.UniversalClient, one bool) storagetest.Harness {
	shards := make(map[string]int)
	for _, queue := range []string{"default", "a", "b", "c", "a.b", "full", "none", "x", "y", "z"} {
		shards[queue] = testShards
	}
	prepare := func(s *redis.Store) pawl.Storage {
		if one {
			s.Place(func(queue string, n int) int { return (len(queue) + 1) % n })
		}
		return s
	}
	return storagetest.Harness{
		Open: func(t testing.TB, clock func() time.Time) pawl.Storage {
			prefix := fmt.Sprint("test", installations.Add(1))
			return prepare(open(t, c, &redis.Options{Prefix: prefix, Clock: clock, Shards: shards}))
		},
		Reopen: func(t testing.TB, s pawl.Storage, clock func() time.Time) pawl.Storage {
			return prepare(open(t, c, &redis.Options{Prefix: s.(*redis.Store).Prefix(), Clock: clock}))
		},
	}
}

func TestShardedStorage(t *testing.T) {
	storagetest.Run(t, divided(connect(t, testserver.Redis(t)), true))
}

// TestSpreadStorage spreads the jobs of each queue over its shards. The other groups
// have cases of the order between shards, and of an ID that is enqueued again under
// another key.
func TestSpreadStorage(t *testing.T) {
	h := divided(connect(t, testserver.Redis(t)), false)
	h.Groups = []string{"watch", "concurrent"}
	storagetest.Run(t, h)
}

// TestShardedClusterStorage is TestShardedStorage where each shard needs a call of its
// own.
func TestShardedClusterStorage(t *testing.T) {
	c := storageCluster(t)
	for name, one := range map[string]bool{"one": true, "spread": false} {
		t.Run(name, func(t *testing.T) {
			h := divided(c, one)
			h.PartialEnqueue = true
			if !one {
				h.SampledDepth, h.Groups = true, []string{"watch", "concurrent"}
			}
			storagetest.Run(t, h)
		})
	}
}
