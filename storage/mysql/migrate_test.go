package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
)

var schemas atomic.Int64

// ownDB opens a database of the test's own on the shared server.
func ownDB(t *testing.T) *sql.DB {
	t.Helper()
	server := testserver.MariaDB(t)
	name := fmt.Sprintf("own_%d", schemas.Add(1))
	if err := server.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", server.DSN(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestMigrate(t *testing.T) {
	db := ownDB(t)
	o := &Options{Prefix: "my_", NoMigrate: true}
	wantSchema := func(want pawl.SchemaError) {
		t.Helper()
		_, err := New(t.Context(), db, o)
		var got *pawl.SchemaError
		if !errors.As(err, &got) || *got != want {
			t.Fatalf("got %v, want %v", err, &want)
		}
	}
	wantSchema(pawl.SchemaError{Have: 0, Want: 2})
	for range 2 {
		if err := Migrate(t.Context(), db, o); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(t.Context(), db, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Count(t.Context()); !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("a closed Store: %v", err)
	}
	if _, err := db.Exec("UPDATE my_meta SET version = 9"); err != nil {
		t.Fatal(err)
	}
	wantSchema(pawl.SchemaError{Have: 9, Want: 2})
	o.NoMigrate = false
	wantSchema(pawl.SchemaError{Have: 9, Want: 2})
}

// Many processes migrate at once, beside tables of others.
func TestMigrateTogether(t *testing.T) {
	db := ownDB(t)
	if _, err := db.Exec("CREATE TABLE job (n INT)"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			s, err := New(context.Background(), db, nil)
			if err != nil {
				t.Error(err)
				return
			}
			_ = s.Close() // never fails
		})
	}
	wg.Wait()
	tables := 0
	if err := db.QueryRow("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()").Scan(&tables); err != nil {
		t.Fatal(err)
	}
	if tables != 7 {
		t.Errorf("%d tables, want ours and the other one", tables)
	}
}

// A step that was broken off is run again; those that ran are not.
func TestMigrateAgain(t *testing.T) {
	db := ownDB(t)
	first, err := fs.ReadFile(Migrations(), "0001_init.sql")
	if err != nil {
		t.Fatal(err)
	}
	second := "ALTER TABLE pawl_queue ADD COLUMN IF NOT EXISTS more INT;\n%sUPDATE pawl_meta SET version = 2;\n"
	steps := func(between string) fs.FS {
		return fstest.MapFS{
			"0001_init.sql": {Data: first}, "0002_more.sql": {Data: []byte(fmt.Sprintf(second, between))},
		}
	}
	o := &Options{Prefix: "x_", Logger: slog.Default()}
	if err := migrate(t.Context(), db, o, steps("SELECT nothing FROM nowhere;\n")); err == nil {
		t.Fatal("a step with a wrong statement succeeded")
	}
	if v, err := schemaVersion(t.Context(), db, "x_"); v != 1 || err != nil {
		t.Errorf("after a step that failed the version is %d, error %v", v, err)
	}
	if err := migrate(t.Context(), db, o, steps("")); err != nil {
		t.Error(err)
	}
	if v, err := schemaVersion(t.Context(), db, "x_"); v != 2 || err != nil {
		t.Errorf("the version is %d, error %v", v, err)
	}
}

func TestOptions(t *testing.T) {
	for _, prefix := range []string{"-", "A_", "1a", strings.Repeat("a", 41)} {
		if _, err := New(t.Context(), nil, &Options{Prefix: prefix}); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("prefix %q: %v", prefix, err)
		}
	}
	for version, want := range map[string]bool{
		"10.6.1-MariaDB": true, "10.11.19-MariaDB-0+deb12u1": true, "11.4.2-MariaDB": true, "8.0.36": true, "9.1.0": true,
		"10.5.9-MariaDB": false, "5.7.44-log": false, "what": false, "a.b.c": false, "8.x.1": false,
	} {
		if isSupported(version) != want {
			t.Errorf("version %s: supported is %v", version, !want)
		}
	}
}

// Settings under which a crash loses commits are told of.
func TestWarnings(t *testing.T) {
	server := testserver.NewMariaDB(t, &testserver.MariaDBOptions{
		Settings: map[string]string{"innodb-flush-log-at-trx-commit": "2"},
	})
	if err := server.Exec(t.Context(), "CREATE DATABASE d"); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", server.DSN("d"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var log strings.Builder
	s, err := New(t.Context(), db, &Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !strings.Contains(log.String(), "innodb_flush_log_at_trx_commit=2") {
		t.Errorf("logged %q", &log)
	}
}
