package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/check"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/load"
	"github.com/pawlq/pawl/torture/results"
)

// A run is one torture.
type run struct {
	o      *options
	out    io.Writer
	dir    string // of histories and logs
	log    *history.Writer
	place  *place
	direct *store // past the proxy
	q      *pawl.Queue
	audit  *auditor
	crew   *crew // nil if all is in this process
	faults *injector
	began  time.Time
	lasted time.Duration // until the faults stopped
}

var errViolated = errors.New("guarantees do not hold")

// torture makes a run and judges it. What it has shown is nil if it did not begin, or was
// broken off.
func torture(ctx context.Context, o *options, out io.Writer) (shown *results.Total, err error) {
	r := &run{o: o, out: out, began: time.Now()}
	fmt.Fprintf(out, "%s\n", o.replay())
	defer func() { err = errors.Join(err, r.close(err != nil && ctx.Err() == nil)) }()
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	report, err := r.through(ctx)
	switch {
	case err == nil:
		return r.tell(report)
	case ctx.Err() != nil:
		return nil, err
	default:
		return r.failed(), errors.Join(err, r.writeFaults())
	}
}

// through goes through with a run that was prepared.
func (r *run) through(ctx context.Context) (*check.Report, error) {
	if err := r.attack(ctx); err != nil {
		return nil, err
	}
	left, err := r.finish(ctx)
	if err != nil {
		return nil, err
	}
	return r.judge(ctx, left)
}

// prepare makes the place and what belongs to the program in it.
func (r *run) prepare(ctx context.Context) (err error) {
	if r.dir = r.o.keep; r.dir == "" {
		r.dir, err = os.MkdirTemp("", "pawl-torture-*")
	} else {
		err = os.MkdirAll(r.dir, 0o700)
	}
	if err != nil {
		return err
	}
	if r.log, err = history.Create(r.dir, "controller"); err != nil {
		return err
	}
	r.log.Write(history.Event{Kind: history.Began, A: history.Wall()})
	if r.place, err = newPlace(ctx, r.o.storage, r.dir, r.o.disk); err != nil {
		return err
	}
	if r.direct, err = openStore(ctx, r.o.storage, r.place.direct, connections, nil); err != nil {
		return err
	}
	r.q = pawl.New(r.direct.Storage, queueOptions(&config{Name: "controller", Lease: r.o.lease}))
	r.audit = &auditor{storage: r.o.storage, s: r.direct}
	r.faults = &injector{o: r.o, place: r.place, direct: r.direct, log: r.log}
	return r.audit.prepare(ctx)
}

// attack lets the crew work, and makes faults, until all jobs are enqueued and the
// time is over.
func (r *run) attack(ctx context.Context) error {
	if r.o.storage == "memory" {
		return r.attackHere(ctx)
	}
	var err error
	if r.crew, err = newCrew(r.dir, r.log); err != nil {
		return err
	}
	r.faults.crew = r.crew
	if err := r.hire(); err != nil {
		return err
	}
	faulty, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	var wg sync.WaitGroup
	if r.o.faults {
		wg.Go(func() { failed <- r.faults.run(faulty) })
	}
	err = r.watch(ctx, failed)
	stop()
	wg.Wait()
	r.lasted = time.Since(r.began)
	return err
}

// hire starts producers and workers.
func (r *run) hire() error {
	for i := range r.o.workers {
		if err := r.crew.add(*r.config("worker", i), nil); err != nil {
			return err
		}
	}
	for i := range r.o.producers {
		made := 0
		quota := r.config("producer", i).Quota
		again := func(c *config) { // goes on where the last one was ended
			made += r.intended(c.Name)
			c.Quota = max(quota-made, 1)
		}
		if err := r.crew.add(*r.config("producer", i), again); err != nil {
			return err
		}
	}
	return nil
}

// intended counts the jobs that a producer meant to enqueue.
func (r *run) intended(name string) (n int) {
	// A history that can't be read is noticed by the checker.
	_ = history.Read(r.dir, name, func(e history.Event) {
		if e.Kind == history.Intend && load.Way(e.B) != load.RollBack {
			n++
		}
	})
	return n
}

// config is for the ith process of a role. One worker is spared, to see whether it leaks;
// the next one has a single connection, which its handlers take now and then.
func (r *run) config(role string, i int) *config {
	c := &config{Role: role, Storage: r.o.storage, DSN: r.place.dsn, Dir: r.dir, Seed: r.o.seed + uint64(i)<<32,
		Lease: r.o.lease, Sweep: r.o.sweep, Slots: r.o.slots, Callers: r.o.callers, Batch: r.o.batch, Connections: connections, Skew: r.o.skew}
	c.Spared = role == "worker" && i == 0
	if role == "worker" && i == 1 {
		c.Connections = 1
	}
	c.Quota = (r.o.jobs + r.o.producers - 1) / r.o.producers
	c.Rate = float64(c.Quota) / max(r.o.duration.Seconds()*0.95, 0.1)
	if r.o.faults && r.o.only == "" && r.o.storage != "memory" {
		// About one such job in 3 s, and at least three.
		c.Deadly = int(1e6 * max(r.o.duration.Seconds()/3, 3) / float64(r.o.jobs))
	}
	return c
}

// attackHere is for a storage that only one process can have.
func (r *run) attackHere(ctx context.Context) error {
	working, stop := context.WithCancel(ctx)
	var workers, producers sync.WaitGroup
	errs := make(chan error, r.o.workers+r.o.producers)
	begin := func(ctx context.Context, wg *sync.WaitGroup, i int, c *config, do func(context.Context, *config, *store, *history.Writer) error) error {
		c.Number, c.Name = i, fmt.Sprintf("%s-%d", c.Role, i)
		log, err := history.Create(r.dir, c.Name)
		if err != nil {
			return err
		}
		wg.Go(func() { errs <- errors.Join(do(ctx, c, r.direct, log), log.Close()) })
		return nil
	}
	var err error
	for i := range r.o.workers {
		err = errors.Join(err, begin(working, &workers, 1+i, r.config("worker", i), work))
	}
	for i := range r.o.producers {
		err = errors.Join(err, begin(ctx, &producers, 1+r.o.workers+i, r.config("producer", i), produce))
	}
	done := make(chan struct{})
	go func() { producers.Wait(); close(done) }()
	err = errors.Join(err, r.watchUntil(ctx, nil, func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}))
	r.lasted = time.Since(r.began)
	if err == nil {
		_, err = r.drain(ctx)
	}
	stop()
	workers.Wait()
	<-done
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	return err
}

func (r *run) watch(ctx context.Context, failed <-chan error) error {
	return r.watchUntil(ctx, failed, func() bool { return r.crew.at("producer") == 0 })
}

// watchUntil samples the numbers of the queues each second, kicks some jobs, and
// tells how it goes, until done and the time is over.
func (r *run) watchUntil(ctx context.Context, failed <-chan error, done func() bool) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 0; ; n++ {
		if done() && time.Since(r.began) >= r.o.duration {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			if err != nil {
				return fmt.Errorf("faults: %w", err)
			}
			failed = nil
		case <-tick.C:
		}
		if n%3 == 0 {
			r.kick(ctx)
		}
		text := r.sample(ctx)
		if n%5 == 4 {
			fmt.Fprintf(r.out, "%4.0fs %s; %s\n", time.Since(r.began).Seconds(), text, r.hits())
		}
	}
}

func (r *run) hits() string {
	text := "faults:"
	for k, n := range r.faults.counts() {
		if n > 0 {
			text += fmt.Sprintf(" %d %v,", n, faultKind(k))
		}
	}
	return text[:len(text)-1]
}

// kick kicks some jobs that were buried for good, which are buried again.
func (r *run) kick(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	// While the server is away this fails, and what it did is counted on the jobs.
	_, _ = r.q.KickAll(ctx, pawl.Filter{Queue: load.Main, Kind: load.Permanent.String(), States: []pawl.State{pawl.Buried}}, 3)
}

// sample writes down the numbers of the queues whose jobs stay.
func (r *run) sample(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	before := history.Now()
	stats, err := r.q.Stats(ctx, load.Main, load.ByHand)
	if err != nil {
		return "numbers unknown"
	}
	var all pawl.QueueStats
	total := int64(0)
	for _, s := range stats {
		total += s.Scheduled + s.Ready + s.Running + s.Completed + s.Buried + s.Canceled
		all.Ready += s.Ready
		all.Running += s.Running
		all.Completed += s.Completed
		all.Scheduled += s.Scheduled
	}
	r.log.Write(history.Event{At: before, Kind: history.Counted, Fence: history.Now(), A: total})
	return fmt.Sprintf("%d jobs: %d scheduled, %d ready, %d running, %d completed", total, all.Scheduled, all.Ready, all.Running, all.Completed)
}

// close ends what is still there and removes the folder, unless it is asked for or
// something went wrong.
func (r *run) close(failed bool) error {
	var err error
	if r.crew != nil {
		r.crew.kill()
	}
	if r.direct != nil {
		err = r.direct.close()
	}
	if r.place != nil {
		err = errors.Join(err, r.place.close())
	}
	if r.log != nil {
		err = errors.Join(err, r.log.Close())
	}
	if failed && r.o.keep == "" && r.dir != "" {
		fmt.Fprintf(r.out, "histories and logs are in %s\nto make the same faults: %s\n", r.dir, r.o.replay())
		return err
	}
	if r.o.keep == "" {
		err = errors.Join(err, os.RemoveAll(r.dir))
	}
	return err
}

func (r *run) writeFaults() error {
	text := ""
	for _, line := range r.faults.done {
		text += line + "\n"
	}
	return os.WriteFile(filepath.Join(r.dir, "faults.txt"), []byte(text), 0o600)
}
