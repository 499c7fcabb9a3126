package task_test

import (
	"context"
	"fmt"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

// Resize is a kind of job, and Size its result.
type Resize struct{ Width, Height, To int }

func (Resize) Kind() string { return "resize" }

func (Resize) Defaults() pawl.Request { return pawl.Request{Queue: "pictures", MaxAttempts: 5} }

type Size struct{ Width, Height int }

// The whole way from Args to result.
func Example() {
	store := memory.New(nil)
	defer store.Close()
	q := pawl.New(store, nil)

	tasks := task.NewMux()
	task.RegisterResult(tasks, func(ctx context.Context, job *task.Job[Resize]) (Size, error) {
		a := job.Args
		return Size{a.To, a.Height * a.To / a.Width}, nil
	})
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- worker.New(q, tasks, nil).Run(ctx) }()

	receipt, err := q.Enqueue(ctx, task.New(Resize{Width: 800, Height: 600, To: 200}))
	if err != nil {
		fmt.Println(err)
	}
	size, err := task.Wait[Size](ctx, q, receipt)
	fmt.Println(size, err)

	stop()
	fmt.Println(<-stopped)
	// Output:
	// {200 150} <nil>
	// <nil>
}
