package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/pawlq/pawl"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations returns the SQL files that make the schema, for those who run
// their migrations with another tool: 0001_init.sql and so on, each to be run
// once, in one transaction, in order of name. Each records its version. They
// use [DefaultPrefix]; for another, replace it in the text.
func Migrations() fs.FS {
	sub, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the folder is part of the program
	}
	return sub
}

// Migrate brings the schema in db to the version of this package, as [Open]
// and [New] do by default. Any number of processes may call it at once.
func Migrate(ctx context.Context, db *sql.DB, o *Options) error {
	f, err := o.filled()
	if err != nil {
		return err
	}
	err = untilFree(ctx, func() error {
		conn, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := prepareFile(ctx, plain{conn}); err != nil {
			return err
		}
		return migrate(ctx, plain{conn}, f.Prefix, Migrations())
	})
	return explain("migrate", err)
}

// migrate runs the steps that the schema lacks, all in one transaction.
func migrate(ctx context.Context, run plain, prefix string, steps fs.FS) error {
	want, err := latest(steps)
	if err != nil {
		return err
	}
	if have, err := schemaVersion(ctx, run, prefix); err != nil || have == want {
		return err // without the write lock: the file may be in use for hours
	}
	// What was begun is ended, or the connection goes back to its pool inside
	// a transaction.
	end := context.WithoutCancel(ctx)
	if _, err := run.exec(end, begin); err != nil {
		return err // busy: the caller tries again
	}
	if err := migrateSteps(ctx, run, prefix, steps, want); err != nil {
		_, undo := run.exec(end, rollback)
		if code(undo) == codeError { // SQLite has done that already
			undo = nil
		}
		return errors.Join(err, undo)
	}
	_, err = run.exec(end, commit)
	return err
}

func migrateSteps(ctx context.Context, run plain, prefix string, steps fs.FS, want int) error {
	have, err := schemaVersion(ctx, run, prefix)
	if err != nil {
		return err
	}
	if have > want {
		return &pawl.SchemaError{Have: have, Want: want}
	}
	names, err := fs.Glob(steps, "*.sql")
	if err != nil {
		return err
	}
	for _, name := range names[have:] {
		text, err := fs.ReadFile(steps, name)
		if err != nil {
			return err
		}
		if _, err := run.ExecContext(ctx, withPrefix(string(text), prefix)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if have, err = schemaVersion(ctx, run, prefix); err == nil && have != want {
		err = &pawl.SchemaError{Have: have, Want: want}
	}
	return err
}

// latest is the version that the steps lead to: the number that the last one's
// name begins with, which is also how many there are.
func latest(steps fs.FS) (int, error) {
	names, err := fs.Glob(steps, "*.sql")
	if err != nil {
		return 0, err
	}
	for i, name := range names {
		number, _, _ := strings.Cut(name, "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			return 0, fmt.Errorf("migration %q is not number %d", name, i+1)
		}
	}
	return len(names), nil
}

// schemaVersion reads the version of the schema; 0 if there is none. It looks
// for the jobs first, since another process may be making both tables.
func schemaVersion(ctx context.Context, run reader, prefix string) (int, error) {
	jobs, err := number(ctx, run, hasTable, prefix+"job")
	if err != nil {
		return 0, err
	}
	meta, err := number(ctx, run, hasTable, prefix+"meta")
	if err != nil {
		return 0, err
	}
	if meta == 0 {
		if jobs > 0 {
			err = fmt.Errorf("pawl/sqlite: table %[1]sjob is there without %[1]smeta: %[2]w", prefix, pawl.ErrSchema)
		}
		return 0, err
	}
	version, err := number(ctx, run, newStatements(prefix).version)
	if err == nil && version < 1 {
		err = fmt.Errorf("pawl/sqlite: table %smeta has no valid version: %w", prefix, pawl.ErrSchema)
	}
	return int(version), err
}

// checkVersion fails unless the schema is the one that this package needs.
func checkVersion(ctx context.Context, run reader, prefix string) error {
	want, err := latest(Migrations())
	if err != nil {
		return err
	}
	have, err := schemaVersion(ctx, run, prefix)
	if err == nil && have != want {
		err = &pawl.SchemaError{Have: have, Want: want}
	}
	return err
}

// fileOf is the path of the main database.
func fileOf(ctx context.Context, run reader) (string, error) {
	return text(ctx, run, databaseFile)
}
