package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/pawlq/pawl"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations returns the SQL files that make the schema, for those who run their
// migrations with another tool: 0001_init.sql and so on, each to be run once, in
// order of name. Each records its version in its last statement, and can be run
// again if it was not run to its end. They use [DefaultPrefix]; for another,
// replace it in the text.
func Migrations() fs.FS {
	sub, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the folder is part of the program
	}
	return sub
}

// Migrate brings the tables in db to the version of this package, as [New] does
// by default. Any number of processes may call it at once.
func Migrate(ctx context.Context, db *sql.DB, o *Options) error {
	f, err := o.filled()
	if err != nil {
		return err
	}
	return explain("migrate", migrate(ctx, db, f.Prefix, Migrations()))
}

// lockWait is how long one attempt to become the one that migrates waits on the
// server. It is short, so that the end of a context is noticed.
const lockWait = 5 * time.Second

// migrate runs the steps that the schema lacks, under a lock of the server: its
// statements commit by themselves.
func migrate(ctx context.Context, db *sql.DB, prefix string, steps fs.FS) error {
	want, err := latest(steps)
	if err != nil {
		return err
	}
	have, err := schemaVersion(ctx, db, prefix)
	if err != nil || have == want {
		return err // without the lock
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := lockSchema(ctx, conn, prefix); err != nil {
		return err
	}
	defer unlockSchema(ctx, conn, prefix)
	return migrateSteps(ctx, conn, prefix, steps, want)
}

// The lock belongs to the server, so its name has that of the database in it. A
// name may have 64 characters.
const lockName = "CONCAT('pawl.', MD5(CONCAT(DATABASE(), '.', ?)))"

func lockSchema(ctx context.Context, conn *sql.Conn, prefix string) error {
	for {
		var got sql.NullInt64
		err := conn.QueryRowContext(ctx, "SELECT GET_LOCK("+lockName+", ?)", prefix, int(lockWait.Seconds())).Scan(&got)
		if err != nil {
			return err
		}
		if got.Int64 == 1 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// unlockSchema gives the lock back, or closes the connection that has it.
func unlockSchema(ctx context.Context, conn *sql.Conn, prefix string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockWait)
	defer cancel()
	var released sql.NullInt64
	err := conn.QueryRowContext(ctx, "SELECT RELEASE_LOCK("+lockName+")", prefix).Scan(&released)
	if err != nil || released.Int64 != 1 {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}

func migrateSteps(ctx context.Context, run Querier, prefix string, steps fs.FS, want int) error {
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
		all, err := fs.ReadFile(steps, name)
		if err != nil {
			return err
		}
		for _, statement := range statements(string(all), prefix) {
			if _, err := run.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if have, err = schemaVersion(ctx, run, prefix); err == nil && have != want {
		err = &pawl.SchemaError{Have: have, Want: want}
	}
	return err
}

// statements splits a file, whose statements end with ";\n".
func statements(file, prefix string) (all []string) {
	for part := range strings.SplitSeq(strings.ReplaceAll(file, DefaultPrefix, prefix), ";\n") {
		if strings.TrimSpace(part) != "" {
			all = append(all, part)
		}
	}
	return all
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
