// Bench measures pawl beside other queues of Go programs, each on the storage
// it shares with pawl, in the same run:
//
//	go run .                 # everything; hours
//	go run . -quick          # minutes; cells of 2 s, peers at their best
//	go run . -list           # what there is
//	go run . -run '^drain/'  # a part
//
//	go run . compare OLD.json NEW.json      # what is worse beyond the noise
//	go run . results FILE.json RESULTS.md   # the figures as a page
//	go run . charts FILE.json FOLDER        # and as pictures
//
// It starts a private PostgreSQL server, unless -postgres gives an address.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// Defaults of a full and of a quick run.
const (
	fullLimit, quickLimit       = 60 * time.Second, 2 * time.Second
	fullReps, quickReps         = 3, 1
	defaultJobs, defaultPayload = 100_000, 100
	defaultFinished, bigJobs    = 1_000_000, 1_000_000
)

type options struct {
	Settings
	list bool
	fits bool // the run ends within quickBudget
	json string
	profiles
	postgres string
	only     *regexp.Regexp // nil: all
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := new(options)
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&o.Quick, "quick", false, "short cells, once each, peers at their best configuration only, no slow workloads unless -run names them")
	flags.BoolVar(&o.list, "list", false, "list the cells and run none")
	flags.StringVar(&o.json, "json", "", "also write the results to this `file`")
	flags.StringVar(&o.postgres, "postgres", "", "`address` of a PostgreSQL server on which databases may be created; empty starts a private one")
	flags.DurationVar(&o.Limit, "limit", 0, "time limit of a cell; 0 means 60s, or 2s with -quick")
	flags.IntVar(&o.Reps, "reps", 0, "repetitions; 0 means 3, or 1 with -quick")
	flags.IntVar(&o.Jobs, "jobs", defaultJobs, "jobs of a backlog")
	big := flags.Bool("big", false, "a backlog of 1,000,000 jobs, as -jobs 1000000")
	flags.IntVar(&o.Finished, "finished", defaultFinished, "finished jobs to be beside; other fixtures are a fixed part of it")
	flags.IntVar(&o.Payload, "payload", defaultPayload, "bytes of a payload")
	o.profiles.flags(flags)
	pattern := flags.String("run", "", "run only the cells whose name matches the `regexp`, see -list")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if *big {
		o.Jobs = bigJobs
	}
	o.fits = o.Quick && *pattern == "" && o.Limit == 0 && o.Reps == 0
	o.fill()
	if *pattern == "" {
		return o, nil
	}
	var err error
	o.only, err = regexp.Compile(*pattern)
	return o, err
}

func (o *options) fill() {
	limit, reps := fullLimit, fullReps
	if o.Quick {
		limit, reps = quickLimit, quickReps
	}
	if o.Limit == 0 {
		o.Limit = limit
	}
	if o.Reps == 0 {
		o.Reps = reps
	}
}

// run measures, or does with files of figures what the first argument says.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return runCells(ctx, args, stdout, stderr)
	}
	switch command, files := args[0], args[1:]; {
	case command == "work" && len(files) == 0: // what a cell of two processes starts
		return joinWork(context.Background(), os.Stdin, stdout)
	case command == "compare" && len(files) == 2:
		return compareFiles(stdout, files[0], files[1])
	case command == "results" && len(files) == 2:
		return writeResults(files[0], files[1])
	case command == "charts" && len(files) == 2:
		return writeCharts(files[0], files[1])
	}
	return errors.New("commands are: compare OLD.json NEW.json, results FILE.json RESULTS.md, charts FILE.json FOLDER; without one, see -help")
}

func runCells(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	groups := matrix(o)
	if o.list {
		return list(stdout, groups)
	}
	if len(groups) == 0 {
		return errors.New("no cell has such a name, see -list")
	}
	stop, err := o.profiles.start()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	places := &Places{PostgresDSN: o.postgres}
	r := &runner{places: places, progress: stderr}
	if o.fits {
		r.budget = quickBudget
	}
	if o.json != "" {
		r.save = func(results []*Result) error { return writeJSON(o.json, nil, results) }
	}
	results := r.runAll(ctx, groups)
	env, envErr := environment(ctx, places, results)
	env = append(env, settings(o, r.shortest))
	err = errors.Join(ctx.Err(), r.failed(), envErr, places.Close())
	if o.json != "" {
		err = errors.Join(err, writeJSON(o.json, env, results))
	}
	return errors.Join(err, writeTable(stdout, env, results))
}

// settings says how the cells were run, in words.
func settings(o *options, shortest time.Duration) string {
	said := fmt.Sprintf("cells of %v, %d repetitions in turn, %d jobs in a backlog, payloads of %d bytes", o.Limit, o.Reps, o.Jobs, o.Payload)
	if shortest > 0 && shortest < o.Limit {
		said += fmt.Sprintf("; some were shortened, down to %v, to end in time", shortest)
	}
	return said
}
