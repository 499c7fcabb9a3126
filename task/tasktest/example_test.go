package tasktest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/task/tasktest"
	"github.com/pawlq/pawl/worker"
)

// Greet is the kind of job of the examples.
type Greet struct{ Name string }

func (Greet) Kind() string { return "greet" }

func greet(ctx context.Context, job *task.Job[Greet]) error {
	if job.Args.Name == "" {
		return errors.New("nobody to greet")
	}
	fmt.Println("Hello", job.Args.Name)
	return nil
}

func ExampleRun() {
	ctx := context.Background() // in a test: t.Context()
	fmt.Println(tasktest.Run(ctx, greet, Greet{"Ada"}))
	fmt.Println(tasktest.Run(ctx, greet, Greet{}))
	// Output:
	// Hello Ada
	// <nil>
	// nobody to greet
}

// A handler that reports progress, or acks its job in a transaction of its own,
// needs a job that is stored.
func Example_stored() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), nil)
	tasks := task.NewMux()
	task.Register(tasks, func(ctx context.Context, job *task.Job[Greet]) error {
		fmt.Println("Hello", job.Args.Name)
		return worker.Progress(ctx, &pawl.Progress{Percent: 100})
	})
	ran, err := worker.RunOne(ctx, q, tasks, task.New(Greet{"Ada"}))
	fmt.Println(ran.Verb, ran.Err, err)
	// Output:
	// Hello Ada
	// ack <nil> <nil>
}

func ExampleRunResult() {
	length := func(ctx context.Context, job *task.Job[Greet]) (int, error) { return len(job.Args.Name), nil }
	fmt.Println(tasktest.RunResult(context.Background(), length, Greet{"Ada"}))
	// Output: 3 <nil>
}

func ExampleRunJob() {
	tasks := task.NewMux()
	task.Register(tasks, greet, &task.Options[Greet]{
		OnBury: func(ctx context.Context, job *task.Job[Greet], err error) { fmt.Println("buried:", err) },
	})
	job, err := tasktest.Job(task.New(Greet{}))
	if err != nil {
		fmt.Println(err)
		return
	}
	job.Attempt = job.MaxAttempts // the last one
	_, err = tasktest.RunJob(context.Background(), tasks, job)
	fmt.Println(err)
	// Output:
	// buried: nobody to greet
	// nobody to greet
}

func ExampleAssertEnqueued() {
	t := new(printingTB) // in a test: its *testing.T
	q := pawl.New(memory.New(nil), nil)
	if _, err := q.Enqueue(t.Context(), task.New(Greet{"Ada"})); err != nil {
		t.Fatalf("%v", err)
	}
	job := tasktest.AssertEnqueued(t, q, func(g Greet) bool { return g.Name == "Ada" })
	fmt.Println(job.Args.Name, job.Priority)
	tasktest.RefuteEnqueued(t, q, func(g Greet) bool { return g.Name == "Bob" })
	tasktest.RefuteEnqueued(t, q, func(g Greet) bool { return g.Name != "" })
	// Output:
	// Ada 0
	// tasktest: a job of kind "greet" matches: {Name:Ada}; enqueued:
	// 	kind "greet", queue "default", ready, tasktest_test.Greet{Name:Ada}
}

// What was enqueued is seen before the commit, by a Recorder, and asked for in the
// transaction itself.
func ExampleAssertEnqueuedTx() {
	t := new(printingTB)                         // in a test: its *testing.T
	folder, err := os.MkdirTemp("", "tasktest-") // in a test: t.TempDir()
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer os.RemoveAll(folder)
	store, err := sqlite.Open(t.Context(), filepath.Join(folder, "test.db"), nil)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer store.Close()

	var rec tasktest.Recorder
	q := pawl.New(store, &pawl.Options{Middleware: []pawl.EnqueueMiddleware{rec.Middleware}})
	err = store.InTx(t.Context(), func(tx *sql.Tx, w pawl.Writer) error {
		qtx := q.WithTx(w)
		if _, err := qtx.Enqueue(t.Context(), task.New(Greet{"Ada"})); err != nil { // or what is tested
			return err
		}
		job := tasktest.AssertEnqueuedTx(t, qtx, &rec, func(g Greet) bool { return g.Name == "Ada" })
		fmt.Println(job.Args.Name, job.State)
		return nil
	})
	job := tasktest.AssertCommitted[Greet](t, q, &rec, nil)
	fmt.Println(job.Args.Name, err)
	// Output:
	// Ada ready
	// Ada <nil>
}

func ExampleEnqueued() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), nil)
	if _, err := q.Enqueue(ctx, task.New(Greet{"Ada"})); err != nil {
		fmt.Println(err)
	}
	jobs, err := tasktest.Enqueued[Greet](ctx, q, pawl.Filter{Queue: pawl.DefaultQueue})
	for _, job := range jobs {
		fmt.Println(job.Args.Name, job.State)
	}
	fmt.Println(err)
	// Output:
	// Ada ready
	// <nil>
}

func ExampleRecorder() {
	var rec tasktest.Recorder
	q := pawl.New(memory.New(nil), &pawl.Options{
		Middleware: []pawl.EnqueueMiddleware{rec.Middleware},
	})
	// It records q.WithTx(tx).Enqueue too, before tx is committed.
	if _, err := q.Enqueue(context.Background(), task.New(Greet{"Ada"})); err != nil {
		fmt.Println(err)
	}
	jobs, err := tasktest.Recorded[Greet](&rec)
	for _, job := range jobs {
		fmt.Println(job.Args.Name)
	}
	fmt.Println(err)
	// In a test: tasktest.AssertRecorded(t, &rec, func(g Greet) bool { ... })

	// Output:
	// Ada
	// <nil>
}

// An outbox is a fake of what sends mail.
type outbox struct{ sent []string }

func (o *outbox) send(ctx context.Context, to string) {
	o.sent = append(o.sent, to)
	tasktest.Effect(ctx, "send")
}

// The handler sends a mail each time it runs.
func ExampleIdempotent() {
	t := new(printingTB) // in a test: its *testing.T
	tasktest.Idempotent(t, func(c *tasktest.Chaos) []string {
		var o outbox
		tasks := task.NewMux()
		task.Register(tasks, func(ctx context.Context, job *task.Job[Greet]) error {
			o.send(ctx, job.Args.Name)
			return nil
		})
		q := pawl.New(memory.New(nil), nil)
		if _, err := q.Enqueue(t.Context(), task.New(Greet{"Ada"})); err != nil {
			t.Fatalf("%v", err)
		}
		if _, err := worker.Drain(t.Context(), q, tasks, &worker.DrainOptions{
			Middleware: []worker.Middleware{c.Middleware},
		}); err != nil {
			t.Fatalf("%v", err)
		}
		return o.sent
	})
	// Output:
	// tasktest: not idempotent: each job was run to its end twice:
	//	got  [Ada Ada]
	//	want [Ada], as after the first call
}

// printingTB stands for a testing.T in examples.
type printingTB struct{ failed bool }

func (*printingTB) Helper()                  {}
func (*printingTB) Context() context.Context { return context.Background() }
func (t *printingTB) Fatalf(format string, args ...any) {
	if !t.failed {
		fmt.Printf(format+"\n", args...)
	}
	t.failed = true
}
