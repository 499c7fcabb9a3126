package postgres_test

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

type Invoice struct{ Order int64 }

func (Invoice) Kind() string { return "invoice" }

// An order and the job that writes its invoice are stored together, or not at all.
// The job is acked in the transaction that stores the invoice, so there is one.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	store, err := postgres.New(ctx, pool, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	q := pawl.New(store, nil)

	err = store.InTx(ctx, func(tx pgx.Tx, w pawl.Writer) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id) VALUES (7)"); err != nil {
			return err
		}
		_, err := q.WithTx(w).Enqueue(ctx, task.New(Invoice{Order: 7}))
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	tasks := task.NewMux()
	task.Register(tasks, func(ctx context.Context, job *task.Job[Invoice]) error {
		return store.InTx(ctx, func(tx pgx.Tx, w pawl.Writer) error {
			if _, err := tx.Exec(ctx, "INSERT INTO invoices (order_id) VALUES ($1)", job.Args.Order); err != nil {
				return err
			}
			return q.WithTx(w).Ack(ctx, job.Job, nil)
		})
	})
	if err := worker.New(q, tasks, nil).Run(ctx); err != nil {
		log.Fatal(err)
	}
}
