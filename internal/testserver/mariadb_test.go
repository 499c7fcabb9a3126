package testserver

import (
	"database/sql"
	"errors"
	"os"
	"testing"
)

func TestMariaDBSurvivesKill(t *testing.T) {
	s := NewMariaDB(t, &MariaDBOptions{MaxConnections: 20, Settings: map[string]string{"sort-buffer-size": "1M"}})
	err := s.Exec(t.Context(), "CREATE DATABASE kept", "CREATE TABLE kept.t (n INT)", "INSERT INTO kept.t VALUES (7)")
	if err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if err := s.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Fatal("a killed server takes connections")
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", s.DSN("kept"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var n, connections, buffer, flush int
	err = db.QueryRowContext(t.Context(), `SELECT n, @@max_connections, @@sort_buffer_size,
		@@innodb_flush_log_at_trx_commit FROM t`).Scan(&n, &connections, &buffer, &flush)
	if err != nil || n != 7 || connections != 20 || buffer != 1<<20 || flush != 1 {
		t.Errorf("after a restart: row %d, max_connections %d, sort_buffer_size %d, innodb_flush_log_at_trx_commit %d, error %v",
			n, connections, buffer, flush, err)
	}
}

func TestMariaDBStopRemovesFolder(t *testing.T) {
	s := startMariaDB(t, &MariaDBOptions{Fsync: true})
	dir := s.Dir()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestMariaDBShared(t *testing.T) {
	var first *MariaDBServer
	t.Run("group", func(t *testing.T) {
		first = MariaDB(t)
		if second := MariaDB(t); second != first {
			t.Error("two servers in one binary")
		}
	})
	if _, err := os.Stat(first.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server outlived its last user: %v", err)
	}
}
