// Torture attacks pawl on a storage and checks its guarantees: it starts a private
// server, producers and workers, kills, stops and cuts them off by a schedule that
// one seed determines, and compares in the end what all of them have witnessed with
// what the storage holds.
//
//	go run . -storage sqlite -jobs 20000 -for 20s
//	go run . -storage postgres -jobs 1000000 -for 10m -results RESULTS.md
//	go run . -soak /tmp/soak -results RESULTS.md    # until all is reached; start it again to go on
//	go run . -storage memory -faults=false
//	go run . -storage redis -linear 1000        # small histories of calls
//	go run . show FOLDER ID     # what histories that were kept tell of a job
//
// See README.md for what is checked.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pawlq/pawl/torture/results"
)

func main() {
	if role := os.Getenv(roleEnv); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, "torture:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if args := os.Args[1:]; len(args) == 3 && args[0] == "show" {
		err = show(os.Stdout, args[1], args[2])
	} else {
		err = start(ctx, args)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context, args []string) error {
	o, err := parse(args, os.Stderr)
	if err != nil {
		return err
	}
	_ = results.Revision() // while it is that of this program
	if o.soak != "" {
		return runSoak(ctx, o, goals, os.Stdout)
	}
	if o.linear > 0 {
		return linearize(ctx, o, os.Stdout)
	}
	_, err = torture(ctx, o, os.Stdout)
	return err
}

// options are what a run is.
type options struct {
	storage            string
	jobs               int
	duration           time.Duration
	seed               uint64
	workers, producers int
	slots              int
	callers, batch     int
	most               int
	lease, sweep       time.Duration
	faults             bool
	every, cutEvery    time.Duration
	drain              time.Duration
	results, keep      string
	only, soak, disk   string
	linear             int
	skew               time.Duration
	vacuity            bool
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := new(options)
	f := flag.NewFlagSet("torture", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.storage, "storage", "sqlite", fmt.Sprintf("one of %v", storages()))
	f.IntVar(&o.jobs, "jobs", 20_000, "how many `jobs` are enqueued, those of transactions that are rolled back not counted")
	f.DurationVar(&o.duration, "for", 20*time.Second, "how long faults go on at least; the jobs are spread over it")
	f.Uint64Var(&o.seed, "seed", 0, "what the faults are drawn from; 0 draws one")
	f.IntVar(&o.workers, "workers", 4, "worker processes")
	f.IntVar(&o.producers, "producers", 2, "producer processes")
	f.IntVar(&o.slots, "slots", 10, "jobs that a worker runs at the same time")
	f.IntVar(&o.callers, "callers", 8, "enqueues at the same time in a producer")
	f.IntVar(&o.batch, "batch", 40, "most jobs of one enqueue")
	f.DurationVar(&o.lease, "lease", 2*time.Second, "of claims")
	f.DurationVar(&o.sweep, "sweep", 500*time.Millisecond, "how often workers sweep")
	f.BoolVar(&o.faults, "faults", true, "make faults; without, all numbers must be exact")
	f.DurationVar(&o.every, "every", 400*time.Millisecond, "mean time between faults")
	f.IntVar(&o.most, "most", 0, "stop making faults after so many; 0 is no limit")
	f.DurationVar(&o.cutEvery, "cut-every", 200*time.Millisecond, "mean time between commits that are cut")
	f.DurationVar(&o.skew, "skew", 0, "by how much wall clocks are wrong, some early and some late, in a program that is built for it")
	f.DurationVar(&o.drain, "drain", 2*time.Minute, "how long jobs may take to end when faults have stopped")
	f.StringVar(&o.only, "only", "", "make only these `faults`, such as \"server kills,worker pauses\"")
	f.StringVar(&o.disk, "disk", "", "keep the jobs on a disk of their own of this `size`, such as 256m, which is full now and then")
	f.StringVar(&o.results, "results", "", "add the outcome to this `file`")
	f.StringVar(&o.soak, "soak", "", "make runs until all goals are reached, of a storage if one is named, for 150m at most if nothing else is said; keep the totals in this `folder`, and go on from them")
	f.IntVar(&o.linear, "linear", 0, "look for an order of the calls of so many small `histories` instead")
	f.StringVar(&o.keep, "keep", "", "leave histories and logs in this `folder`")
	f.BoolVar(&o.vacuity, "vacuity", true, "fail if the faults did not really hit")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if o.soak != "" {
		given := map[string]bool{}
		f.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["storage"] {
			o.storage = ""
		} else if !slices.Contains(storages(), o.storage) {
			return nil, fmt.Errorf("no storage %q; there are %v", o.storage, storages())
		}
		if !given["for"] {
			o.duration = soakTime
		}
		return o, nil
	}
	if !slices.Contains(storages(), o.storage) {
		return nil, fmt.Errorf("no storage %q; there are %v", o.storage, storages())
	}
	for name := range strings.SplitSeq(o.only, ",") { // faultNames has the empty one too
		if !slices.Contains(faultNames[:], name) {
			return nil, fmt.Errorf("no fault %q; there are %q", name, faultNames[1:])
		}
	}
	if o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000) + 1
	}
	if min(o.jobs, o.workers, o.producers, o.slots, o.callers) < 1 || o.batch < 2 {
		return nil, errors.New("-jobs, -workers, -producers, -slots and -callers must be positive, -batch at least 2")
	}
	return o, nil
}

// soakTime is how long a soak goes on by default.
const soakTime = 150 * time.Minute

// replay is the command that makes the same faults again.
func (o *options) replay() string {
	return fmt.Sprintf("go run . -storage %s -jobs %d -for %v -seed %d -workers %d -producers %d -slots %d -callers %d -batch %d -lease %v -sweep %v -every %v -cut-every %v -faults=%v -only %q -skew %v -most %d -disk %q",
		o.storage, o.jobs, o.duration, o.seed, o.workers, o.producers, o.slots, o.callers, o.batch, o.lease, o.sweep, o.every, o.cutEvery, o.faults, o.only, o.skew, o.most, o.disk)
}
