package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/pawlq/pawl"
)

// A report reconciles what was answered with what is in the database.
type report struct {
	placed, rolledBack []uuid.UUID // orders
	jobs               [2][]pawl.ID
	undone             []pawl.ID // jobs of orders that were rolled back
	took               []time.Duration

	kills, completed, rescued int
	orders                    count
	invoices, notifications   count
	ghosts                    int // rows of orders that were rolled back
	ghostJobs                 int
	p50, p99                  time.Duration // from order to notification
}

// A count is of the rows of a table and of the orders that they are for.
type count struct{ rows, orders int }

func newReport(all []sent) *report {
	r := new(report)
	for _, s := range all {
		r.took = append(r.took, s.took)
		if s.Card == noMoney {
			r.rolledBack = append(r.rolledBack, s.ID)
			r.undone = append(r.undone, s.jobs...)
			continue
		}
		r.placed = append(r.placed, s.ID)
		for i, id := range s.jobs {
			r.jobs[i] = append(r.jobs[i], id)
		}
	}
	slices.Sort(r.took)
	return r
}

// wait waits until the jobs have ended, and counts what became of them.
func (r *report) wait(ctx context.Context, q *pawl.Queue) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stalled, errors.New("not all jobs have ended"))
	defer cancel()
	for i, queue := range []string{"invoice", "notify"} {
		for ids := range slices.Chunk(r.jobs[i], pawl.MaxStep) {
			jobs, err := q.Wait(ctx, queue, ids...)
			if err != nil {
				return errors.Join(err, context.Cause(ctx))
			}
			for _, j := range jobs {
				r.rescued += j.Counts.Rescues
				if j.State == pawl.Completed {
					r.completed++
				}
			}
		}
	}
	return nil
}

const countRows = `SELECT count(*), count(DISTINCT %s) FROM orders_example.%s WHERE %[1]s = ANY($1)`

// countGhosts uses the view, in which a payload can be looked into.
const countGhosts = `SELECT
	(SELECT count(*) FROM orders_example.orders WHERE id = ANY($1)) +
	(SELECT count(*) FROM orders_example.invoices WHERE order_id = ANY($1)) +
	(SELECT count(*) FROM orders_example.notifications WHERE order_id = ANY($1)),
	(SELECT count(*) FROM orders_example.pawl_jobs WHERE id = ANY($2) OR (payload->>'order')::uuid = ANY($1))`

const percentiles = `SELECT coalesce(percentile_disc(0.50) WITHIN GROUP (ORDER BY took), 0)::bigint,
	coalesce(percentile_disc(0.99) WITHIN GROUP (ORDER BY took), 0)::bigint
	FROM (SELECT 1e6 * extract(epoch FROM n.written - o.placed) AS took
		FROM orders_example.orders o JOIN orders_example.notifications n ON n.order_id = o.id WHERE o.id = ANY($1)) t`

// reconcile counts in the database.
func (r *report) reconcile(ctx context.Context, s *shop) error {
	pool := s.store.Pool()
	for _, t := range []struct {
		to            *count
		table, column string
	}{
		{&r.orders, "orders", "id"}, {&r.invoices, "invoices", "order_id"}, {&r.notifications, "notifications", "order_id"},
	} {
		sql := fmt.Sprintf(countRows, t.column, t.table)
		if err := pool.QueryRow(ctx, sql, r.placed).Scan(&t.to.rows, &t.to.orders); err != nil {
			return err
		}
	}
	if err := pool.QueryRow(ctx, countGhosts, r.rolledBack, r.undone).Scan(&r.ghosts, &r.ghostJobs); err != nil {
		return err
	}
	var p50, p99 int64
	err := pool.QueryRow(ctx, percentiles, r.placed).Scan(&p50, &p99)
	r.p50, r.p99 = time.Duration(p50)*time.Microsecond, time.Duration(p99)*time.Microsecond
	return err
}

func (r *report) print(out io.Writer) {
	row := func(name string, n int, what string) { fmt.Fprintf(out, "%-14s %7d  %s\n", name, n, what) }
	row("requests", len(r.took), fmt.Sprintf("POST /orders, p50 %v, p99 %v", percentile(r.took, 0.50), percentile(r.took, 0.99)))
	row("placed", len(r.placed), "answered 201")
	row("rolled-back", len(r.rolledBack), "answered 402, after insert and enqueue")
	row("orders", r.orders.rows, "in the database")
	row("invoices", r.invoices.rows, fmt.Sprintf("for %d orders", r.invoices.orders))
	row("notifications", r.notifications.rows, fmt.Sprintf("for %d orders; p50 %v, p99 %v after the order",
		r.notifications.orders, short(r.p50), short(r.p99)))
	row("ghosts", r.ghosts+r.ghostJobs, "rows and jobs of what was rolled back")
	row("completed", r.completed, "jobs")
	row("kills", r.kills, fmt.Sprintf("of worker processes; jobs then wait for the end of a lease of %v", lease))
	row("rescued", r.rescued, "jobs taken back from killed processes")
}

// check tells which sums are off.
func (r *report) check(c config) error {
	var errs []error
	off := func(is, want int, what string) {
		if is != want {
			errs = append(errs, fmt.Errorf("OFF: %d %s, want %d", is, what, want))
		}
	}
	n := len(r.placed)
	off(n+len(r.rolledBack), c.load, "answers")
	off(r.orders.rows, n, "orders")
	off(r.invoices.rows, n, "invoices")
	off(r.invoices.orders, n, "orders with invoices")
	off(r.notifications.rows, n, "notifications")
	off(r.notifications.orders, n, "orders with notifications")
	off(r.ghosts, 0, "rows of orders that were rolled back")
	off(r.ghostJobs, 0, "jobs of orders that were rolled back")
	off(r.completed, 2*n, "completed jobs")
	off(r.kills, c.kills, "kills")
	return errors.Join(errs...)
}

// percentile returns the smallest of the sorted ds that p of them do not exceed.
func percentile(ds []time.Duration, p float64) time.Duration {
	return short(ds[max(0, int(math.Ceil(p*float64(len(ds))))-1)])
}

func short(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
