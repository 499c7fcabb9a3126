package redis_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"testing"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

type Welcome struct{ User int64 }

func (Welcome) Kind() string { return "welcome" }

// The client is the program's own: for a cluster it comes from NewClusterClient, for
// Sentinel from NewFailoverClient. Here the first job ends the pool.
func ExampleNew() {
	ctx := context.Background()
	options, err := client.ParseURL(os.Getenv("REDIS_URL")) // such as redis://localhost:6379/0
	if err != nil {
		log.Fatal(err)
	}
	rdb := client.NewClient(options)
	defer rdb.Close()
	store, err := redis.New(ctx, rdb, &redis.Options{Prefix: "example"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	q := pawl.New(store, nil)
	if _, err := q.Enqueue(ctx, task.New(Welcome{User: 7})); err != nil {
		log.Fatal(err)
	}

	ctx, stop := context.WithCancel(ctx)
	tasks := task.NewMux()
	task.Register(tasks, func(_ context.Context, job *task.Job[Welcome]) error {
		fmt.Println("welcome,", job.Args.User)
		stop()
		return nil
	})
	if err := worker.New(q, tasks, nil).Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func TestExample(t *testing.T) {
	server := testserver.NewRedis(t, nil)
	t.Setenv("REDIS_URL", "unix://"+server.Addr())
	ExampleNew()
	wantStats(t, open(t, connect(t, server), &redis.Options{Prefix: "example"}), pawl.QueueStats{Completed: 1})
}
