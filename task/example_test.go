package task_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/task/tasktest"
)

// Greet is the kind of job of the examples.
type Greet struct{ Name string }

func (Greet) Kind() string { return "greet" }

// Reminder says how its jobs are enqueued.
type Reminder struct{ Email string }

func (Reminder) Kind() string { return "reminder" }

func (r Reminder) Defaults() pawl.Request {
	return pawl.Request{
		Queue:       "mail",
		MaxAttempts: 5,
		StartBefore: time.Now().Add(time.Hour), // too late to be of use
		UniqueKey:   task.UniqueByArgs(r),
	}
}

// Upload is enqueued as it is.
type Upload []byte

func (Upload) Kind() string      { return "upload" }
func (Upload) Codec() task.Codec { return task.Raw{} }

// Order refuses what it does not know.
type Order struct{ Item string }

func (Order) Kind() string      { return "order" }
func (Order) Codec() task.Codec { return task.JSON{DisallowUnknownFields: true} }

func ExampleNew() {
	r := task.New(Greet{Name: "Ada"})
	r.Delay = time.Minute
	fmt.Printf("%s %s in %v\n", r.Kind, r.Payload, r.Delay)
	// Output: greet {"Name":"Ada"} in 1m0s
}

func ExampleDefaulter() {
	q := pawl.New(memory.New(nil), nil)
	for _, email := range []string{"ada@example.org", "bob@example.org", "ada@example.org"} {
		receipt, err := q.Enqueue(context.Background(), task.New(Reminder{email}))
		fmt.Println(receipt.Queue, receipt.Status, err)
	}
	// Output:
	// mail stored <nil>
	// mail stored <nil>
	// mail duplicate <nil>
}

func ExampleUniqueByArgs() {
	key := task.UniqueByArgs(Greet{"Ada"})
	fmt.Println(key)
	fmt.Println(key == task.UniqueByArgs(Greet{"Bob"}))
	// Output:
	// greet:UbisVMAajGZ1OmQExPC8FjP-48eD9hUr522b4ZalDUQ
	// false
}

func ExampleRegister() {
	tasks := task.NewMux()
	task.Register(tasks, func(ctx context.Context, job *task.Job[Greet]) error {
		if job.Args.Name == "" {
			return pawl.Permanent(errors.New("nobody to greet")) // no attempt will help
		}
		fmt.Println("Hello", job.Args.Name)
		return nil
	})
	// Now worker.New(q, tasks, nil).Run(ctx) runs the jobs of q.
	for _, k := range tasks.Kinds() {
		fmt.Println(k.Name)
	}
	// Output: greet
}

func ExampleOptions() {
	tasks := task.NewMux()
	task.Register(tasks, func(ctx context.Context, job *task.Job[Greet]) error {
		return errors.New("nobody at home")
	}, &task.Options[Greet]{
		Timeout: time.Minute,
		Backoff: pawl.Constant(10 * time.Second),
		OnError: func(ctx context.Context, job *task.Job[Greet], err error) {
			fmt.Printf("attempt %d to greet %s: %v\n", job.Attempt, job.Args.Name, err)
		},
	})
	job, err := tasktest.Job(task.New(Greet{"Ada"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = tasktest.RunJob(context.Background(), tasks, job)
	fmt.Println(err)
	// Output:
	// attempt 1 to greet Ada: nobody at home
	// nobody at home
}

func ExampleRegisterResult() {
	tasks := task.NewMux()
	task.RegisterResult(tasks, func(ctx context.Context, job *task.Job[Greet]) (string, error) {
		return "Hello " + job.Args.Name, nil
	})
	job, err := tasktest.Job(task.New(Greet{"Ada"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := tasktest.RunJob(context.Background(), tasks, job)
	fmt.Println(string(result), err)
	// Output: "Hello Ada" <nil>
}

func ExampleMux_Use() {
	tasks := task.NewMux()
	tasks.Use(func(next task.Handler) task.Handler {
		return func(ctx context.Context, job *pawl.Job) ([]byte, error) {
			fmt.Println("begin", job.Kind)
			result, err := next(ctx, job)
			fmt.Println("end", job.Kind, err)
			return result, err
		}
	})
	task.Register(tasks, func(ctx context.Context, job *task.Job[Greet]) error {
		fmt.Println("Hello", job.Args.Name)
		return nil
	})
	job, err := tasktest.Job(task.New(Greet{"Ada"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := tasktest.RunJob(context.Background(), tasks, job); err != nil {
		fmt.Println(err)
	}
	// Output:
	// begin greet
	// Hello Ada
	// end greet <nil>
}

func ExampleMux_Handle() {
	tasks := task.NewMux()
	tasks.Handle(pawl.Kind{ // without a name: what has no handler of its own
		Run: func(ctx context.Context, job *pawl.Job) ([]byte, error) {
			return nil, fmt.Errorf("nobody knows how to %s", job.Kind)
		},
	})
	job, err := tasktest.Job(task.New(Greet{"Ada"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = tasktest.RunJob(context.Background(), tasks, job)
	fmt.Println(err)
	// Output: nobody knows how to greet
}

func ExampleDecode() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), nil)
	if _, err := q.Enqueue(ctx, task.New(Greet{"Ada"})); err != nil {
		fmt.Println(err)
	}
	claimed, err := q.Claim(ctx, nil) // by hand, without a worker
	if err != nil {
		fmt.Println(err)
		return
	}
	job, err := task.Decode[Greet](claimed)
	if err != nil {
		fmt.Println(q.Bury(ctx, claimed, err))
		return
	}
	fmt.Println("Hello", job.Args.Name)
	fmt.Println(q.Ack(ctx, job.Job, nil))
	// Output:
	// Hello Ada
	// <nil>
}

func ExampleDecodeError() {
	_, err := task.Decode[Greet](&pawl.Job{Kind: "greet", Payload: []byte(`{"Name": 12345}`)})
	fmt.Println(err) // never quotes the payload
	// Output: task: payload of kind "greet" (15 bytes) does not decode: JSON number at byte 14 does not fit Go type string of field "Name"
}

func ExampleEncodeError() {
	q := pawl.New(memory.New(nil), nil)
	_, err := q.Enqueue(context.Background(), task.New(Callback{Call: func() {}}))
	var e *task.EncodeError
	fmt.Println(errors.As(err, &e), e)
	// Output: true task: a value of type task_test.Callback does not encode: JSON has no form for type func()
}

// Callback can't be enqueued.
type Callback struct{ Call func() }

func (Callback) Kind() string { return "callback" }

func ExampleRaw() {
	r := task.New(Upload("\x89PNG"))
	fmt.Printf("%q\n", r.Payload)
	// Output: "\x89PNG"
}

func ExampleJSON() {
	_, err := task.Decode[Order](&pawl.Job{Kind: "order", Payload: []byte(`{"Item": "tea", "Cups": 2}`)})
	fmt.Println(err)
	// Output: task: payload of kind "order" (26 bytes) does not decode: a field that the type lacks
}

// Shout is stored in capitals.
type Shout string

func (Shout) Kind() string      { return "shout" }
func (Shout) Codec() task.Codec { return upper{} }

// upper is a codec around another, as one that encrypts would be.
type upper struct{ task.Raw }

func (u upper) Encode(v any) ([]byte, error) {
	data, err := u.Raw.Encode(v)
	return []byte(strings.ToUpper(string(data))), err
}

func ExampleCoder() {
	fmt.Printf("%s\n", task.New(Shout("hello")).Payload)
	// Output: HELLO
}

func ExampleWait() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), nil)
	receipt, err := q.Enqueue(ctx, task.New(Greet{"Ada"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	job, err := q.Claim(ctx, nil) // what a worker does
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := q.Ack(ctx, job, []byte(`"Hello Ada"`)); err != nil {
		fmt.Println(err)
	}
	greeting, err := task.Wait[string](ctx, q, receipt)
	fmt.Println(greeting, err)
	// Output: Hello Ada <nil>
}

func ExampleResult() {
	greeting, err := task.Result[string](&pawl.Job{State: pawl.Completed, Result: []byte(`"Hello Ada"`)})
	fmt.Println(greeting, err)
	// Output: Hello Ada <nil>
}

func ExampleErr() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), nil)
	receipt, err := q.Enqueue(ctx, task.New(Greet{"Ada"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := q.Cancel(ctx, receipt.Queue, receipt.ID); err != nil {
		fmt.Println(err)
	}
	jobs, err := q.Wait(ctx, receipt.Queue, receipt.ID)
	if err != nil {
		fmt.Println(err)
		return
	}
	var failed *task.FailedError
	if errors.As(task.Err(jobs[0]), &failed) {
		fmt.Println(failed.Kind, failed.State, failed.Reason)
	}
	// Output: greet canceled cancel
}

func ExampleEncodeResult() {
	data, err := task.EncodeResult(map[string]int{"width": 200})
	// In the handler: tx.Ack(ctx, job.Job, data)
	fmt.Println(string(data), err)
	// Output: {"width":200} <nil>
}
