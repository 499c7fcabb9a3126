// Migrate makes the tables of storage/postgres and brings them up to date, or
// writes the SQL for a tool that does.
//
//	go run ./examples/migrate -dsn postgres://... up        # to the version of this program
//	go run ./examples/migrate -dsn postgres://... version   # exit status 1 if it is another
//	go run ./examples/migrate sql                           # print all steps
//	go run ./examples/migrate -tool goose -dir db -first 12 files
//
// -schema and -prefix say where the tables are; the schema must exist.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "migrate:", err)
		stop()
		os.Exit(1)
	}
}

// config is what the flags say.
type config struct {
	options postgres.Options
	dsn     string
	tool    string
	dir     string
	first   int
	after   int
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var c config
	f := flag.NewFlagSet("migrate", flag.ContinueOnError)
	f.StringVar(&c.dsn, "dsn", "", "PostgreSQL `database`, for up and version")
	f.StringVar(&c.options.Schema, "schema", postgres.DefaultSchema, "`schema` of the tables")
	f.StringVar(&c.options.Prefix, "prefix", postgres.DefaultPrefix, "`prefix` of the tables")
	f.StringVar(&c.tool, "tool", "goose", "whose files to write: goose, atlas or flyway")
	f.StringVar(&c.dir, "dir", "", "`folder` to write files to")
	f.IntVar(&c.first, "first", 1, "`number` of the first file, after those that are there")
	f.IntVar(&c.after, "after", 0, "leave out the steps up to this schema `version`")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return errors.New("say what to do: up, version, sql or files")
	}
	steps, err := postgres.Steps(&c.options)
	if err != nil {
		return err
	}
	if c.after < 0 || c.after > len(steps) {
		return fmt.Errorf("-after must be between 0 and %d", len(steps))
	}
	switch what := f.Arg(0); what {
	case "up", "version":
		return connected(ctx, c, what, len(steps), out)
	case "sql":
		return show(steps[c.after:], out)
	case "files":
		return write(c, steps[c.after:], out)
	default:
		return fmt.Errorf("can't do %q, only up, version, sql and files", what)
	}
}

// connected does what needs a database.
func connected(ctx context.Context, c config, what string, want int, out io.Writer) error {
	if c.dsn == "" {
		return fmt.Errorf("%s needs -dsn", what)
	}
	pool, err := pgxpool.New(ctx, c.dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	if what == "up" {
		if err := postgres.Migrate(ctx, pool, &c.options); err != nil {
			return err
		}
	}
	c.options.NoMigrate = true
	store, err := postgres.New(ctx, pool, &c.options)
	if other := (*pawl.SchemaError)(nil); errors.As(err, &other) {
		return fmt.Errorf("version %d, and this program needs %d", other.Have, other.Want)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "version %d\n", want)
	return store.Close()
}

func show(steps []postgres.Step, out io.Writer) error {
	for _, s := range steps {
		if s.Outside {
			fmt.Fprintln(out, "-- Run what follows outside of a transaction.")
		}
		if _, err := fmt.Fprintln(out, s.SQL); err != nil {
			return err
		}
	}
	return nil
}

// write writes new files, and none over one that is there.
func write(c config, steps []postgres.Step, out io.Writer) error {
	format, ok := tools[c.tool]
	switch {
	case !ok:
		return fmt.Errorf("-tool must be goose, atlas or flyway, not %q", c.tool)
	case c.dir == "":
		return errors.New("files needs -dir")
	case c.first < 1:
		return errors.New("-first must be above 0")
	}
	for i, s := range steps {
		for _, f := range format(c.first+i, s) {
			path := filepath.Join(c.dir, f.name)
			if err := create(path, f.text); err != nil {
				return err
			}
			fmt.Fprintln(out, path)
		}
	}
	return nil
}

func create(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
