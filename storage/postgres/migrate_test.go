package postgres_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
)

func TestMigrateAtOnce(t *testing.T) {
	pool := openPool(t, testserver.Postgres(t), 10)
	schema := newSchema(t, pool)
	errs := make([]error, 10)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = postgres.Migrate(t.Context(), pool, &postgres.Options{Schema: schema}) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	enqueue(t, open(t, pool, &postgres.Options{Schema: schema, NoMigrate: true}), pawl.Request{})
}

func TestSchemaVersions(t *testing.T) {
	pool := openPool(t, testserver.Postgres(t), 4)
	o := &postgres.Options{Schema: newSchema(t, pool), Prefix: "other_", NoMigrate: true}
	var mismatch *pawl.SchemaError
	if _, err := postgres.New(t.Context(), pool, o); !errors.As(err, &mismatch) || mismatch.Have != 0 {
		t.Errorf("without tables: %v, want a SchemaError with version 0", err)
	}
	if err := postgres.Migrate(t.Context(), pool, o); err != nil {
		t.Fatal(err)
	}
	enqueue(t, open(t, pool, o), pawl.Request{})
	if _, err := pool.Exec(t.Context(), "UPDATE "+o.Schema+".other_meta SET version = 99"); err != nil {
		t.Fatal(err)
	}
	for _, o.NoMigrate = range []bool{true, false} {
		if _, err := postgres.New(t.Context(), pool, o); !errors.As(err, &mismatch) || mismatch.Have != 99 {
			t.Errorf("tables of a newer version (NoMigrate %v): %v, want a SchemaError", o.NoMigrate, err)
		}
	}
}

func TestMigrateTxRollsBack(t *testing.T) {
	pool := openPool(t, testserver.Postgres(t), 4)
	o := &postgres.Options{Schema: newSchema(t, pool)}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if err := postgres.MigrateTx(t.Context(), tx, o); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.New(t.Context(), pool, &postgres.Options{Schema: o.Schema, NoMigrate: true}); !errors.Is(err, pawl.ErrSchema) {
		t.Errorf("after a rollback: %v, want ErrSchema", err)
	}
}

// TestMigrateAsReader: a role that can't create needs no right to, once the
// tables are there.
func TestMigrateAsReader(t *testing.T) {
	s := fresh(t, postgres.Options{})
	for _, sql := range []string{
		"CREATE ROLE worker LOGIN", "GRANT USAGE ON SCHEMA " + s.Schema() + " TO worker",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA " + s.Schema() + " TO worker",
		"GRANT USAGE ON ALL SEQUENCES IN SCHEMA " + s.Schema() + " TO worker",
	} {
		if _, err := s.Pool().Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	config := s.Pool().Config()
	config.ConnConfig.User = "worker"
	w := withConfig(t, s, config)
	id := enqueue(t, w, pawl.Request{}).ID
	settle(t, w, pawl.Outcome{Ref: claim(t, w, 1)[0].Ref, Verb: pawl.Ack})
	if got := state(t, w, id); got != pawl.Completed {
		t.Errorf("job is %v, want completed", got)
	}
	t.Cleanup(func() { // before the schema goes
		if _, err := s.Pool().Exec(context.Background(), "DROP OWNED BY worker; DROP ROLE worker", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	})
}

func TestOptionsRefused(t *testing.T) {
	pool := openPool(t, testserver.Postgres(t), 1)
	for _, o := range []postgres.Options{
		{Prefix: "Upper_"}, {Prefix: `a"b`}, {Prefix: "1"}, {Prefix: "_"}, {Prefix: strings.Repeat("p", 41)},
		{Schema: `x"; DROP TABLE y; --`}, {Schema: strings.Repeat("s", 64)},
	} {
		if _, err := postgres.New(t.Context(), pool, &o); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("prefix %q, schema %q: %v, want ErrInvalid", o.Prefix, o.Schema, err)
		}
	}
}

// TestView reads the jobs as people do.
func TestView(t *testing.T) {
	s := fresh(t, postgres.Options{})
	enqueue(t, s, pawl.Request{Payload: []byte(`{"user": 7}`)})
	enqueue(t, s, pawl.Request{Payload: []byte("\xff not JSON"), Priority: 1})
	rows, err := s.Pool().Query(t.Context(), "SELECT coalesce(payload->>'user', 'none') || ' ' || state FROM "+s.Schema()+".pawl_jobs ORDER BY priority")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || strings.Join(got, ", ") != "7 ready, none ready" {
		t.Errorf("rows %q, error %v", got, err)
	}
}

// TestMigrationsAreSQL runs the files as another tool would.
func TestMigrationsAreSQL(t *testing.T) {
	server := testserver.NewPostgres(t, nil)
	pool := openPool(t, server, 2)
	names, err := fs.Glob(postgres.Migrations(), "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(postgres.Migrations(), name)
		if err != nil {
			t.Fatal(err)
		}
		statements := []string{"BEGIN;" + string(text) + "COMMIT"}
		if strings.HasSuffix(name, "_concurrently.sql") {
			statements = strings.SplitAfter(string(text), ";\n")
		}
		for _, sql := range statements {
			if _, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	enqueue(t, open(t, pool, &postgres.Options{NoMigrate: true}), pawl.Request{})
}
