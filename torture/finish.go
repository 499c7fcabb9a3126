package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/check"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/load"
	"github.com/pawlq/pawl/torture/results"
)

// finish is what comes after the faults: producers that were killed have left
// enqueues that nobody knows the outcome of, and all jobs are to end. It returns how
// many did not.
func (r *run) finish(ctx context.Context) (left int64, err error) {
	if r.crew != nil {
		if err := r.resolve(ctx); err != nil {
			return 0, fmt.Errorf("enqueue again: %w", err)
		}
	}
	if _, err := r.q.CancelAll(ctx, pawl.Filter{Queue: load.Main, Kind: load.Canceled.String()}, 0); err != nil {
		return 0, fmt.Errorf("cancel: %w", err)
	}
	left, err = r.drain(ctx)
	if r.crew != nil {
		r.crew.end()
	}
	return left, err
}

// resolve enqueues again what producers left of unknown outcome. Those in a
// transaction are what their orders are.
func (r *run) resolve(ctx context.Context) error {
	open := map[pawl.ID]load.Class{}
	names, err := history.Processes(r.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := history.Read(r.dir, name, func(e history.Event) {
			switch way := load.Way(e.B); {
			case e.Kind == history.Intend && way != load.InTx && way != load.RollBack:
				open[e.ID] = load.Class(e.A)
			case e.Kind == history.Accepted, e.Kind == history.Refused, e.Kind == history.Resolved:
				delete(open, e.ID)
			}
		})
		if err != nil {
			return err
		}
	}
	for id, class := range open {
		receipt, err := r.q.Enqueue(ctx, load.Request(id, class))
		if err != nil {
			return err
		}
		r.log.Write(history.Event{Kind: history.Resolved, ID: id, A: int64(receipt.Status)})
	}
	return nil
}

// drain waits until all jobs have ended, or it has taken too long, and returns how
// many have not.
func (r *run) drain(ctx context.Context) (left int64, err error) {
	// Jobs that should be canceled by a producer that was killed wait for an hour.
	until := time.Now().Add(r.o.drain)
	for {
		if _, err := r.q.CancelAll(ctx, pawl.Filter{Queue: load.Main, Kind: load.Canceled.String(), States: []pawl.State{pawl.Scheduled}}, 0); err != nil {
			return 0, fmt.Errorf("cancel: %w", err)
		}
		stats, err := r.q.Stats(ctx, load.Main, load.GoneQueue, load.ByHand)
		if err != nil {
			return 0, err
		}
		left = 0
		for _, s := range stats {
			left += s.Scheduled + s.Ready + s.Running
		}
		if left == 0 || time.Now().After(until) {
			return left, nil
		}
		if err := sleep(ctx, 250*time.Millisecond); err != nil {
			return left, err
		}
	}
}

// judge compares all that is known.
func (r *run) judge(ctx context.Context, left int64) (*check.Report, error) {
	in := &check.Input{Dir: r.dir, Waiting: left, Lease: r.o.lease, Sweep: r.o.sweep, Slack: rescueSlack, Grace: rescueGrace,
		Slots: r.o.slots + goneSlots(r.o.slots) + byHand, Buffer: settleBuffer, Owed: settleOwed, Exact: !r.o.faults,
		OldClock: r.o.storage == "mysql", Hopeful: r.o.storage == "mysql" || r.o.storage == "postgres"}
	if r.o.only != "" {
		in.Settle = settleTime // else other faults follow at once
	}
	if r.o.storage == "sqlite" {
		in.Slack += sqliteGrace
	}
	in.Witnessed = r.audit.tables() || r.place.aof != ""
	in.Jobs = func(f func(*pawl.Job)) error {
		for j, err := range r.q.Jobs(ctx, pawl.Filter{}) {
			if err != nil {
				return err
			}
			f(j)
		}
		return nil
	}
	if r.audit.tables() {
		if err := r.audit.fill(ctx, in); err != nil {
			return nil, err
		}
	}
	if r.place.aof != "" {
		if err := readAOF(r.place.aof, in); err != nil {
			return nil, err
		}
	}
	return check.Run(in)
}

const (
	// rescueSlack is what may come to the time of a rescue because the machine is
	// busy, and workers that are to sweep have just been killed themselves.
	rescueSlack = time.Second
	// rescueGrace is for times when all workers were just dead.
	rescueGrace = 8 * time.Second
	// settleBuffer is how many outcomes a pool gathers before it settles them. While that
	// takes long there are more, of two calls at most: then it claims nothing.
	settleBuffer = 64
	settleOwed   = 2 * pawl.MaxStep
	// sqliteGrace is what SQLite's storage adds after its writer was held up.
	sqliteGrace = 10 * time.Second
)

// tell prints the outcome and says whether it is as it should be.
func (r *run) tell(report *check.Report) (*results.Total, error) {
	fmt.Fprintf(r.out, "%s on %s, seed %d, faults for %v: %s\n", "torture", r.o.storage, r.o.seed, r.lasted.Round(time.Second), r.hits())
	report.Write(r.out)
	shown := r.result(report)
	var err error
	if !report.Clean() {
		err = errViolated
	}
	if r.crew != nil {
		for _, text := range r.crew.problems() {
			err = errors.Join(err, errors.New(text))
			shown.Counts[results.Others]++
			shown.Broken = shown.Seeds
		}
	}
	if r.o.faults && r.o.vacuity {
		if v := r.vacuous(report); v != nil {
			err, shown.Vacuous = errors.Join(err, v), shown.Seeds
		}
	}
	if err != nil {
		err = errors.Join(err, r.writeFaults())
	}
	if r.o.results != "" {
		err = errors.Join(err, results.Put(r.o.results, shown))
	}
	return shown, err
}

// vacuous fails if the faults have hardly hit: then nothing was shown.
func (r *run) vacuous(report *check.Report) error {
	var errs []error
	want := func(what string, have, least int64) {
		if have < least {
			errs = append(errs, fmt.Errorf("vacuous: %s: %d, and at least %d are needed", what, have, least))
		}
	}
	seconds := r.o.duration.Seconds()
	stale := min(100, int64(seconds*2))
	want("stale outcomes refused", report.StaleRefused, stale)
	if r.crew == nil {
		return errors.Join(errs...)
	}
	want("workers that closed all", report.Closed, 1)
	want("samples of numbers", report.Samples, int64(seconds/4))
	if r.direct.inTx != nil {
		want("orders", report.Orders, 1)
		want("effects", report.Effects, 1)
	}
	s := newSchedule(r.o.seed, r.o.every, r.faults.can)
	hits := r.faults.counts()
	planned := seconds / r.o.every.Seconds()
	if r.o.most > 0 {
		planned = min(planned, float64(r.o.most))
	}
	if hits[killWorker] > 20 && r.o.only != "" { // else an outage or a pause may hide all of them
		want("deaths whose rescues' time counts", int64(len(report.Recoveries)), 1)
	}
	if hits[killWorker] > 20 && r.o.only == "" { // else nothing keeps jobs waiting
		for p := range check.Enqueuing {
			want("deaths of workers with "+p.String(), report.Phases[p], 1)
		}
	}
	if hits[killProducer] > 10 {
		want("deaths of producers with "+check.Enqueuing.String(), report.Phases[check.Enqueuing], 1)
	}
	if r.config("producer", 0).Deadly > 0 {
		want("jobs that kill their process", report.Poisonous, int64(seconds/36))
	}
	for k := killWorker; k < cutCommits; k++ {
		// Faults that last keep others waiting, so a fifth of the plan must do.
		want(k.String(), int64(hits[k]), int64(planned*s.share(k)/5))
	}
	want("enqueues that failed with time left", report.Failed, int64(hits[fillDisk]))
	want("rescues", report.Rescues, int64(hits[killWorker])/2)
	if r.faults.cutter != nil {
		cuts := r.faults.cutter.counts()
		least := int64(seconds / r.o.cutEvery.Seconds() / 20)
		for way, n := range cuts[1:] {
			want(fmt.Sprintf("commit cuts of sort %d", way+1), int64(n), min(50, least))
		}
		want("enqueues of unknown outcome", report.Unknown, min(50, least))
		if r.direct.inTx != nil {
			want("transactions of unknown outcome", report.UnknownTx, min(10, least/5))
		}
	}
	return errors.Join(errs...)
}
