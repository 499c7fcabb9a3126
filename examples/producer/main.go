// Producer enqueues jobs and waits for their results, while a process of its own
// runs them. It knows the Args, not the handlers: in a larger program Args have a
// package for themselves, which both sides import.
//
//	go run ./examples/producer            # starts a worker process itself
//	go run ./examples/producer -db x.db   # leaves the jobs to
//	go run ./examples/producer -db x.db -work
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
)

// Factor asks for the prime factors of a number.
type Factor struct{ N int64 }

func (Factor) Kind() string { return "factor" }

// Defaults are beside the Args, so that all producers enqueue alike.
func (f Factor) Defaults() pawl.Request {
	return pawl.Request{Queue: "numbers", MaxAttempts: 3, UniqueKey: task.UniqueByArgs(f)}
}

// Factors is the result.
type Factors struct{ Primes []int64 }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	db := flag.String("db", "", "the `file` with the jobs; empty means a temporary one and a worker process on it")
	work := flag.Bool("work", false, "be a worker process on -db")
	attached := flag.Bool("attached", false, "with -work: end when the standard input does, which is when the producer has died")
	flag.Parse()
	if *attached {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			stop()
		}()
	}
	var err error
	switch {
	case *work && *db == "":
		err = errors.New("-work needs -db")
	case *work:
		err = runWorker(ctx, *db)
	default:
		err = produce(ctx, *db, os.Stdout)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// produce enqueues some jobs and prints their results.
func produce(ctx context.Context, db string, out io.Writer) (err error) {
	if db == "" {
		folder, err := os.MkdirTemp("", "producer-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		db = filepath.Join(folder, "jobs.db")
		stop, err := startWorker(ctx, db)
		if err != nil {
			return err
		}
		defer stop()
	}
	store, err := sqlite.Open(ctx, db, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	q := pawl.New(store, nil)
	for _, n := range []int64{97, 360, 600851475143, 0} {
		receipt, err := q.Enqueue(ctx, task.New(Factor{n}))
		if err != nil {
			return err
		}
		factors, err := wait(ctx, q, receipt)
		if failed := (*task.FailedError)(nil); errors.As(err, &failed) {
			fmt.Fprintf(out, "%d: failed: %s\n", n, failed.Last)
			continue
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%d = %v\n", n, factors.Primes)
	}
	return nil
}

// wait waits for the result for a while only: who enqueues does not know whether
// any worker is there.
func wait(ctx context.Context, q *pawl.Queue, receipt pawl.Receipt) (Factors, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errNobody)
	defer cancel()
	factors, err := task.Wait[Factors](ctx, q, receipt)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return factors, err
}

var errNobody = errors.New("no result in a minute; is a worker running? The job is kept until one is")

// startWorker starts this program once more, as the worker.
func startWorker(ctx context.Context, db string) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, self, "-db", db, "-work", "-attached")
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // it ends with this process, however that ends
		cancel()
		return nil, err
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	return func() {
		cancel()
		if err := cmd.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			log.Printf("worker process: %v", err)
		}
	}, nil
}
