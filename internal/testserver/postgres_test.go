package testserver

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestPostgresSurvivesKill(t *testing.T) {
	s := NewPostgres(t, &PostgresOptions{MaxConnections: 20, Settings: map[string]string{"work_mem": "5MB"}})
	run(t, s, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (7)")
	s.Kill()
	if _, err := pgx.Connect(t.Context(), s.DSN("")); err == nil {
		t.Fatal("a killed server takes connections")
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if got := run(t, s, "SELECT n::text FROM kept"); got != "7" {
		t.Errorf("after a restart the row is %q", got)
	}
	if got := run(t, s, "SHOW work_mem"); got != "5MB" {
		t.Errorf("work_mem is %s", got)
	}
	if got := run(t, s, "SHOW max_connections"); got != "20" {
		t.Errorf("max_connections is %s", got)
	}
}

func TestPostgresStopRemovesFolder(t *testing.T) {
	s := startPostgres(t, nil)
	dir := s.Dir()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestPostgresShared(t *testing.T) {
	var first *PostgresServer
	t.Run("group", func(t *testing.T) {
		first = Postgres(t)
		if second := Postgres(t); second != first {
			t.Error("two servers in one binary")
		}
	})
	if _, err := os.Stat(first.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server outlived its last user: %v", err)
	}
}

// run runs statements and returns the first column of the last one's row.
func run(t *testing.T, s *PostgresServer, statements ...string) (text string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range statements {
		text = ""
		if err := conn.QueryRow(t.Context(), sql).Scan(&text); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			t.Fatal(err)
		}
	}
	return text
}
