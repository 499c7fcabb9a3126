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
// cases use. Jobs go where their keys and IDs belong, or as place says.
func divided(c client.UniversalClient, place func(queue string, shards int) int) storagetest.Harness {
	shards := make(map[string]int)
	for _, queue := range []string{"default", "a", "b", "c", "a.b", "full", "none", "x", "y", "z"} {
		shards[queue] = testShards
	}
	prepare := func(s *redis.Store) pawl.Storage {
		s.Place(place)
		return s
	}
	h := storagetest.Harness{
		Open: func(t testing.TB, clock func() time.Time) pawl.Storage {
			prefix := fmt.Sprint("test", installations.Add(1))
			return prepare(open(t, c, &redis.Options{Prefix: prefix, Clock: clock, Shards: shards}))
		},
		Reopen: func(t testing.TB, s pawl.Storage, clock func() time.Time) pawl.Storage {
			return prepare(open(t, c, &redis.Options{Prefix: s.(*redis.Store).Prefix(), Clock: clock}))
		},
	}
	if place == nil {
		h.Part = func(q *pawl.Request) int { return redis.ShardOf(q, shards[q.Queue]) }
	}
	return h
}

// oneShard puts all jobs of a queue in one shard, which is not the first.
func oneShard(queue string, shards int) int { return (len(queue) + 1) % shards }

// TestShardedStorage runs the contract on divided queues, on one server.
func TestShardedStorage(t *testing.T) {
	storagetest.Run(t, divided(connect(t, testserver.Redis(t)), nil))
}

// TestShardedClusterStorage is TestShardedStorage where each shard needs a call of its
// own. What calls do to one job, which the table shows, is as it is there.
func TestShardedClusterStorage(t *testing.T) {
	c, _ := storageCluster(t)
	h := divided(c, nil)
	h.PartialEnqueue, h.SampledDepth = true, true
	h.Groups = []string{"rules", "watch", "concurrent", "model"}
	storagetest.Run(t, h)
}
