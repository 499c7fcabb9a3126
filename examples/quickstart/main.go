// Quickstart enqueues one job in a SQLite file, runs it and stops, as it would
// at Ctrl-C.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

// Welcome greets a user who has signed up.
type Welcome struct{ UserID int64 }

func (Welcome) Kind() string { return "welcome" }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	store, err := sqlite.Open(ctx, "quickstart.db", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	q := pawl.New(store, nil)

	tasks := task.NewMux()
	task.Register(tasks, func(ctx context.Context, job *task.Job[Welcome]) error {
		fmt.Println("welcome, user", job.Args.UserID)
		stop()
		return nil
	})

	if _, err := q.Enqueue(ctx, task.New(Welcome{UserID: 7})); err != nil {
		log.Fatal(err)
	}
	if err := worker.New(q, tasks, nil).Run(ctx); err != nil {
		log.Fatal(err)
	}
}
