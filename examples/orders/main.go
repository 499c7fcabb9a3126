// Orders is a shop on PostgreSQL. A POST inserts an order and enqueues its
// invoice and its notification in one transaction; workers in processes of their
// own write them, each acked in the transaction that writes: exactly once,
// although the processes are killed.
//
//	go run ./examples/orders -demo                        # a private server, 5,000 orders, 20 kills
//	go run ./examples/orders -dsn postgres://... -load 5000 -kills 20
//	go run ./examples/orders -dsn postgres://...          # serve http://127.0.0.1:8081/
//
// -demo starts a server from the PostgreSQL programs installed on the machine
// and removes it at the end. With -dsn the tables are in schema orders_example.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "orders:", err)
		stop()
		os.Exit(1)
	}
}

// config is what the flags say.
type config struct {
	dsn      string
	demo     bool
	addr     string
	load     int
	rollback float64
	kills    int
	workers  int
	slots    int
	slow     time.Duration
	work     string
}

const maxKills = 1000

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	switch {
	case c.work != "":
		return work(ctx, c)
	case c.demo:
		return demo(func(dsn string) error {
			c.dsn = dsn
			return serve(ctx, c, out, progress)
		})
	}
	return serve(ctx, c, out, progress)
}

func parse(args []string) (config, error) {
	var c config
	f := flag.NewFlagSet("orders", flag.ContinueOnError)
	f.StringVar(&c.dsn, "dsn", "", "PostgreSQL `database` to use, as a URL or as key=value")
	f.BoolVar(&c.demo, "demo", false, "use a private server, and send orders")
	f.StringVar(&c.addr, "addr", "", "`address` to listen on (default 127.0.0.1:8081, or any free port with -load)")
	f.IntVar(&c.load, "load", 0, "send so many orders over HTTP, reconcile, and exit with status 1 if a sum is off (with -demo 5000)")
	f.Float64Var(&c.rollback, "rollback", 0.1, "with -load: the `fraction` of orders that roll back after insert and enqueue")
	f.IntVar(&c.kills, "kills", -1, "with -load: how often to SIGKILL a worker that is at work (with -demo 20)")
	f.IntVar(&c.workers, "workers", 3, "processes that work")
	f.IntVar(&c.slots, "slots", 10, "jobs of each kind that a process runs at a time")
	f.DurationVar(&c.slow, "slow", 0, "let every job take this much longer")
	f.StringVar(&c.work, "work", "", "be the process that works under this `name`; the database is in "+dsnEnv)
	if err := f.Parse(args); err != nil {
		return c, err
	}
	c.fill()
	if f.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return c, c.check()
}

func (c *config) fill() {
	if c.work != "" {
		c.dsn = os.Getenv(dsnEnv)
	}
	if c.demo && c.load == 0 {
		c.load = 5000
	}
	if c.kills < 0 {
		c.kills = 0
		if c.demo {
			c.kills = min(20, c.load)
		}
	}
	if c.addr == "" {
		c.addr = "127.0.0.1:8081"
		if c.load > 0 {
			c.addr = "127.0.0.1:0"
		}
	}
}

func (c *config) check() error {
	switch {
	case c.dsn == "" && !c.demo:
		return errors.New(`no database given, so nothing was started. Either name one:
	go run ./examples/orders -dsn postgres://user:password@localhost/database
or, where PostgreSQL's programs are installed (Debian: apt install postgresql), let it start a private server:
	go run ./examples/orders -demo`)
	case c.dsn != "" && c.demo:
		return errors.New("-demo has a server of its own and takes no -dsn")
	case c.load < 0 || c.load > 1_000_000:
		return errors.New("-load must be between 0 and 1000000")
	case !(c.rollback >= 0 && c.rollback <= 1):
		return errors.New("-rollback must be between 0 and 1")
	case c.kills > min(c.load, maxKills):
		return fmt.Errorf("-kills must be at most -load and %d", maxKills)
	case c.workers < 1 || c.workers > 20:
		return errors.New("-workers must be between 1 and 20")
	case c.slots < 1 || c.slots > 1000:
		return errors.New("-slots must be between 1 and 1000")
	case c.slow < 0 || c.slow > time.Minute:
		return errors.New("-slow must be between 0 and 1m")
	}
	return nil
}
