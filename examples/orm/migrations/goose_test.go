package migrations

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
)

// TestGoose brings tables from each version of the past to that of the present;
// version 0 is none.
func TestGoose(t *testing.T) {
	steps, err := postgres.Steps(nil)
	if err != nil {
		t.Fatal(err)
	}
	for have := range steps {
		t.Run(fmt.Sprintf("from %d", have), func(t *testing.T) {
			o := &postgres.Options{Schema: fmt.Sprintf("goose_%d", have), Prefix: "j_", NoMigrate: true}
			db, pool := database(t, o.Schema)
			files := write(t, "goose", o)
			tool, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS(files), goose.WithTableName(o.Schema+".goose"))
			if err != nil {
				t.Fatal(err)
			}
			if have > 0 {
				if _, err := tool.UpTo(t.Context(), int64(first+have-1)); err != nil {
					t.Fatal(err)
				}
				addOld(t, db, o)
			}
			var old *pawl.SchemaError
			if _, err := postgres.New(t.Context(), pool, o); !errors.As(err, &old) || old.Have != have || old.Want != len(steps) {
				t.Errorf("before: %v, want a SchemaError from version %d", err, have)
			}
			done, err := tool.Up(t.Context())
			if err != nil || len(done) != len(steps)-have {
				t.Fatalf("%d steps were made, error %v, want %d", len(done), err, len(steps)-have)
			}
			if done, err := tool.Up(t.Context()); err != nil || len(done) != 0 {
				t.Errorf("again: %d steps were made, error %v", len(done), err)
			}
			works(t, pool, o, have > 0)
		})
	}
}
