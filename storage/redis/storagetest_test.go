package redis_test

import (
	"context"
	"fmt"
	"log/slog"
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

// installations numbers the prefixes of tests that share a server.
var installations atomic.Int64

func harness(c client.UniversalClient) storagetest.Harness {
	return storagetest.Harness{
		Open: func(t testing.TB, clock func() time.Time) pawl.Storage {
			return open(t, c, &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1)), Clock: clock})
		},
		Reopen: func(t testing.TB, s pawl.Storage, clock func() time.Time) pawl.Storage {
			return open(t, c, &redis.Options{Prefix: s.(*redis.Store).Prefix(), Clock: clock})
		},
	}
}

func TestStorage(t *testing.T) { storagetest.Run(t, harness(connect(t, testserver.Redis(t)))) }

// patience is for calls of 64 MiB on a machine that is busy with other tests.
const patience = 30 * time.Second

func connect(t testing.TB, s *testserver.RedisServer) *client.Client {
	t.Helper()
	c := s.Client(&client.Options{ReadTimeout: patience})
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func open(t testing.TB, c client.UniversalClient, o *redis.Options) *redis.Store {
	t.Helper()
	if o == nil {
		o = new(redis.Options)
	}
	if o.Logger == nil {
		o.Logger = slog.New(alarm{slog.DiscardHandler, t})
	}
	s, err := redis.New(context.Background(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// An alarm fails the test if Sweep finds something to put right where nobody has
// damaged anything. Other warnings, such as that the shared server keeps nothing,
// do not matter.
type alarm struct {
	slog.Handler
	t testing.TB
}

func (a alarm) Enabled(context.Context, slog.Level) bool { return true }

func (a alarm) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "put right") {
		a.t.Error(r.Message)
	}
	return nil
}

// TestClusterStorage runs the contract on a cluster, where an Enqueue is atomic
// for each queue only. In the middle each master hands over to its replica, which
// nobody must notice.
func TestClusterStorage(t *testing.T) {
	c, cluster := storageCluster(t)
	h := handingOver(t, harness(c), cluster, 100)
	h.PartialEnqueue = true
	storagetest.Run(t, h)
}

// TestFlushedStorage runs the contract while the server's cache of scripts is emptied
// all the time. The cases of the table run no other scripts.
func TestFlushedStorage(t *testing.T) {
	c := connect(t, testserver.NewRedis(t, nil))
	h := harness(c)
	h.Groups = []string{"rules", "watch", "concurrent", "model"}
	flushScripts(t, c)
	storagetest.Run(t, h)
}

// storageCluster starts a cluster and connects to it.
func storageCluster(t *testing.T) (*client.ClusterClient, *testserver.RedisClusterServer) {
	t.Helper()
	// A node that is busy with 64 MiB must not pass for one that has failed.
	server := testserver.NewRedisCluster(t, &testserver.RedisOptions{
		Fsync: "off", Settings: map[string]string{"cluster-node-timeout": "60000"},
	})
	c := server.Client(&client.ClusterOptions{ReadTimeout: patience})
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, server
}
