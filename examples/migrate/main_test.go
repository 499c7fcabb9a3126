package main

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

func TestUp(t *testing.T) {
	dsn, _ := database(t, "up")
	args := []string{"-dsn", dsn, "-schema", "up", "-prefix", "j_"}
	if _, err := try(t, append(args, "version")...); err == nil || !strings.Contains(err.Error(), "version 0, ") {
		t.Errorf("before: %v, want version 0", err)
	}
	for _, what := range []string{"up", "version", "up"} {
		if out, err := try(t, append(args, what)...); err != nil || !strings.HasPrefix(out, "version ") {
			t.Errorf("%s: %q, %v", what, out, err)
		}
	}
}

// TestFiles runs the files of each tool as it would.
func TestFiles(t *testing.T) {
	for tool := range tools {
		t.Run(tool, func(t *testing.T) {
			dsn, conn := database(t, tool)
			dir := t.TempDir()
			where := []string{"-schema", tool, "-prefix", "j_"}
			if _, err := try(t, append(where, "-tool", tool, "-dir", dir, "-first", "7", "files")...); err != nil {
				t.Fatal(err)
			}
			if _, err := try(t, append(where, "-tool", tool, "-dir", dir, "-first", "7", "files")...); err == nil {
				t.Error("files were written over")
			}
			for _, sql := range statements(t, tool, dir) {
				if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Fatalf("%v:\n%s", err, sql)
				}
			}
			if _, err := try(t, append(where, "-dsn", dsn, "version")...); err != nil {
				t.Error(err)
			}
		})
	}
}

// number is how the name of a migration's file begins.
func number(path string) string {
	n, _, _ := strings.Cut(filepath.Base(path), "_")
	return n
}

// statements are what a tool sends.
func statements(t *testing.T, tool, dir string) (all []string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.sql"))
	// By number, as the tools do: V10 comes after V9.
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(number(a)), len(number(b))), cmp.Compare(a, b)) })
	if err != nil || len(names) == 0 || !strings.Contains(names[0], "7_") {
		t.Fatal(names, err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		if tool == "goose" {
			for _, block := range strings.Split(text, "-- +goose StatementBegin\n")[1:] {
				sql, _, _ := strings.Cut(block, "-- +goose StatementEnd\n")
				all = append(all, sql)
			}
			continue
		}
		_, err = os.Stat(name + ".conf")
		if err == nil || strings.HasPrefix(text, "-- atlas:txmode none\n\n") {
			all = append(all, split(text)...)
			continue
		}
		all = append(all, text) // several at once are a transaction
	}
	return all
}

// TestOutside makes files of a step that no transaction may hold.
func TestOutside(t *testing.T) {
	s := postgres.Step{Version: 3, Name: "x_concurrently", SQL: "-- why\na;\n\nb;\n", Outside: true}
	for tool, want := range map[string][]file{
		"goose": {{"00009_pawl_x_concurrently.sql", "-- +goose NO TRANSACTION\n-- +goose Up\n" +
			"-- +goose StatementBegin\n-- why\na;\n-- +goose StatementEnd\n-- +goose StatementBegin\n\nb;\n-- +goose StatementEnd\n"}},
		"atlas": {{"00009_pawl_x_concurrently.sql", "-- atlas:txmode none\n\n-- why\na;\n\nb;\n"}},
		"flyway": {
			{"V9__pawl_x_concurrently.sql", s.SQL},
			{"V9__pawl_x_concurrently.sql.conf", "executeInTransaction=false\n"},
		},
	} {
		if got := tools[tool](9, s); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", tool, got, want)
		}
	}
}

func TestSQL(t *testing.T) {
	out, err := try(t, "-schema", "s", "sql")
	if err != nil || !strings.Contains(out, `CREATE TABLE "s".pawl_job (`) {
		t.Errorf("error %v:\n%s", err, out)
	}
	later, err := try(t, "-schema", "s", "-after", "1", "sql")
	if err != nil || strings.Contains(later, "CREATE TABLE \"s\".pawl_job (") || !strings.HasSuffix(out, later) {
		t.Errorf("after version 1: error %v:\n%s", err, later)
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"nothing", nil, "say what to do"},
		{"unknown", []string{"down"}, "down"},
		{"no database", []string{"up"}, "needs -dsn"},
		{"schema", []string{"-schema", `"`, "sql"}, "Schema"},
		{"after", []string{"-after", "99", "sql"}, "-after"},
		{"tool", []string{"-tool", "x", "files"}, "-tool"},
		{"no folder", []string{"files"}, "needs -dir"},
		{"first", []string{"-dir", "x", "-first", "0", "files"}, "-first"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := try(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
		})
	}
}

func try(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), args, &out)
	return out.String(), err
}

// database makes a schema for one test.
func database(t *testing.T, schema string) (dsn string, conn *pgx.Conn) {
	t.Helper()
	dsn = testserver.Postgres(t).DSN("")
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	return dsn, conn
}
