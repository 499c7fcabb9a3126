package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/task"
)

const schema = "orders_example"

// Nothing is unique but orders, so that nothing would hide what is done twice.
const tables = `
CREATE TABLE IF NOT EXISTS orders_example.orders (
	id     uuid PRIMARY KEY,
	total  bigint NOT NULL,
	placed timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE IF NOT EXISTS orders_example.invoices (
	order_id uuid NOT NULL,
	job      uuid NOT NULL,
	total    bigint NOT NULL,
	written  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE IF NOT EXISTS orders_example.notifications (
	order_id uuid NOT NULL,
	job      uuid NOT NULL,
	written  timestamptz NOT NULL DEFAULT clock_timestamp()
);`

// Invoice asks for the invoice of an order.
type Invoice struct {
	Order uuid.UUID `json:"order"`
}

func (Invoice) Kind() string { return "invoice" }

// Defaults say how invoices are enqueued: killed processes bury none.
func (Invoice) Defaults() pawl.Request {
	return pawl.Request{Queue: "invoice", MaxRescues: 2 * maxKills}
}

// Notify asks for a customer to be told of an order.
type Notify struct {
	Order uuid.UUID `json:"order"`
}

func (Notify) Kind() string { return "notify" }

// Defaults say how notifications are enqueued.
func (Notify) Defaults() pawl.Request {
	return pawl.Request{Queue: "notify", MaxRescues: 2 * maxKills}
}

// shop is the business of the program.
type shop struct {
	store *postgres.Store
	queue *pawl.Queue
	slow  time.Duration
}

// lease is how long the jobs of a killed process wait. Workers that live extend
// theirs in time.
const lease = 2 * time.Second

// openShop opens the store; the first process makes the tables.
func openShop(ctx context.Context, c config, log *slog.Logger) (s *shop, closeAll func(), err error) {
	pool, err := pgxpool.New(ctx, c.dsn)
	if err != nil {
		return nil, nil, err
	}
	isWorker := c.work != ""
	if !isWorker {
		if err := makeSchema(ctx, pool); err != nil {
			pool.Close()
			return nil, nil, err
		}
	}
	store, err := postgres.New(ctx, pool, &postgres.Options{Schema: schema, NoMigrate: isWorker, Logger: log})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	queue := pawl.New(store, &pawl.Options{Lease: lease, Logger: log, WorkerID: c.work})
	return &shop{store, queue, c.slow}, func() {
		_ = store.Close() // always nil
		pool.Close()
	}, nil
}

// makeSchema does not need the right to create schemas where there is one.
func makeSchema(ctx context.Context, pool *pgxpool.Pool) error {
	var there bool
	err := pool.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)", schema).Scan(&there)
	if err == nil && !there {
		_, err = pool.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+schema)
	}
	if err == nil {
		_, err = pool.Exec(ctx, tables)
	}
	return err
}

// An order is what a customer sends. The customer makes its ID, so that an order
// whose answer was lost can be sent again.
type order struct {
	ID    uuid.UUID `json:"id"`
	Total int64     `json:"total"` // in cents
	Card  string    `json:"card"`
}

// noMoney is the card that is always declined.
const noMoney = "declined"

var errDeclined = errors.New("the card was declined")

// place stores an order with its two jobs, or nothing of it. The card is asked
// last, so that there is something to roll back. An order that is there already
// changes nothing.
func (s *shop) place(ctx context.Context, o order) (jobs []pawl.ID, err error) {
	err = s.store.InTx(ctx, func(tx pgx.Tx, w pawl.Writer) error {
		tag, err := tx.Exec(ctx, `INSERT INTO orders_example.orders (id, total) VALUES ($1, $2)
			ON CONFLICT (id) DO NOTHING`, o.ID, o.Total)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		receipts, err := s.queue.WithTx(w).EnqueueMany(ctx, []*pawl.Request{
			task.New(Invoice{o.ID}), task.New(Notify{o.ID}),
		})
		for _, r := range receipts {
			jobs = append(jobs, r.ID)
		}
		if err == nil && o.Card == noMoney {
			err = errDeclined
		}
		return err
	})
	return jobs, err
}

func (s *shop) invoice(ctx context.Context, job *task.Job[Invoice]) error {
	return s.write(ctx, job.Job, job.Args.Order, `INSERT INTO orders_example.invoices (order_id, job, total)
		SELECT id, $2, total FROM orders_example.orders WHERE id = $1`)
}

func (s *shop) notify(ctx context.Context, job *task.Job[Notify]) error {
	return s.write(ctx, job.Job, job.Args.Order, `INSERT INTO orders_example.notifications (order_id, job)
		SELECT id, $2 FROM orders_example.orders WHERE id = $1`)
}

// write writes a row and acks its job in one transaction: until the commit
// neither has happened, after it both have.
func (s *shop) write(ctx context.Context, job *pawl.Job, order uuid.UUID, insert string) error {
	if err := s.dawdle(ctx); err != nil {
		return err
	}
	return s.store.InTx(ctx, func(tx pgx.Tx, w pawl.Writer) error {
		tag, err := tx.Exec(ctx, insert, order, job.ID)
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return pawl.Permanent(fmt.Errorf("order %s is not there", order))
		}
		return s.queue.WithTx(w).Ack(ctx, job, nil)
	})
}

func (s *shop) dawdle(ctx context.Context) error {
	if s.slow == 0 {
		return nil
	}
	select {
	case <-time.After(s.slow):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
