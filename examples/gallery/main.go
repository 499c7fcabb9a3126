// Gallery is a small photo service on one SQLite file. A POST stores a picture
// and, in the same transaction, the job that will make its thumbnail; workers
// in the same process make thumbnails; the contact sheet shows pictures, the
// states of their jobs and the dead-letter queue.
//
//	go run ./examples/gallery          # serve http://127.0.0.1:8080/
//	go run ./examples/gallery -demo    # upload the Go distribution's test pictures
//
// The process may be killed at any time (kill -9 and the number that it prints: go
// run is another process): started again on the same file it finishes what was
// begun.
//
//	go run ./examples/gallery -demo -db g.db -slow 1s
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
	"runtime"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "gallery:", err)
		stop()
		os.Exit(1)
	}
}

// config is what the flags say.
type config struct {
	addr    string
	db      string
	workers int
	trouble trouble
	demo    bool
	exit    bool
	dir     string
}

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	if c.db == "" && c.demo {
		folder, err := os.MkdirTemp("", "gallery-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		c.db = filepath.Join(folder, "gallery.db")
	}
	return serve(ctx, c, out)
}

func parse(args []string) (config, error) {
	var c config
	f := flag.NewFlagSet("gallery", flag.ContinueOnError)
	f.StringVar(&c.addr, "addr", "", "`address` to listen on (default 127.0.0.1:8080, or any free port with -demo)")
	f.StringVar(&c.db, "db", "", "SQLite `file` (default gallery.db, or a temporary one with -demo)")
	f.IntVar(&c.workers, "workers", runtime.NumCPU(), "how many thumbnails are made at a time")
	f.Float64Var(&c.trouble.flaky, "flaky", 0, "let this `fraction` of all runs fail, to see them retried")
	f.DurationVar(&c.trouble.slow, "slow", 0, "let every run take this much longer, to watch it")
	f.BoolVar(&c.demo, "demo", false, "upload pictures and report what became of them")
	f.BoolVar(&c.exit, "exit", false, "with -demo: exit after the report, with status 1 if its sums are off")
	f.StringVar(&c.dir, "dir", "", "with -demo: `folder` of pictures (default the Go distribution's image/testdata)")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if c.addr == "" {
		c.addr = "127.0.0.1:8080"
		if c.demo {
			c.addr = "127.0.0.1:0"
		}
	}
	if c.db == "" && !c.demo {
		c.db = "gallery.db"
	}
	return c, c.check(f)
}

func (c *config) check(f *flag.FlagSet) error {
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	case c.workers < 1 || c.workers > 1000:
		return errors.New("-workers must be between 1 and 1000")
	case !(c.trouble.flaky >= 0 && c.trouble.flaky <= 1):
		return errors.New("-flaky must be between 0 and 1")
	case c.trouble.slow < 0 || c.trouble.slow > time.Minute:
		return errors.New("-slow must be between 0 and 1m")
	case !c.demo && (c.exit || c.dir != ""):
		return errors.New("-exit and -dir need -demo")
	}
	return nil
}
