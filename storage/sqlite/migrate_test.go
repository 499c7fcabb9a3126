package sqlite

import (
	"database/sql"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
)

func openDB(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "jobs.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestMigrate(t *testing.T) {
	db := openDB(t)
	o := &Options{Prefix: "my_", NoMigrate: true}
	wantSchema := func(want pawl.SchemaError) {
		t.Helper()
		_, err := New(t.Context(), db, o)
		var got *pawl.SchemaError
		if !errors.As(err, &got) || *got != want {
			t.Fatalf("got %v, want %v", err, &want)
		}
	}
	wantSchema(pawl.SchemaError{Have: 0, Want: 1})
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
	if _, err := db.Exec("UPDATE my_meta SET version = 9"); err != nil {
		t.Fatal(err)
	}
	wantSchema(pawl.SchemaError{Have: 9, Want: 1})
	o.NoMigrate = false
	wantSchema(pawl.SchemaError{Have: 9, Want: 1})
}

func TestMigrateErrors(t *testing.T) {
	db := openDB(t)
	if err := Migrate(t.Context(), db, &Options{Prefix: "-"}); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Migrate(t.Context(), db, nil); err == nil {
		t.Error("a closed database was migrated")
	}
}

// Two prefixes in one file are two stores.
func TestPrefixes(t *testing.T) {
	db := openDB(t)
	for _, prefix := range []string{"a_", "b_"} {
		s, err := New(t.Context(), db, &Options{Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, st := range s.q.all {
			if plan(t, db, st.text); t.Failed() {
				return
			}
		}
	}
	var names []string
	rows, err := db.Query("SELECT substr(name, 1, 2) FROM sqlite_master WHERE type = 'table' GROUP BY 1 ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if diff := cmp.Diff([]string{"a_", "b_"}, names); diff != "" {
		t.Error(diff)
	}
}

// steps are our migrations and one more.
func steps(t *testing.T, next string) fs.FS {
	t.Helper()
	first, err := fs.ReadFile(Migrations(), "0001_init.sql")
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{"0001_init.sql": {Data: first}, "0002_next.sql": {Data: []byte(next)}}
}

func TestUpgrade(t *testing.T) {
	db := openDB(t)
	old, err := New(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	run := plain{conn}
	broken := steps(t, "ALTER TABLE pawl_job ADD COLUMN more TEXT; UPDATE pawl_meta SET version = 2; SELECT nothing;")
	if err := migrate(t.Context(), run, DefaultPrefix, broken); err == nil {
		t.Error("a broken step succeeded")
	}
	silent := steps(t, "ALTER TABLE pawl_job ADD COLUMN more TEXT")
	if err := migrate(t.Context(), run, DefaultPrefix, silent); !errors.Is(err, pawl.ErrSchema) {
		t.Errorf("a step that does not record its version: got %v, want ErrSchema", err)
	}
	if have, err := schemaVersion(t.Context(), run, DefaultPrefix); err != nil || have != 1 {
		t.Errorf("version %d, %v after failed steps, want 1", have, err)
	}
	good := steps(t, "ALTER TABLE pawl_job ADD COLUMN more TEXT; UPDATE pawl_meta SET version = 2")
	for range 2 {
		if err := migrate(t.Context(), run, DefaultPrefix, good); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := schemaVersion(t.Context(), run, DefaultPrefix); err != nil || have != 2 {
		t.Errorf("version %d, %v, want 2", have, err)
	}
	// The version before, still running, goes on.
	if _, err := old.Enqueue(t.Context(), []*pawl.Request{{ID: pawl.ID{1}, Queue: "a", Kind: "a"}}); err != nil {
		t.Errorf("the old version can't enqueue: %v", err)
	}
}

func TestStepsAreNumbered(t *testing.T) {
	for _, name := range []string{"init.sql", "0002_init.sql"} {
		if _, err := latest(fstest.MapFS{name: {}}); err == nil {
			t.Errorf("%s was taken for the first step", name)
		}
	}
}
