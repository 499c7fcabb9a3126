package postgres_test

import (
	"context"
	"flag"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/storage/storagetest"
	"github.com/pawlq/pawl/worker"
)

// Behind a pooler each mode of sending statements without preparing them works.
var pooledModes = []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}

const (
	// bouncedConns is how many connections the pooler has. Each transaction of
	// a client is on another of them.
	bouncedConns = 12
	// pooledChecks is the number of random sequences; there are more of them on
	// direct connections.
	pooledChecks = "15"
)

// dialPool connects to where a DSN says, with at most n connections.
func dialPool(t testing.TB, dsn string, n int32, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns, config.ConnConfig.DefaultQueryExecMode = n, mode
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// unwatched is a Store without wake-ups, which it does not have between
// processes.
type unwatched struct {
	pawl.Storage
	pawl.Cycler
}

// TestPgBouncer runs the contract, but for the several hundred cases of the
// table that the random sequences go through too, through a pooler that hands connections on
// after each transaction. Each Store sends its statements in another mode than
// the one before.
func TestPgBouncer(t *testing.T) {
	server := testserver.Postgres(t)
	bouncer := testserver.NewPgBouncer(t, server, bouncedConns)
	used := &used{pool: openPool(t, server, 4)}
	checks := flag.Lookup("rapid.checks")
	defer checks.Value.Set(checks.Value.String())
	if err := checks.Value.Set(pooledChecks); err != nil {
		t.Fatal(err)
	}
	var pools []*pgxpool.Pool
	for _, mode := range pooledModes {
		pools = append(pools, dialPool(t, bouncer.DSN(""), bouncedConns, mode))
	}
	var opened atomic.Int64
	openIn := func(t testing.TB, schema string, clock func() time.Time) pawl.Storage {
		pool := pools[opened.Add(1)%int64(len(pools))]
		s := open(t, pool, &postgres.Options{Schema: schema, Clock: clock, PollOnly: true})
		return unwatched{s, s}
	}
	storagetest.Run(t, storagetest.Harness{
		Groups: []string{"rules", "tx", "concurrent", "model"},
		Open:   func(t testing.TB, clock func() time.Time) pawl.Storage { return openIn(t, used.take(t), clock) },
		Reopen: func(t testing.TB, s pawl.Storage, clock func() time.Time) pawl.Storage {
			return openIn(t, s.(unwatched).Storage.(*postgres.Store).Schema(), clock)
		},
		Begin: func(t testing.TB, s pawl.Storage) (pawl.Writer, func() error, func() error) {
			return begin(t, s.(unwatched).Storage)
		},
	})
	wantNoState(t, used.pool, pools[0])
}

// wantNoState looks for what a session has kept, on each connection of the pooler.
func wantNoState(t *testing.T, direct, pooled *pgxpool.Pool) {
	t.Helper()
	for range bouncedConns {
		tx, err := pooled.Begin(t.Context()) // held, so that the next is on another connection
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		var prepared, settings string
		err = tx.QueryRow(t.Context(), `SELECT (SELECT coalesce(string_agg(statement, ';'), '') FROM pg_prepared_statements),
			(SELECT coalesce(string_agg(name || '=' || setting, ' '), '') FROM pg_settings WHERE source = 'session'
				AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings',
					'transaction_isolation', 'transaction_read_only', 'transaction_deferrable'))`).Scan(&prepared, &settings)
		if err != nil || prepared+settings != "" {
			t.Errorf("a session has kept settings %q and statements %q, error %v", settings, prepared, err)
		}
	}
	var locks, tables int
	err := direct.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
		(SELECT count(*) FROM pg_class WHERE relpersistence = 't')`).Scan(&locks, &tables)
	if err != nil || locks+tables > 0 {
		t.Errorf("sessions have kept %d advisory locks and %d temporary tables, error %v", locks, tables, err)
	}
}

// TestPgBouncerPool runs jobs of all sorts through a pooler that has fewer
// connections than the workers have slots.
func TestPgBouncerPool(t *testing.T) {
	bouncer := testserver.NewPgBouncer(t, testserver.Postgres(t), 3)
	for _, mode := range pooledModes {
		t.Run(mode.String(), func(t *testing.T) {
			direct := fresh(t, postgres.Options{})
			quiet := slog.New(slog.DiscardHandler) // of a stack for each panic
			s := open(t, dialPool(t, bouncer.DSN(""), 8, mode), &postgres.Options{Schema: direct.Schema(), PollOnly: true, Logger: quiet})
			q := pawl.New(s, &pawl.Options{Logger: quiet, Backoff: pawl.Constant(10 * time.Millisecond)})
			r := &runs{n: map[pawl.ID]int{}, reached: make(chan struct{})}
			jobs := r.enqueue(t, q)
			p := worker.New(q, worker.Func(r.run), &worker.Options{
				Queues: []worker.Queue{{Name: "default", Concurrency: 20}}, Poll: 50 * time.Millisecond, Logger: quiet,
			})
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := p.Run(t.Context()); err != nil {
					t.Error(err)
				}
			})
			t.Cleanup(wg.Wait)
			look := pawl.New(direct, nil)
			awaitEmpty(t, look)
			if err := p.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			r.account(t, look, jobs)
		})
	}
}
