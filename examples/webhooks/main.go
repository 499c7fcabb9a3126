// Webhooks delivers signed events to customers over HTTP. One customer limits
// the rate, one loses an answer now and then, and one is broken until it is
// mended, when its dead letters are kicked. At the end the sums of both sides are
// compared.
//
//	go run ./examples/webhooks -events 60
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	events := flag.Int("events", 60, "how many events to deliver, 10 to 1000")
	flag.Parse()
	if err := run(ctx, *events, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, events int, out io.Writer) (err error) {
	if events < 10 || events > 1000 {
		return errors.New("-events must be between 10 and 1000")
	}
	folder, err := os.MkdirTemp("", "webhooks-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	store, err := sqlite.Open(ctx, filepath.Join(folder, "events.db"), nil)
	if err != nil {
		return err
	}
	defer store.Close()
	q := pawl.New(store, &pawl.Options{
		Backoff: pawl.Constant(20 * time.Millisecond),
		Logger:  slog.New(slog.DiscardHandler), // the failures are meant
	})
	s, receivers, err := newSender(ctx, store, q)
	if err != nil {
		return err
	}
	for _, r := range receivers {
		server := httptest.NewServer(r)
		defer server.Close()
		if err := s.subscribe(r.name, server.URL, r.secret); err != nil {
			return err
		}
	}
	stop := startPool(ctx, q, s)
	err = deliver(ctx, s, receivers, events, out)
	return errors.Join(err, stop())
}

// startPool runs a pool until the function it returns is called.
func startPool(ctx context.Context, q *pawl.Queue, s *sender) (stop func() error) {
	tasks := task.NewMux()
	task.Register(tasks, s.deliver, &task.Options[Delivery]{Timeout: 5 * time.Second})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- worker.New(q, tasks, nil).Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// deliver sends the events, mends what is broken once all else is delivered, and
// compares the sums.
func deliver(ctx context.Context, s *sender, receivers []*receiver, events int, out io.Writer) error {
	var jobs []pawl.ID
	for i := range events {
		id, err := s.publish(ctx, receivers[i%len(receivers)].name, fmt.Sprintf(`{"order":%d}`, i))
		if err != nil {
			return err
		}
		jobs = append(jobs, id)
	}
	if _, err := s.q.Wait(ctx, pawl.DefaultQueue, jobs...); err != nil {
		return err
	}
	dead := pawl.Filter{Queue: pawl.DefaultQueue, Kind: Delivery{}.Kind(), States: []pawl.State{pawl.Buried}}
	if err := showDead(ctx, s.q, dead, out); err != nil {
		return err
	}
	for _, r := range receivers {
		r.mend()
	}
	kicked, err := s.q.KickAll(ctx, dead, events)
	if err != nil {
		return err
	}
	ended, err := s.q.Wait(ctx, pawl.DefaultQueue, jobs...)
	if err != nil {
		return err
	}
	return reconcile(ctx, s, receivers, ended, kicked, out)
}

// showDead prints the first dead letter and its last failure.
func showDead(ctx context.Context, q *pawl.Queue, dead pawl.Filter, out io.Writer) error {
	page, err := q.List(ctx, pawl.ListSpec{Filter: dead, Limit: 1})
	if err != nil || len(page.Jobs) == 0 {
		return err
	}
	failures := page.Jobs[0].Failures
	fmt.Fprintf(out, "A dead letter: %s, after %d attempts.\n", failures[len(failures)-1].Error, page.Jobs[0].Attempt)
	return nil
}

// reconcile prints what both sides counted and reports what does not add up.
func reconcile(ctx context.Context, s *sender, receivers []*receiver, jobs []*pawl.Job, kicked int, out io.Writer) error {
	events, err := s.count(ctx)
	if err != nil {
		return err
	}
	runs, completed := 0, 0
	for _, j := range jobs {
		runs += 1 + j.Counts.Retries + j.Counts.Rescues + j.Counts.Kicks
		if j.State == pawl.Completed {
			completed++
		}
	}
	var got tally
	for _, r := range receivers {
		got.add(r.tally())
	}
	row := func(name string, n int, what string) { fmt.Fprintf(out, "%-10s %5d  %s\n", name, n, what) }
	row("events", events, "in the sender's database")
	row("completed", completed, fmt.Sprintf("jobs, %d of them kicked out of the dead letters", kicked))
	row("runs", runs, "of the handler, by what is kept of the jobs")
	row("requests", got.requests, "that the receivers saw")
	row("accepted", got.accepted, "events, each the first time")
	row("again", got.again, "events that were known: their answer had been lost")
	row("limited", got.limited, "answers with Retry-After")
	row("early", got.early, "requests before that time")
	row("broken", got.broken, "answers of the broken receiver")
	row("forged", got.forged, "bad signatures")
	return check(events, completed, runs, kicked, got)
}

func check(events, completed, runs, kicked int, got tally) error {
	var errs []error
	equal := func(what string, a, b int) {
		if a != b {
			errs = append(errs, fmt.Errorf("%s: %d and %d", what, a, b))
		}
	}
	equal("events and jobs completed", events, completed)
	equal("events and events accepted", events, got.accepted)
	equal("runs and requests", runs, got.requests)
	equal("requests and answers", got.requests, got.accepted+got.again+got.limited+got.broken+got.forged)
	equal("answers lost and events sent again", got.lost, got.again)
	equal("dead letters and kicks", got.broken, kicked*maxAttempts)
	equal("early requests", got.early, 0)
	equal("bad signatures", got.forged, 0)
	return errors.Join(errs...)
}
