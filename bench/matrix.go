package main

import (
	"fmt"
	"io"
	"slices"
)

// A group is the cells that are compared with each other: one workload with
// one set of parameters on one storage.
type group []*Cell

// matrix lists the groups that the options ask for.
func matrix(o *options) []group {
	var groups []group
	for _, w := range workloads() {
		for _, storage := range storages {
			if len(w.Storages) > 0 && !slices.Contains(w.Storages, storage) {
				continue
			}
			for _, p := range w.grid() {
				if (w.Slow || p.Slow) && o.brief() || p.On != "" && p.On != storage {
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
		if c.Storage != storage || w.Only != "" && c.Name != w.Only || o.leavesOut(c) {
			continue
		}
		for _, v := range c.Variants(w) {
			if v.Extra && (o.brief() || o.Quick && c.Name != "pawl") || o.brief() && w.Single && g.keepsOtherwise(c.Name, v.Retention) {
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

// brief reports whether the run is to be one of minutes over everything.
func (o *options) brief() bool { return o.Quick && o.only == nil }

// leavesOut reports whether a brief run does without a contender: the engine is
// no queue that one could pick.
func (o *options) leavesOut(c *Contender) bool { return o.brief() && c.Name == "engine" }

// keepsOtherwise reports whether a system is in the group with another retention.
func (g group) keepsOtherwise(system, retention string) bool {
	return slices.ContainsFunc(g, func(c *Cell) bool { return c.C.Name == system && c.P.Retention != retention })
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
