// Tx shows effects that happen exactly once. Its jobs move money between the
// accounts of a bank and are acked in the transaction that moves it. The
// handler panics at random between its steps, and the process that works is
// killed several times; at the end there is one ledger entry for each job.
//
//	go run ./examples/tx -jobs 200 -crash 0.1 -kills 3
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		log.Fatal(err)
	}
}

type config struct {
	jobs  int
	crash float64
	kills int
	work  string
	die   int64
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var c config
	f := flag.NewFlagSet("tx", flag.ContinueOnError)
	f.IntVar(&c.jobs, "jobs", 200, "how many transfers to make, up to 10000")
	f.Float64Var(&c.crash, "crash", 0.1, "let this `fraction` of all steps panic")
	f.IntVar(&c.kills, "kills", 3, "how often to kill the process that works")
	f.StringVar(&c.work, "work", "", "be the process that works, on this `file`")
	f.Int64Var(&c.die, "die", 0, "with -work: be killed at this step")
	if err := f.Parse(args); err != nil {
		return err
	}
	switch {
	case c.jobs < 1 || c.jobs > pawl.MaxBatch:
		return errors.New("-jobs must be between 1 and 10000")
	case !(c.crash >= 0 && c.crash <= 0.5): // with more, jobs take for ever
		return errors.New("-crash must be between 0 and 0.5")
	case c.kills < 0 || c.kills > maxKills:
		return fmt.Errorf("-kills must be between 0 and %d", maxKills)
	case c.work != "":
		return work(ctx, c)
	}
	return supervise(ctx, c, out)
}

// maxKills is less than the rescues of a job, so that none is buried for having
// been there each time.
const maxKills = 50

// work runs jobs until ctx ends, or the process.
func work(ctx context.Context, c config) error {
	store, err := sqlite.Open(ctx, c.work, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	queue := pawl.New(store, &pawl.Options{
		Backoff: pawl.Constant(10 * time.Millisecond),
		Lease:   500 * time.Millisecond,        // how long the jobs of a killed process wait
		Logger:  slog.New(slog.DiscardHandler), // its panics are meant
	})
	b := &bank{store, queue, &trouble{crash: c.crash, die: c.die}}
	tasks := task.NewMux()
	task.Register(tasks, b.transfer)
	return worker.New(queue, tasks, &worker.Options{SweepEvery: 200 * time.Millisecond, Prefetch: worker.NoPrefetch}).Run(ctx)
}

// supervise enqueues the transfers, keeps a process working until they are
// done, and audits the bank.
func supervise(ctx context.Context, c config, out io.Writer) (err error) {
	folder, err := os.MkdirTemp("", "tx-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	c.work = filepath.Join(folder, "bank.db")
	store, err := sqlite.Open(ctx, c.work, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	if err := openAccounts(ctx, store); err != nil {
		return err
	}
	queue := pawl.New(store, &pawl.Options{Poll: 100 * time.Millisecond})
	ids, err := enqueue(ctx, queue, c.jobs)
	if err != nil {
		return err
	}
	killed, jobs, err := workUntilDone(ctx, c, queue, ids)
	if err != nil {
		return err
	}
	return report(ctx, store, jobs, killed, out)
}

func enqueue(ctx context.Context, queue *pawl.Queue, n int) ([]pawl.ID, error) {
	requests := make([]*pawl.Request, n)
	for i := range requests {
		from := rand.IntN(accounts)
		to := (from + 1 + rand.IntN(accounts-1)) % accounts
		requests[i] = task.New(Transfer{from, to, 1 + rand.IntN(100)})
		requests[i].MaxAttempts = pawl.Unlimited
		requests[i].MaxRescues = 2 * maxKills
	}
	receipts, err := queue.EnqueueMany(ctx, requests)
	ids := make([]pawl.ID, len(receipts))
	for i, r := range receipts {
		ids[i] = r.ID
	}
	return ids, err
}

// workUntilDone starts the working process, and another whenever it was killed,
// until all jobs have ended.
func workUntilDone(ctx context.Context, c config, queue *pawl.Queue, ids []pawl.ID) (killed int, jobs []*pawl.Job, err error) {
	workers, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		var err error
		jobs, err = queue.Wait(workers, pawl.DefaultQueue, ids...)
		stop()
		done <- err
	}()
	for workers.Err() == nil {
		die := 0
		if killed < c.kills {
			die = 1 + rand.IntN(2*c.jobs/c.kills) // surely before all is done
		}
		err := workerProcess(workers, c, die)
		switch exit := (*exec.ExitError)(nil); {
		case err == nil || workers.Err() != nil:
		case errors.As(err, &exit) && exit.ExitCode() == -1: // by a signal
			killed++
		default:
			stop()
			<-done
			return killed, nil, fmt.Errorf("working process: %w", err)
		}
	}
	return killed, jobs, <-done
}

// workerProcess runs this program once more, to work until ctx ends.
func workerProcess(ctx context.Context, c config, die int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, "-work", c.work, "-die", strconv.Itoa(die),
		"-crash", strconv.FormatFloat(c.crash, 'g', -1, 64))
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	return cmd.Run()
}

func report(ctx context.Context, store *sqlite.Store, jobs []*pawl.Job, killed int, out io.Writer) error {
	var runs, retries, rescues, completed int
	for _, j := range jobs {
		runs += j.Attempt + j.Counts.Rescues + j.Counts.Releases
		retries += j.Counts.Retries
		rescues += j.Counts.Rescues
		if j.State == pawl.Completed {
			completed++
		}
	}
	entries, err := audit(ctx, store, len(jobs))
	if completed != len(jobs) {
		err = errors.Join(err, errUnfinished)
	}
	row := func(name string, n int, what string) { fmt.Fprintf(out, "%-10s %5d  %s\n", name, n, what) }
	row("jobs", len(jobs), "enqueued")
	row("completed", completed, "acked in their transactions")
	row("claims", runs, "runs, or jobs a killed process held and had not begun")
	row("crashed", retries, "runs that panicked before their commit")
	row("killed", killed, fmt.Sprintf("processes, from which %d jobs were rescued", rescues))
	row("entries", entries, "in the ledger")
	if err == nil {
		fmt.Fprintln(out, "Each transfer was made exactly once, and all balances match.")
	}
	return err
}
