package mysql

import (
	"context"
	"database/sql"
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
// by default. Any number of processes may call it at once, while others work on
// the tables. It waits until open transactions that have used a table that is to
// be changed have ended.
func Migrate(ctx context.Context, db *sql.DB, o *Options) error {
	f, err := o.filled()
	if err != nil {
		return err
	}
	return explain("migrate", migrate(ctx, db, f, Migrations()))
}

// Waits of a migration.
const (
	// lockWait is how long one attempt to become the one that migrates waits on
	// the server. It is short, so that the end of a context is noticed.
	lockWait = 5 * time.Second
	// tableWait is for a table that open transactions have used. All others wait
	// behind the statement meanwhile, so it gives up soon and lets them through
	// for tablePause.
	tableWait  = time.Second
	tablePause = 2 * time.Second
)

// migrate runs the steps that the schema lacks, under a lock of the server: its
// statements commit by themselves.
func migrate(ctx context.Context, db *sql.DB, o *Options, steps fs.FS) error {
	want, err := latest(steps)
	if err != nil {
		return err
	}
	have, err := schemaVersion(ctx, db, o.Prefix)
	if err != nil || have == want {
		return err // without the lock
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	// The connection goes, and with it the lock and what is set here.
	defer throwAway(conn)
	if err := lockSchema(ctx, conn, o.Prefix); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", int(tableWait.Seconds()))); err != nil {
		return err
	}
	return migrateSteps(ctx, conn, o, steps, want)
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

func migrateSteps(ctx context.Context, run Querier, o *Options, steps fs.FS, want int) error {
	have, err := schemaVersion(ctx, run, o.Prefix)
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
		for _, statement := range statements(string(all), o.Prefix) {
			if err := patiently(ctx, run, o, statement); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if have, err = schemaVersion(ctx, run, o.Prefix); err == nil && have != want {
		err = &pawl.SchemaError{Have: have, Want: want}
	}
	return err
}

// patiently runs a statement, again and again if it waits in vain for a table.
func patiently(ctx context.Context, run Querier, o *Options, statement string) error {
	for try := 1; ; try++ {
		_, err := run.ExecContext(ctx, statement)
		if code(err) != codeLockTimeout {
			return err
		}
		if try == 1 {
			o.Logger.WarnContext(ctx, "pawl/mysql: a migration waits until transactions that use a table have ended")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(tablePause):
		}
	}
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
