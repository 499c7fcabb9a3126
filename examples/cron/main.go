// Cron runs a job at each tick, once, however many processes tick. pawl has no
// schedules yet; what it has is enough: the ID of a job is made from its schedule
// and its tick, so whoever enqueues a tick second changes nothing.
//
//	go run ./examples/cron -every 500ms -ticks 6 -processes 3
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var c config
	flag.DurationVar(&c.every, "every", 500*time.Millisecond, "the time between ticks")
	flag.IntVar(&c.ticks, "ticks", 6, "how many ticks to run")
	flag.IntVar(&c.processes, "processes", 3, "how many tickers, each as if in a process of its own")
	flag.Parse()
	if err := onFile(ctx, c, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

type config struct {
	every            time.Duration
	ticks, processes int
}

func onFile(ctx context.Context, c config, out io.Writer) error {
	folder, err := os.MkdirTemp("", "cron-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	store, err := sqlite.Open(ctx, filepath.Join(folder, "cron.db"), nil)
	if err != nil {
		return err
	}
	defer store.Close()
	return run(ctx, store, c, out)
}

// Report is the job of one tick. It is given the tick, since it may run late, or
// again.
type Report struct{ Tick time.Time }

func (Report) Kind() string { return "report" }

// A schedule makes a job for each tick, at all multiples of Every.
type schedule struct {
	name  string
	every time.Duration
}

// namespace is this program's own for the IDs of ticks.
var namespace = uuid.MustParse("5c24a2b8-0f4f-4f31-9d0e-0e6c1f5d2a77")

// request returns the job of a tick. Its record has to be kept for as long as
// someone may enqueue the tick once more, such as a ticker that was cut off; then
// it would run again.
func (s schedule) request(tick time.Time) *pawl.Request {
	r := task.New(Report{tick})
	r.ID = uuid.NewSHA1(namespace, []byte(s.name+"@"+tick.UTC().Format(time.RFC3339Nano)))
	r.RunAt = tick
	r.Retention = max(24*time.Hour, 10*s.every)
	// r.StartBefore = tick.Add(s.every) would drop ticks that come too late.
	return r
}

// tick enqueues each tick ahead of time, until ctx ends: as a scheduled job it
// runs even if no ticker is alive then. It begins with the tick before, in case
// that none was alive at that; where a longer outage is to be made up for, begin
// further back. What fails is told and tried again, so no tick is left out.
func (s schedule) tick(ctx context.Context, q *pawl.Queue, l *ledger) error {
	next, tries := time.Now().Truncate(s.every), 0
	for {
		receipt, err := q.Enqueue(ctx, s.request(next))
		wait := time.Until(next)
		switch {
		case err == nil:
			tries = 0
			next = next.Add(s.every)
			l.enqueued(receipt.Status)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, pawl.ErrInvalid):
			return err // and would be for ever
		default:
			tries++
			wait = pawl.Exponential{Max: time.Minute}.Delay(tries, err)
			l.failed(next, wait, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// run lets the tickers tick and a pool work until enough ticks have run, or one
// of them can't go on.
func run(ctx context.Context, storage pawl.Storage, c config, out io.Writer) error {
	if c.every <= 0 || c.ticks < 1 || c.processes < 1 {
		return errors.New("-every, -ticks and -processes must be positive")
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	l := &ledger{ran: map[time.Time]int{}, want: c.ticks, enough: stop, out: out}
	tasks := task.NewMux()
	task.Register(tasks, l.report)
	var all sync.WaitGroup
	errs := make([]error, c.processes+1)
	start := func(err *error, f func() error) {
		all.Go(func() {
			if *err = f(); *err != nil {
				stop()
			}
		})
	}
	for i := range c.processes {
		s := schedule{"nightly report", c.every}
		start(&errs[i], func() error { return s.tick(ctx, pawl.New(storage, nil), l) })
	}
	start(&errs[c.processes], func() error { return worker.New(pawl.New(storage, nil), tasks, nil).Run(ctx) })
	all.Wait()
	fmt.Fprintf(out, "%d ticks enqueued by %d tickers, %d times they were known already; %d ran, %d enqueued ahead of time are left\n",
		l.stored, c.processes, l.known, len(l.ran), l.stored-len(l.ran))
	return errors.Join(append(errs, l.check())...)
}

// A ledger keeps which ticks were enqueued and which ran.
type ledger struct {
	mu            sync.Mutex
	stored, known int
	ran           map[time.Time]int
	want          int
	enough        func()
	out           io.Writer
}

func (l *ledger) enqueued(status pawl.ReceiptStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if status == pawl.Stored {
		l.stored++
	} else {
		l.known++
	}
}

func (l *ledger) failed(tick time.Time, wait time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.out, "tick %s not enqueued, again in %v: %v\n", tick.Format(clock), wait.Round(time.Millisecond), err)
}

const clock = "15:04:05.000"

func (l *ledger) report(_ context.Context, job *task.Job[Report]) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ran[job.Args.Tick]++
	fmt.Fprintf(l.out, "tick %s ran\n", job.Args.Tick.Format(clock))
	if len(l.ran) == l.want {
		l.enough()
	}
	return nil
}

func (l *ledger) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for tick, n := range l.ran {
		if n != 1 {
			return fmt.Errorf("tick %v ran %d times", tick, n)
		}
	}
	return nil
}
