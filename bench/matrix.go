package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// A group is the cells that are compared with each other: one workload with
// one set of parameters on one storage.
type group []*Cell

// matrix lists the groups that the options ask for.
func matrix(o *options) []group {
	var groups []group
	for _, w := range workloads() {
		for _, storage := range []string{"postgres", "sqlite", "redis", "mysql", "memory"} {
			if len(w.Storages) > 0 && !slices.Contains(w.Storages, storage) {
				continue
			}
			for _, p := range w.grid() {
				if (w.Slow || p.Slow) && o.Quick && o.only == nil {
					continue
				}
				if g := newGroup(o, w, p, storage); len(g) > 0 {
					groups = append(groups, g)
				}
			}
		}
	}
	return groups
}

func (w *Workload) grid() []Params {
	if len(w.Grid) == 0 {
		return []Params{{}}
	}
	return w.Grid
}

func newGroup(o *options, w *Workload, p Params, storage string) group {
	var g group
	for _, c := range contenders() {
		if c.Storage != storage || w.Only != "" && c.Name != w.Only {
			continue
		}
		for _, v := range c.Variants(w) {
			if v.Extra && o.Quick {
				continue
			}
			cell := &Cell{Settings: o.Settings, W: w, C: c, V: v, P: p.with(w, v, o.Payload)}
			if o.only == nil || o.only.MatchString(cell.Name()) {
				g = append(g, cell)
			}
		}
	}
	return g
}

func list(out io.Writer, groups []group) error {
	last := ""
	for _, g := range groups {
		if w := g[0].W; w.Name != last {
			last = w.Name
			if _, err := fmt.Fprintf(out, "\n%s: %s\n", w.Name, w.About); err != nil {
				return err
			}
		}
		for _, c := range g {
			if _, err := fmt.Fprintln(out, " ", c.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

func count(groups []group) (n int) {
	for _, g := range groups {
		n += len(g) * g[0].Reps
	}
	return n
}

// A runner runs groups one after the other.
type runner struct {
	places   *Places
	progress io.Writer
	total    int
	ran      int
	began    time.Time
	pawl     []error // of pawl's own cells: those of peers are a result
}

// runAll returns the results of all groups, or of those that ran before ctx
// ended.
func (r *runner) runAll(ctx context.Context, groups []group) (results []*Result) {
	for _, g := range groups {
		if ctx.Err() != nil {
			break
		}
		results = append(results, r.runGroup(ctx, g)...)
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
		if c.Sys != nil { // kept for all repetitions
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

func (r *runner) runCell(ctx context.Context, c *Cell) (o outcome) {
	r.ran++
	began := time.Now()
	if o.err = r.ready(ctx, c); o.err == nil {
		o.metrics, o.err = c.run(ctx)
	}
	if c.Sys != nil && (!c.W.Keep || o.err != nil) {
		o.err = errors.Join(o.err, c.close(context.WithoutCancel(ctx)))
	}
	r.note(c, o.err)
	r.tell(c, o, time.Since(began))
	return o
}

func (r *runner) ready(ctx context.Context, c *Cell) error {
	if c.Sys != nil {
		return nil
	}
	return c.open(ctx, r.places)
}

// note keeps the failures of pawl.
func (r *runner) note(c *Cell, err error) {
	if err != nil && !errors.Is(err, errCannot) && !errors.Is(err, context.Canceled) && c.C.Name == "pawl" {
		r.pawl = append(r.pawl, fmt.Errorf("%s: %w", c.Name(), err))
	}
}

func (r *runner) failed() error { return errors.Join(r.pawl...) }

// tell prints a line on the progress of the run. A line that can't be written
// is no reason to end it.
func (r *runner) tell(c *Cell, o outcome, took time.Duration) {
	said := ""
	for _, m := range o.metrics {
		said += fmt.Sprintf("  %s %s %s", m.Name, number(m.Value), m.Unit)
	}
	if o.err != nil {
		said += fmt.Sprintf("  failed: %v", o.err)
	}
	_, _ = fmt.Fprintf(r.progress, "[%d/%d %s] %s (%.1f s)%s\n", r.ran, r.total, time.Since(r.began).Round(time.Second), c.Name(), took.Seconds(), said)
}
