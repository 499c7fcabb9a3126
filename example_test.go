package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
)

// A job controlled by hand. Most programs let a worker.Pool do this.
func Example() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), nil)

	receipt, err := q.Enqueue(ctx, &pawl.Request{Kind: "welcome", Payload: []byte("7")})
	if err != nil {
		panic(err)
	}
	fmt.Println(receipt.Status)

	job, err := q.Claim(ctx, nil) // waits for one
	if err != nil {
		panic(err)
	}
	fmt.Println(job.Kind, string(job.Payload), "attempt", job.Attempt)
	fmt.Println(q.Ack(ctx, job, nil))
	// Output:
	// stored
	// welcome 7 attempt 1
	// <nil>
}

// A failed job waits for its next attempt as the backoff says; the failure is
// kept with it.
func ExampleQueue_Nack() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), &pawl.Options{Backoff: pawl.Constant(time.Minute)})
	receipt, _ := q.Enqueue(ctx, &pawl.Request{Kind: "sync"})

	job, _ := q.Claim(ctx, nil)
	_ = q.Nack(ctx, job, errors.New("connection refused"))

	job, _ = q.Get(ctx, receipt.Queue, receipt.ID)
	fmt.Println(job.State, job.Reason, job.Failures[0].Error)
	// Output: scheduled retry connection refused
}

// Jobs that can't succeed wait in the dead-letter queue until they are kicked
// or deleted.
func ExampleQueue_KickAll() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), nil)
	for range 3 {
		_, _ = q.Enqueue(ctx, &pawl.Request{Kind: "invoice"})
		job, _ := q.Claim(ctx, nil)
		_ = q.Bury(ctx, job, errors.New("no such customer"))
	}

	n, err := q.KickAll(ctx, pawl.Filter{Kind: "invoice"}, 2)
	fmt.Println(n, err)
	stats, _ := q.Stats(ctx)
	fmt.Println(stats[0].Ready, "ready,", stats[0].Buried, "buried")
	// Output:
	// 2 <nil>
	// 2 ready, 1 buried
}

// Of the requests with one unique key, one is stored.
func ExampleRequest_uniqueKey() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), nil)
	for range 2 {
		receipt, _ := q.Enqueue(ctx, &pawl.Request{Kind: "report", UniqueKey: "report:2026-11"})
		fmt.Println(receipt.Status)
	}
	// Output:
	// stored
	// duplicate
}

// Wait for a job to end and read its result.
// A queue that holds two waiting jobs refuses the third, or lets it wait for room.
func ExampleOptions_depth() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), &pawl.Options{Depth: map[string]int{"mail": 2}})
	mail := func(ctx context.Context, whenFull pawl.WhenFull) error {
		_, err := q.Enqueue(ctx, &pawl.Request{Queue: "mail", Kind: "welcome", WhenFull: whenFull})
		return err
	}
	for range 3 {
		err := mail(ctx, pawl.Reject) // which is the default
		fmt.Println(err, errors.Is(err, pawl.ErrFull))
	}

	// A waiting enqueue whose context ends gets ErrFull as well: nothing was stored.
	done := make(chan error)
	go func() { done <- mail(ctx, pawl.Block) }()
	_, err := q.Claim(ctx, &pawl.ClaimOptions{Queues: []string{"mail"}}) // makes room, as a worker does
	fmt.Println(err, <-done)
	// Output:
	// <nil> false
	// <nil> false
	// pawl: queue is full: "mail" holds 2 waiting jobs true
	// <nil> <nil>
}

func ExampleQueue_Wait() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), nil)
	receipt, _ := q.Enqueue(ctx, &pawl.Request{Kind: "sum", Payload: []byte("1+1")})

	go func() {
		job, _ := q.Claim(ctx, nil)
		_ = q.Ack(ctx, job, []byte("2"))
	}()

	jobs, err := q.Wait(ctx, receipt.Queue, receipt.ID)
	fmt.Println(jobs[0].State, string(jobs[0].Result), err)
	// Output: completed 2 <nil>
}

// Report progress and keep the lease of a long job.
func ExampleQueue_Extend() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), nil)
	receipt, _ := q.Enqueue(ctx, &pawl.Request{Kind: "import"})
	job, _ := q.Claim(ctx, nil)

	_ = q.Extend(ctx, job, &pawl.ExtendOptions{
		Progress: &pawl.Progress{Percent: 50, Stage: "rows", Counters: map[string]int64{"read": 500}},
	})

	job, _ = q.Get(ctx, receipt.Queue, receipt.ID)
	fmt.Println(job.Progress.Percent, job.Progress.Stage, job.Progress.Counters["read"])
	// Output: 50 rows 500
}

func ExampleExponential() {
	b := pawl.Exponential{Base: time.Second, Max: time.Minute}
	for attempt := range 3 {
		floor := time.Second << attempt
		d := b.Delay(attempt+1, nil)
		fmt.Println(floor <= d && d <= floor+time.Second)
	}
	fmt.Println(b.Delay(100, nil))
	// Output:
	// true
	// true
	// true
	// 1m0s
}

func ExampleBackoffFunc() {
	busy := errors.New("busy")
	b := pawl.BackoffFunc(func(attempt int, err error) time.Duration {
		if errors.Is(err, busy) {
			return 5 * time.Second
		}
		return time.Duration(attempt) * time.Minute
	})
	fmt.Println(b.Delay(3, busy), b.Delay(3, errors.New("other")))
	// Output: 5s 3m0s
}
