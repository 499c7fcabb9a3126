package mysql_test

import (
	"context"
	"database/sql"
	"log"
	"os"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/mysql"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

type Invoice struct{ Order int64 }

func (Invoice) Kind() string { return "invoice" }

// An order and the job that writes its invoice are stored together, or not at all.
// The job is acked in the transaction that stores the invoice, so there is one.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("mysql", os.Getenv("MYSQL_DSN")) // such as user:password@tcp(localhost:3306)/app
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	store, err := mysql.New(ctx, db, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	q := pawl.New(store, nil)

	err = store.InTx(ctx, func(tx *sql.Tx, w pawl.Writer) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES (7)"); err != nil {
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
		return store.InTx(ctx, func(tx *sql.Tx, w pawl.Writer) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO invoices (order_id) VALUES (?)", job.Args.Order); err != nil {
				return err
			}
			return q.WithTx(w).Ack(ctx, job.Job, nil)
		})
	})
	if err := worker.New(q, tasks, nil).Run(ctx); err != nil {
		log.Fatal(err)
	}
}
