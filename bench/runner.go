package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"
)

// A runner runs groups one after the other.
type runner struct {
	places   *Places
	progress io.Writer
	save     func([]*Result) error // called after each group with all results up to then; nil: nothing
	budget   time.Duration         // in which the run is to end, with shorter cells if need be; 0: none

	limit, shortest time.Duration // that the budget has led to, now and at all; 0: those of the cells

	total, ran    int
	began         time.Time
	planned, left time.Duration // the estimates of what has run and of what has not
	pawl          []error       // of pawl's own cells: those of peers are a result
}

// runAll returns the results of all groups, or of those that ran before ctx
// ended.
func (r *runner) runAll(ctx context.Context, groups []group) (results []*Result) {
	r.began, r.total, r.left = time.Now(), count(groups), estimate(groups)
	r.say("%d cells, about %v", r.total, r.left.Round(10*time.Second))
	for i, g := range groups {
		if ctx.Err() != nil {
			break
		}
		r.fit(groups[i:])
		results = append(results, r.runGroup(ctx, g)...)
		if r.save == nil {
			continue
		}
		if err := r.save(results); err != nil {
			r.pawl = append(r.pawl, err)
			r.save = nil
		}
	}
	return results
}

// runGroup runs the repetitions in turn: A B, A B, A B.
func (r *runner) runGroup(ctx context.Context, g group) []*Result {
	runs := make([][]outcome, len(g)) // by cell, by repetition
	for rep := range g[0].Reps {
		for i, c := range g {
			if ctx.Err() != nil || rep > 0 && runs[i][rep-1].err != nil {
				runs[i] = append(runs[i], outcome{err: errors.Join(ctx.Err(), errAgain)})
				continue
			}
			runs[i] = append(runs[i], r.runCell(ctx, c))
		}
	}
	for _, c := range g {
		if !c.lost && c.Sys != nil { // kept for all repetitions
			r.note(c, c.close(context.WithoutCancel(ctx)))
		}
	}
	return summarize(g, runs)
}

// errAgain stands for repetitions after one that failed.
var errAgain = errors.New("not repeated after a failure")

// outcome is what one repetition of a cell gave.
type outcome struct {
	metrics []Metric
	err     error
}

func (r *runner) runCell(ctx context.Context, c *Cell) outcome {
	r.ran++
	began := time.Now()
	takes := c.estimate()
	o := r.watch(ctx, c, time.Minute+10*takes)
	r.planned += takes
	r.left -= takes
	r.note(c, o.err)
	r.tell(c, o, time.Since(began))
	return o
}

// errHangs ends a cell that would otherwise end the run.
var errHangs = errors.New("has not ended in many times its time")

// watch attempts a cell, and leaves it alone if it does not end: then it may
// disturb the cells that follow, but they run.
func (r *runner) watch(ctx context.Context, c *Cell, limit time.Duration) outcome {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errHangs)
	defer cancel()
	done := make(chan outcome, 1)
	go func() { done <- r.attempt(ctx, c) }()
	select {
	case o := <-done:
		return o
	case <-ctx.Done():
	}
	select {
	case o := <-done:
		if errors.Is(context.Cause(ctx), errHangs) {
			o.err = errors.Join(o.err, errHangs)
		}
		return o
	case <-time.After(stopLimit):
		c.lost = true
		return outcome{err: errHangs}
	}
}

// attempt runs a cell once, in a new place unless it is to use the last one.
func (r *runner) attempt(ctx context.Context, c *Cell) (o outcome) {
	defer func() {
		if p := recover(); p != nil {
			r.say("%s", debug.Stack())
			o.err = fmt.Errorf("panic: %v", p)
		}
	}()
	if why := c.W.Lacks[c.C.Name]; why != "" {
		return outcome{err: cannot(why)}
	}
	if c.Sys == nil {
		o.err = c.open(ctx, r.places)
	}
	if o.err == nil {
		o.metrics, o.err = c.run(ctx)
	}
	if c.Sys != nil && (!c.W.Keep || o.err != nil) {
		o.err = errors.Join(o.err, c.close(context.WithoutCancel(ctx)))
	}
	return o
}

// note keeps the failures of pawl, which has to take part in everything.
func (r *runner) note(c *Cell, err error) {
	if err != nil && !errors.Is(err, context.Canceled) && c.C.Name == "pawl" {
		r.pawl = append(r.pawl, fmt.Errorf("%s: %w", c.Name(), err))
	}
}

func (r *runner) failed() error { return errors.Join(r.pawl...) }

// tell says what a cell gave, and how long the run will still take.
func (r *runner) tell(c *Cell, o outcome, took time.Duration) {
	said := ""
	for _, m := range o.metrics {
		said += fmt.Sprintf("  %s %s %s", m.Name, number(m.Value), m.Unit)
	}
	if o.err != nil {
		said += fmt.Sprintf("  failed: %v", o.err)
	}
	r.say("[%d/%d %s, %s left] %s (%.1f s)%s", r.ran, r.total, time.Since(r.began).Round(time.Second),
		r.remaining(r.left).Round(time.Second), c.Name(), took.Seconds(), said)
}

// say prints a line on the progress of the run. A line that can't be written
// is no reason to end it.
func (r *runner) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.progress, format+"\n", args...)
}
