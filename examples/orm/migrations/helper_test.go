package migrations

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

// first is the number of our first file, after those of the program itself.
const first = 7

// addOld stores a job as the first version did.
func addOld(t *testing.T, db *sql.DB, o *postgres.Options) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), `INSERT INTO `+o.Schema+`.`+o.Prefix+`job
		(id, queue, kind, state, priority, run_at, created_at, retention, max_attempts, max_rescues)
		VALUES (gen_random_uuid(), 'default', 'old', 2, 0, 1, 1, 0, 1, 0)`); err != nil {
		t.Fatal(err)
	}
}

// works enqueues a job, and claims it and the old one.
func works(t *testing.T, pool *pgxpool.Pool, o *postgres.Options, old bool) {
	t.Helper()
	s, err := postgres.New(t.Context(), pool, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	q := pawl.New(s, nil)
	if _, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "new"}); err != nil {
		t.Fatal(err)
	}
	want := []string{"new"}
	if old {
		want = []string{"old", "new"}
	}
	c, err := s.Claim(t.Context(), pawl.ClaimSpec{
		Queues: []pawl.QueueAsk{{Queue: pawl.DefaultQueue, Max: 10}}, Max: 10, Lease: time.Minute, Worker: "w", Token: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, j := range c.Jobs {
		kinds = append(kinds, j.Kind)
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("claimed %q, want %q", kinds, want)
	}
}

// database makes a schema.
func database(t *testing.T, schema string) (*sql.DB, *pgxpool.Pool) {
	t.Helper()
	dsn := testserver.Postgres(t).DSN("")
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db, pool
}

// write has the example write its files.
func write(t *testing.T, tool string, o *postgres.Options) (dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "go", "run", "github.com/pawlq/pawl/examples/migrate",
		"-schema", o.Schema, "-prefix", o.Prefix, "-tool", tool, "-dir", dir, "-first", fmt.Sprint(first), "files")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// A step is one whose file has a number.
type step struct {
	postgres.Step
	n int
}

func named(t *testing.T, o *postgres.Options) (all []step) {
	t.Helper()
	steps, err := postgres.Steps(o)
	if err != nil {
		t.Fatal(err)
	}
	for k, s := range steps {
		all = append(all, step{s, first + k})
	}
	return all
}

// number is that of the file, of some digits at least.
func (s step) number(digits int) string { return fmt.Sprintf("%0*d", digits, s.n) }

// checkNames compares the names of a tool's files.
func checkNames(t *testing.T, tool string, want []string) (dir string) {
	t.Helper()
	dir = write(t, tool, &postgres.Options{Schema: "x", Prefix: "j_"})
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	return dir
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
