package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/storage/storagetest"
)

func TestMain(m *testing.M) {
	code := testserver.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func TestStorage(t *testing.T) {
	storagetest.Run(t, harness(t))
}

// harness runs the contract in schemas of our own.
func harness(t testing.TB) storagetest.Harness {
	pool := openPool(t, testserver.Postgres(t), 20)
	used := &used{pool: pool}
	return storagetest.Harness{
		Open: func(t testing.TB, clock func() time.Time) pawl.Storage {
			return open(t, pool, &postgres.Options{Schema: used.take(t), Clock: clock})
		},
		Reopen: func(t testing.TB, s pawl.Storage, clock func() time.Time) pawl.Storage {
			return open(t, pool, &postgres.Options{Schema: s.(*postgres.Store).Schema(), Clock: clock})
		},
		Begin: begin,
	}
}

// openPool connects to a server, with at most n connections.
func openPool(t testing.TB, server *testserver.PostgresServer, n int) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(server.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = int32(n)
	config.ConnConfig.StatementCacheCapacity = 1000 // each schema has statements of its own
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// used are schemas that are emptied and used again: there are hundreds of cases,
// and to make the tables takes longer than most of them.
type used struct {
	pool *pgxpool.Pool

	mu   sync.Mutex
	free []string
}

// take returns an empty schema, with or without tables, for one test.
func (u *used) take(t testing.TB) string {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	n := len(u.free) - 1
	if n < 0 {
		return u.make(t)
	}
	name := u.free[n]
	u.free = u.free[:n]
	t.Cleanup(func() { u.giveBack(t, name) })
	return name
}

func (u *used) make(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test_%d", schemas.Add(1))
	if _, err := u.pool.Exec(context.Background(), "CREATE SCHEMA "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.giveBack(t, name) })
	return name
}

func (u *used) giveBack(t testing.TB, name string) {
	t.Helper()
	tables := name + ".pawl_job, " + name + ".pawl_lease, " + name + ".pawl_queue, " + name + ".pawl_head, " + name + ".pawl_claim"
	for {
		_, err := u.pool.Exec(context.Background(), "TRUNCATE "+tables, pgx.QueryExecModeSimpleProtocol)
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "40P01" {
			continue // a deadlock with a statement that its caller no longer waits for
		}
		if err != nil {
			t.Error(err)
			return
		}
		break
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.free = append(u.free, name)
}

var schemas atomic.Int64

// newSchema makes a schema that goes with the test.
func newSchema(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	name := fmt.Sprintf("test_%d", schemas.Add(1))
	if _, err := pool.Exec(context.Background(), "CREATE SCHEMA "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "DROP SCHEMA "+name+" CASCADE"); err != nil {
			t.Error(err)
		}
	})
	return name
}

func open(t testing.TB, pool *pgxpool.Pool, o *postgres.Options) *postgres.Store {
	t.Helper()
	s, err := postgres.New(context.Background(), pool, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func begin(t testing.TB, s pawl.Storage) (w pawl.Writer, commit, rollback func() error) {
	store := s.(*postgres.Store)
	ctx := context.Background()
	tx, err := store.Pool().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(ctx) })
	return store.Tx(tx), func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) }
}
