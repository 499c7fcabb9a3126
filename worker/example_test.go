package worker_test

import (
	"context"
	"encoding/json"
	"expvar"
	"fmt"
	"slices"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/worker"
)

func greet(context.Context, *pawl.Job) error { return nil }

// The queues share ten slots: of ten jobs that start, six are mails, three
// thumbnails and one a report, as long as there are that many.
func ExampleQueue_weight() {
	q := pawl.New(memory.New(nil), nil)
	p := worker.New(q, worker.Func(greet), &worker.Options{
		Concurrency: 10,
		Queues: []worker.Queue{
			{Name: "mail", Weight: 6},
			{Name: "thumbnails", Weight: 3},
			{Name: "reports", Weight: 1},
		},
	})
	// Later, from an admin page or a signal:
	fmt.Println(p.SetConcurrency("mail", 50), p.Stats().Slots)
	// Output: <nil> 50
}

// What a pool has done, and how its queues are, under /debug/vars.
func ExamplePool_Stats() {
	ctx := context.Background()
	q := pawl.New(memory.New(nil), nil)
	p := worker.New(q, worker.Func(greet), &worker.Options{CountEvery: 15 * time.Second})
	expvar.Publish("pawl", expvar.Func(func() any {
		s := p.Stats()
		return struct {
			worker.Stats
			ClaimBatch, SettleBatch float64
		}{s, s.ClaimBatch(), s.SettleBatch()}
	}))

	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	receipt, err := q.Enqueue(ctx, &pawl.Request{Kind: "greet"})
	if err == nil {
		_, err = q.Wait(ctx, "", receipt.ID)
	}
	fmt.Println(err, p.Stop(ctx), <-ended)

	var s map[string]any
	if err := json.Unmarshal([]byte(expvar.Get("pawl").String()), &s); err != nil {
		fmt.Println(err)
	}
	for _, name := range []string{"Completed", "Lost", "Rescued", "SettleBatch"} {
		fmt.Println(name, s[name])
	}
	// Beside those, of each queue: OldestReady, Retrying, Buried and others.
	// Output:
	// <nil> <nil> <nil>
	// Completed 1
	// Lost 0
	// Rescued 0
	// SettleBatch 1
}

// Events of a pool, and of what is enqueued through its Queue, for a metric.
func ExampleEvents() {
	ctx := context.Background()
	var events worker.Events
	sub := events.Subscribe(&worker.SubscribeOptions{
		Types: []worker.EventType{worker.EventEnqueued, worker.EventStarted, worker.EventCompleted},
	})
	defer sub.Close()

	q := pawl.New(memory.New(nil), &pawl.Options{Middleware: []pawl.EnqueueMiddleware{events.Enqueue}})
	p := worker.New(q, worker.Func(greet), &worker.Options{Events: &events})
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	if _, err := q.Enqueue(ctx, &pawl.Request{Kind: "greet"}); err != nil {
		fmt.Println(err)
	}
	var types []worker.EventType
	for range 3 {
		e, err := sub.Next(ctx)
		if err != nil {
			fmt.Println(err)
		}
		types = append(types, e.Type)
	}
	slices.Sort(types) // an enqueue may be told when the job has started
	fmt.Println(types, sub.Dropped())
	fmt.Println(p.Stop(ctx), <-ended)
	// Output:
	// [enqueued started completed] map[]
	// <nil> <nil>
}

// An alarm when two jobs or more wait in a queue, and its end.
func ExampleSubscribeOptions_depth() {
	ctx := context.Background()
	var events worker.Events
	sub := events.Subscribe(&worker.SubscribeOptions{Types: []worker.EventType{worker.EventDepth}, Depth: 2})
	defer sub.Close()

	q := pawl.New(memory.New(nil), nil)
	p := worker.New(q, worker.Func(greet), &worker.Options{Events: &events, CountEvery: 10 * time.Millisecond})
	var ids []pawl.ID
	for range 3 {
		receipt, err := q.Enqueue(ctx, &pawl.Request{Kind: "greet", Delay: time.Hour})
		if err != nil {
			fmt.Println(err)
		}
		ids = append(ids, receipt.ID)
	}
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	tell := func() {
		e, err := sub.Next(ctx)
		fmt.Println(e.Queue, e.Count, e.Over, err)
	}
	tell()
	for _, id := range ids[:2] {
		if err := q.Cancel(ctx, "", id); err != nil {
			fmt.Println(err)
		}
	}
	tell()
	fmt.Println(p.Stop(ctx), <-ended)
	// Output:
	// default 3 true <nil>
	// default 1 false <nil>
	// <nil> <nil>
}
