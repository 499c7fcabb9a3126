package redis_test

import (
	"testing"

	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/internal/workertest"
)

func TestWorker(t *testing.T) { workertest.Run(t, harness(connect(t, testserver.Redis(t)))) }

// TestClusterWorker runs pools on a cluster, on whole and on divided queues. Some cases
// know which jobs come first, so that those of a queue are in one shard.
func TestClusterWorker(t *testing.T) {
	c, _ := storageCluster(t)
	t.Run("whole", func(t *testing.T) { workertest.Run(t, harness(c)) })
	t.Run("divided", func(t *testing.T) { workertest.Run(t, divided(c, oneShard)) })
}
