package main

import (
	"context"
	"fmt"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

// runWorker runs jobs until ctx ends.
func runWorker(ctx context.Context, db string) error {
	store, err := sqlite.Open(ctx, db, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	tasks := task.NewMux()
	task.RegisterResult(tasks, factor)
	return worker.New(pawl.New(store, nil), tasks, nil).Run(ctx)
}

func factor(_ context.Context, job *task.Job[Factor]) (Factors, error) {
	n := job.Args.N
	if n < 1 {
		return Factors{}, pawl.Permanent(fmt.Errorf("%d has no prime factors", n))
	}
	var f Factors
	for p := int64(2); p <= n/p; p++ {
		for ; n%p == 0; n /= p {
			f.Primes = append(f.Primes, p)
		}
	}
	if n > 1 {
		f.Primes = append(f.Primes, n)
	}
	return f, nil
}
