package worker_test

import (
	"context"
	"encoding/json"
	"expvar"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/worker"
	"github.com/pawlq/pawl/worker/health"
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

// Probes of Kubernetes at /health/live and /health/ready.
func Example_health() {
	p := worker.New(pawl.New(memory.New(nil), nil), worker.Func(greet), nil)
	mux := http.NewServeMux()
	mux.Handle("/health/", http.StripPrefix("/health", health.Handler(p)))
}
