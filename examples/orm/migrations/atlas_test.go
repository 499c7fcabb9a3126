package migrations

import (
	"database/sql"
	"slices"
	"strings"
	"testing"

	"ariga.io/atlas/sql/migrate"

	"github.com/pawlq/pawl/storage/postgres"
)

// TestAtlas reads the files as atlas does and runs their statements one by one, in
// a transaction for each file that does not say otherwise; the command that would
// do so is no Go package.
//
// Names: a numeric version, an underscore, a label; in the order of letters
// (https://atlasgo.io/guides/evaluation/setup-migrations).
func TestAtlas(t *testing.T) {
	o := &postgres.Options{Schema: "atlas", Prefix: "j_", NoMigrate: true}
	db, pool := database(t, o.Schema)
	dir, err := migrate.NewLocalDir(write(t, "atlas", o))
	if err != nil {
		t.Fatal(err)
	}
	files, err := dir.Files()
	if err != nil {
		t.Fatal(err)
	}
	for k, f := range named(t, o) {
		if k >= len(files) || files[k].Version() != f.number(5) || files[k].Desc() != "pawl_"+f.Name {
			t.Fatalf("file %d is not that of step %q: %v", k, f.Name, files)
		}
		stmts, err := files[k].Stmts()
		if err != nil || len(stmts) == 0 {
			t.Fatal(f.Name, stmts, err)
		}
		mode := files[k].(*migrate.LocalFile).Directive("txmode")
		if want := map[bool][]string{true: {"none"}}[f.Outside]; !slices.Equal(mode, want) {
			t.Errorf("%s: mode %q, want %q", f.Name, mode, want)
		}
		if err := atlas(t, db, stmts, f.Outside); err != nil {
			t.Fatal(f.Name, err)
		}
	}
	works(t, pool, o, false)
}

func atlas(t *testing.T, db *sql.DB, stmts []string, outside bool) error {
	if outside {
		for _, stmt := range stmts {
			if _, err := db.ExecContext(t.Context(), stmt); err != nil {
				return err
			}
		}
		return nil
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after the commit
	for _, stmt := range stmts {
		if _, err := tx.ExecContext(t.Context(), stmt); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// TestNamesOfGoose: numbers of five digits, as goose itself makes them with -s, an
// underscore, a text (https://pressly.github.io/goose/documentation/annotations).
func TestNamesOfGoose(t *testing.T) {
	var want []string
	for _, f := range named(t, nil) {
		want = append(want, f.number(5)+"_pawl_"+f.Name+".sql")
	}
	checkNames(t, "goose", want)
}

// TestNamesOfFlyway: V, a number, two underscores, a text; settings of one file are
// in another with .conf after its whole name
// (https://documentation.red-gate.com/fd, "Migrations" and "Script configuration").
func TestNamesOfFlyway(t *testing.T) {
	var want []string
	for _, f := range named(t, nil) {
		name := "V" + f.number(1) + "__pawl_" + f.Name + ".sql"
		want = append(want, name)
		if f.Outside {
			want = append(want, name+".conf")
		}
	}
	dir := checkNames(t, "flyway", want)
	for _, name := range want {
		if strings.HasSuffix(name, ".conf") && read(t, dir, name) != "executeInTransaction=false\n" {
			t.Errorf("%s: %q", name, read(t, dir, name))
		}
	}
}
