package postgres_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/storage/storagetest"
)

// TestRefreshSeldom: while a server refuses to write, calls that fail do not close the
// connections of the program each time.
func TestRefreshSeldom(t *testing.T) {
	var demoted atomic.Bool
	config := openPool(t, testserver.Postgres(t), 1).Config()
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT set_config('default_transaction_read_only', $1, false)", strconv.FormatBool(demoted.Load()))
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, &postgres.Options{Schema: newSchema(t, openPool(t, testserver.Postgres(t), 1)), PollOnly: true})
	demoted.Store(true)
	pool.Reset()
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, begun := pool.Stat().NewConnsCount(), time.Now()
	const calls = 50
	for range calls {
		if _, err := s.Enqueue(t.Context(), []*pawl.Request{storagetest.Complete(pawl.Request{})}); err == nil {
			t.Fatal("a server that is read-only has stored a job")
		}
	}
	made, most := pool.Stat().NewConnsCount()-before, 1+int64(time.Since(begun)/time.Second)
	if made < 1 || made > most {
		t.Errorf("%d connections were made in %v of %d calls that fail, want 1 to %d", made, time.Since(begun), calls, most)
	}
}
