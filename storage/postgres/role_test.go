package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
)

// settingsPool connects with settings of the session, given as name and value.
func settingsPool(t *testing.T, settings ...string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(testserver.Postgres(t).DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 4
	for i := 0; i < len(settings); i += 2 {
		config.ConnConfig.RuntimeParams[settings[i]] = settings[i+1]
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// works runs a job through a Store and leaves others in each state.
func works(t *testing.T, s *postgres.Store) {
	t.Helper()
	for _, r := range []pawl.Request{{}, {UniqueKey: "k", Priority: 1}, {Delay: time.Hour}, {Priority: 2}} {
		enqueue(t, s, r)
	}
	jobs := claim(t, s, 3)
	if _, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: jobs[0].Ref, Lease: time.Hour}}); err != nil {
		t.Error(err)
	}
	settle(t, s, pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Ack}, pawl.Outcome{Ref: jobs[1].Ref, Verb: pawl.Nack, Error: "e"})
	err := s.InTx(t.Context(), func(_ pgx.Tx, w pawl.Writer) error {
		enqueue(t, w, pawl.Request{})
		settle(t, w, pawl.Outcome{Ref: jobs[2].Ref, Verb: pawl.Bury, Error: "e"})
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Kick, IDs: []pawl.ID{jobs[2].ID}}); err != nil {
		t.Error(err)
	}
	if _, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 10, MaxBuried: 10}); err != nil {
		t.Error(err)
	}
	stats, err := s.Count(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	if q := stats[0]; q.Ready != 3 || q.Scheduled != 1 || q.Completed != 1 {
		t.Errorf("numbers %+v, want 3 ready, 1 scheduled, 1 completed", q)
	}
}

// TestSettings works under what a server or a role can be set to.
func TestSettings(t *testing.T) {
	admin := openPool(t, testserver.Postgres(t), 2)
	for name, settings := range map[string][]string{
		"timeouts":         {"statement_timeout", "5s", "lock_timeout", "2s", "idle_in_transaction_session_timeout", "2s"},
		"search path":      {"search_path", "nowhere"},
		"serializable":     {"default_transaction_isolation", "serializable"},
		"repeatable read":  {"default_transaction_isolation", "repeatable read"},
		"odd formats":      {"DateStyle", "SQL, DMY", "IntervalStyle", "sql_standard", "bytea_output", "escape", "TimeZone", "Asia/Kathmandu", "extra_float_digits", "-15"},
		"literals":         {"standard_conforming_strings", "on", "xmlbinary", "hex", "array_nulls", "off"},
		"odd plans":        {"enable_indexscan", "off", "enable_nestloop", "off", "plan_cache_mode", "force_custom_plan"},
		"row security off": {"row_security", "off"},
	} {
		t.Run(name, func(t *testing.T) {
			works(t, open(t, settingsPool(t, settings...), &postgres.Options{Schema: newSchema(t, admin)}))
		})
	}
}

// TestDecoys: tables and functions of others, of the same names and earlier in
// the search_path, are not taken for ours.
func TestDecoys(t *testing.T) {
	admin := openPool(t, testserver.Postgres(t), 2)
	schema, decoys := newSchema(t, admin), newSchema(t, admin)
	s := open(t, settingsPool(t, "search_path", decoys+", pg_catalog"), &postgres.Options{Schema: schema})
	rows, err := admin.Query(t.Context(), `SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relkind IN ('r', 'S', 'v')`, schema)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		exec(t, admin, fmt.Sprintf("CREATE TABLE %s.%s (decoy int)", decoys, name))
	}
	works(t, s)
	works(t, open(t, s.Pool(), &postgres.Options{Schema: newSchema(t, admin)}))
}

// TestOldServer fakes the number of the server's version.
func TestOldServer(t *testing.T) {
	admin := openPool(t, testserver.Postgres(t), 2)
	schema := newSchema(t, admin)
	exec(t, admin, `CREATE FUNCTION `+schema+`.current_setting(name text) RETURNS text LANGUAGE sql AS
		$$ SELECT CASE WHEN name = 'server_version_num' THEN '120022' ELSE pg_catalog.current_setting(name) END $$`)
	pool := settingsPool(t, "search_path", schema+", pg_catalog")
	_, err := postgres.New(t.Context(), pool, &postgres.Options{Schema: schema})
	if !errors.Is(err, postgres.ErrServer) || !strings.Contains(err.Error(), "12") {
		t.Errorf("server of version 12: %v, want ErrServer", err)
	}
}

// TestByteaEscape: payloads and results are read as they are, however the server would
// write them as text.
func TestByteaEscape(t *testing.T) {
	payload := []byte("a\x00\\\xff'é")
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			config := settingsPool(t, "bytea_output", "escape").Config()
			config.ConnConfig.DefaultQueryExecMode = mode
			s := withConfig(t, fresh(t, postgres.Options{}), config)
			for _, priority := range []int{0, 1} {
				enqueue(t, s, pawl.Request{Payload: payload, Priority: priority, Retention: time.Hour})
			}
			for _, j := range claim(t, s, 2) {
				settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack, Result: payload})
				found, err := s.Get(t.Context(), "", j.ID)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(j.Payload, payload) || !bytes.Equal(found[0].Payload, payload) || !bytes.Equal(found[0].Result, payload) {
					t.Errorf("claimed %q, then got %q with result %q; want %q", j.Payload, found[0].Payload, found[0].Result, payload)
				}
			}
		})
	}
}

// TestOtherEncodings are refused: a text that they lack would fail a call for many
// jobs, or be another text to other programs.
func TestOtherEncodings(t *testing.T) {
	server := testserver.Postgres(t)
	admin := openPool(t, server, 1)
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		name := "pawl_" + strings.ToLower(encoding)
		exec(t, admin, "CREATE DATABASE "+name+" ENCODING '"+encoding+"' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
		config, err := pgxpool.ParseConfig(server.DSN(name))
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
		for what, pool := range map[string]*pgxpool.Pool{
			"database": openWith(t, config), "client": settingsPool(t, "client_encoding", encoding),
		} {
			_, err := postgres.New(t.Context(), pool, &postgres.Options{Schema: newSchema(t, admin)})
			if !errors.Is(err, postgres.ErrServer) || !strings.Contains(err.Error(), encoding) {
				t.Errorf("%s of %s: %v, want ErrServer", what, encoding, err)
			}
		}
	}
}

// TestReadOnlyServers are refused: by their settings, and as standbys.
func TestReadOnlyServers(t *testing.T) {
	pool := settingsPool(t, "default_transaction_read_only", "on")
	if _, err := postgres.New(t.Context(), pool, nil); !errors.Is(err, postgres.ErrServer) {
		t.Errorf("read-only by default: %v, want ErrServer", err)
	}
	server := testserver.NewPostgres(t, nil)
	if err := server.Halt(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(server.Dir(), "data", "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.New(t.Context(), openPool(t, server, 1), nil); !errors.Is(err, postgres.ErrServer) {
		t.Errorf("standby: %v, want ErrServer", err)
	}
}

// TestDemoted: a connection to a server that takes no writes any more is given
// up, so that the next call may find another.
func TestDemoted(t *testing.T) {
	var demoted atomic.Bool
	config := openPool(t, testserver.Postgres(t), 1).Config()
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if !demoted.Load() {
			return nil
		}
		_, err := conn.Exec(ctx, "SET default_transaction_read_only = on")
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
	if _, err := s.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{})}); err == nil {
		t.Fatal("a read-only connection stored a job")
	}
	demoted.Store(false)
	enqueue(t, s, pawl.Request{})
}

func TestAsynchronousCommitWarns(t *testing.T) {
	admin := openPool(t, testserver.Postgres(t), 1)
	for setting, want := range map[string]int{"off": 1, "local": 0, "on": 0} {
		log := newWarnings()
		open(t, settingsPool(t, "synchronous_commit", setting), &postgres.Options{Schema: newSchema(t, admin), Logger: slog.New(log)})
		if n := len(log.came); n != want {
			t.Errorf("synchronous_commit %s: %d warnings, want %d", setting, n, want)
		}
	}
}

// TestIdleSessionsEnd: a server that ends idle connections fails no call.
func TestIdleSessionsEnd(t *testing.T) {
	admin := openPool(t, testserver.Postgres(t), 1)
	var version int
	if err := admin.QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		t.Fatal(err)
	}
	if version < 140000 {
		return // has no such setting
	}
	pool := settingsPool(t, "idle_session_timeout", "50", "application_name", "idle sessions")
	s := open(t, pool, &postgres.Options{Schema: newSchema(t, admin), PollOnly: true})
	for range 3 {
		enqueue(t, s, pawl.Request{})
		for n := 1; n > 0; { // until the server has ended them
			const sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idle sessions'"
			if err := admin.QueryRow(t.Context(), sessions).Scan(&n); err != nil {
				t.Fatal(err)
			}
		}
	}
	claim(t, s, 3)
}

// TestMigrateWithoutRights says what is missing.
func TestMigrateWithoutRights(t *testing.T) {
	admin := openPool(t, testserver.Postgres(t), 1)
	schema := newSchema(t, admin)
	exec(t, admin, "CREATE ROLE modest LOGIN; GRANT USAGE ON SCHEMA "+schema+" TO modest")
	t.Cleanup(func() { // before the schema goes
		if _, err := admin.Exec(context.Background(), "DROP OWNED BY modest; DROP ROLE modest", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	})
	config := admin.Config()
	config.ConnConfig.User = "modest"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	_, err = postgres.New(t.Context(), pool, &postgres.Options{Schema: schema})
	if err == nil || !strings.Contains(err.Error(), "permission denied for schema "+schema) {
		t.Errorf("without the right to create: %v", err)
	}
	_, err = postgres.New(t.Context(), pool, &postgres.Options{Schema: "no_such_schema"})
	if err == nil || !strings.Contains(err.Error(), "no_such_schema") {
		t.Errorf("without the schema: %v", err)
	}
}

// TestMigratePatiently: another process that migrates may take longer than the
// role's statements.
func TestMigratePatiently(t *testing.T) {
	admin := openPool(t, testserver.Postgres(t), 2)
	o := &postgres.Options{Schema: newSchema(t, admin)}
	first := beginAt(t, open(t, admin, &postgres.Options{Schema: newSchema(t, admin)}), pgx.ReadCommitted)
	if err := postgres.MigrateTx(t.Context(), first, o); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	pool := settingsPool(t, "statement_timeout", "150", "application_name", "patient")
	go func() { done <- postgres.Migrate(t.Context(), pool, o) }()
	var seen time.Time
	for seen.IsZero() || time.Since(seen) < 300*time.Millisecond { // for longer than the timeout
		const waits = `SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE application_name = 'patient'
			AND query LIKE '%pg_try_advisory_xact_lock%')`
		var waited bool
		if err := admin.QueryRow(t.Context(), waits).Scan(&waited); err != nil {
			t.Fatal(err)
		}
		if waited && seen.IsZero() {
			seen = time.Now()
		}
		select {
		case err := <-done:
			t.Fatalf("did not wait: %v", err)
		default:
		}
	}
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestLongNames: a prefix and a schema of the greatest length.
func TestLongNames(t *testing.T) {
	admin := openPool(t, testserver.Postgres(t), 2)
	schema := strings.Repeat("s", 63)
	exec(t, admin, "CREATE SCHEMA "+schema)
	t.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), "DROP SCHEMA "+schema+" CASCADE"); err != nil {
			t.Error(err)
		}
	})
	for _, last := range []string{"a", "b"} { // which differ in the last letter alone
		works(t, open(t, admin, &postgres.Options{Schema: schema, Prefix: strings.Repeat("p", 39) + last}))
	}
}

// TestUnknownSystem: a role that may not ask which server it is on works all the
// same.
func TestUnknownSystem(t *testing.T) {
	server := testserver.NewPostgres(t, nil)
	pool := openPool(t, server, 2)
	enqueue(t, open(t, pool, nil), pawl.Request{})
	exec(t, pool, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
	exec(t, pool, "CREATE ROLE worker LOGIN")
	exec(t, pool, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO worker")
	exec(t, pool, "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO worker")
	config := pool.Config()
	config.ConnConfig.User = "worker"
	claim(t, open(t, openWith(t, config), &postgres.Options{NoMigrate: true}), 1)
}
