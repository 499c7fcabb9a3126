package tasktest_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/task/tasktest"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

// inTx runs f in a transaction that ends with the error of f.
type inTx func(ctx context.Context, f func(w pawl.Writer) error) error

func TestAssertInTransactionOfServers(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (pawl.Storage, inTx){
		"postgres": openPostgres, "mysql": openMySQL,
	} {
		t.Run(name, func(t *testing.T) {
			storage, do := open(t)
			var rec tasktest.Recorder
			q := pawl.New(storage, &pawl.Options{Middleware: []pawl.EnqueueMiddleware{rec.Middleware}})
			c := &txCase{T: t}
			for _, end := range []error{nil, errRollback} {
				rec.Reset()
				var over *pawl.Tx
				err := do(t.Context(), func(w pawl.Writer) error {
					over = q.WithTx(w)
					enqueue(t, over, task.New(welcome{UserID: 7}))
					tasktest.AssertEnqueuedTx(t, over, &rec, id(7))
					c.wantFailure("was rolled back or is not committed yet", func(t tasktest.TB) {
						tasktest.AssertCommitted(t, q, &rec, id(7))
					})
					return end
				})
				if !errors.Is(err, end) {
					t.Fatal(err)
				}
				c.wantFailure("is it over?", func(t tasktest.TB) { tasktest.AssertEnqueuedTx(t, over, &rec, id(7)) })
				if end == nil {
					tasktest.AssertCommitted(t, q, &rec, id(7))
					continue
				}
				c.wantFailure("was rolled back or", func(t tasktest.TB) { tasktest.AssertCommitted(t, q, &rec, id(7)) })
			}
			if stats, err := q.Stats(t.Context()); err != nil || len(stats) != 1 || stats[0].Ready != 1 {
				t.Errorf("the assertions left %+v, %v, want one job", stats, err)
			}
		})
	}
}

// A job that another open transaction enqueued is not waited for without end.
func TestAssertInOtherTransactionOfServers(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (pawl.Storage, inTx){
		"postgres": openPostgres, "mysql": openMySQL,
	} {
		t.Run(name, func(t *testing.T) {
			storage, do := open(t)
			var rec tasktest.Recorder
			q := pawl.New(storage, &pawl.Options{Middleware: []pawl.EnqueueMiddleware{rec.Middleware}})
			c := &txCase{T: t}
			err := do(t.Context(), func(w pawl.Writer) error {
				enqueue(t, q.WithTx(w), task.New(welcome{UserID: 7}))
				return do(t.Context(), func(other pawl.Writer) error {
					c.wantFailure("in another transaction, which is still open", func(t tasktest.TB) {
						tasktest.AssertEnqueuedTx(t, q.WithTx(other), &rec, id(7))
					})
					tasktest.AssertEnqueuedTx(t, q.WithTx(w), &rec, id(7))
					return errRollback
				})
			})
			if !errors.Is(err, errRollback) {
				t.Error(err)
			}
		})
	}
}

func openPostgres(t *testing.T) (pawl.Storage, inTx) {
	pool, err := pgxpool.New(t.Context(), testserver.NewPostgres(t, nil).DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	store, err := postgres.New(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store, func(ctx context.Context, f func(w pawl.Writer) error) error {
		return store.InTx(ctx, func(_ pgx.Tx, w pawl.Writer) error { return f(w) })
	}
}

func openMySQL(t *testing.T) (pawl.Storage, inTx) {
	server := testserver.NewMariaDB(t, nil)
	if err := server.Exec(t.Context(), "CREATE DATABASE jobs"); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", server.DSN("jobs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	store, err := mysql.New(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store, func(ctx context.Context, f func(w pawl.Writer) error) error {
		return store.InTx(ctx, func(_ *sql.Tx, w pawl.Writer) error { return f(w) })
	}
}
