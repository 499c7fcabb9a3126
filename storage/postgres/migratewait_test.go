package postgres

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestMigrateWaitsOutside: who waits for its turn to migrate has no transaction
// open. An index that is built concurrently waits to its end for each that once
// had a snapshot, and that one would wait for the index.
func TestMigrateWaitsOutside(t *testing.T) {
	pool := planPool(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if err := tryLockSchema(t.Context(), tx, &Options{Schema: DefaultSchema, Prefix: DefaultPrefix}); err != nil {
		t.Fatal(err)
	}
	migrated := make(chan error, 1)
	go func() { migrated <- Migrate(t.Context(), pool, nil) }()
	begun := make(map[time.Time]bool) // the transactions of who waits
	for deadline := time.Now().Add(time.Minute); len(begun) < 3; {
		rows, err := pool.Query(t.Context(), `SELECT xact_start FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE '%pg_try_advisory_xact_lock%' AND xact_start IS NOT NULL
			AND pid <> pg_backend_pid() AND xact_start <> now() AND pid <> $1`, tx.Conn().PgConn().PID())
		if err != nil {
			t.Fatal(err)
		}
		starts, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
		if err != nil {
			t.Fatal(err)
		}
		for _, start := range starts {
			begun[start] = true
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d transactions were seen to wait in a minute; one that stays open is one too many", len(begun))
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-migrated; err != nil {
		t.Error(err)
	}
}
