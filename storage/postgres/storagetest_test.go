package postgres_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

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
	return storagetest.Harness{
		Open: func(t testing.TB, clock func() time.Time) pawl.Storage {
			return open(t, pool, &postgres.Options{Schema: newSchema(t, pool), Clock: clock})
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
	config.ConnConfig.StatementCacheCapacity = 100 // each schema has statements of its own
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
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
