package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func newTimes(ms ...int) []time.Duration {
	times := make([]time.Duration, len(ms))
	for i, n := range ms {
		times[i] = time.Duration(n) * time.Millisecond
	}
	return times
}

// noSystem is a System that workloads of these tests do not use.
type noSystem struct{ System }

func (noSystem) Close() error { return nil }

// fakeGroup has a cell for each of the functions, by systems with those names.
func fakeGroup(names []string, runs []func(context.Context) ([]Metric, error)) (g group) {
	for i, name := range names {
		w := &Workload{Name: "drain", Run: func(ctx context.Context, _ *Cell) ([]Metric, error) { return runs[i](ctx) }}
		c := &Contender{Name: name, Storage: "memory", Open: func(context.Context, *Place, Variant) (System, error) { return noSystem{}, nil }}
		g = append(g, &Cell{Settings: Settings{Reps: 1, Limit: time.Millisecond}, W: w, C: c})
	}
	return g
}

func works(context.Context) ([]Metric, error) { return []Metric{rate("drain", 7, 1)}, nil }

func breaks(context.Context) ([]Metric, error) { return nil, errors.New("broken") }

func panics(context.Context) ([]Metric, error) { panic("out of order") }

func TestFailedCellsDoNotEndTheRun(t *testing.T) {
	runs := []func(context.Context) ([]Metric, error){breaks, panics, works}
	for _, names := range [][]string{{"river", "gue", "pawl"}, {"pawl", "river", "gue"}} {
		var progress bytes.Buffer
		saved := 0
		r := &runner{places: new(Places), progress: &progress, save: func(results []*Result) error { saved = len(results); return nil }}
		results := r.runAll(t.Context(), []group{fakeGroup(names, runs)})
		if len(results) != 3 || results[0].Reason != "broken" || results[1].Reason != "panic: out of order" || results[2].Value != 7 {
			t.Errorf("%v: %+v %+v %+v", names, results[0], results[1], results[2])
		}
		if pawls := names[0] == "pawl"; (r.failed() != nil) != pawls {
			t.Errorf("%v: the run fails: %v", names, r.failed())
		}
		if saved != 3 || !strings.Contains(progress.String(), "failed: broken") || !strings.Contains(progress.String(), "[3/3") {
			t.Errorf("%d saved, progress:\n%s", saved, &progress)
		}
	}
}

func TestCellThatHangsIsLeftAlone(t *testing.T) {
	hangs := func(ctx context.Context) ([]Metric, error) { <-ctx.Done(); return nil, ctx.Err() }
	g := fakeGroup([]string{"gue"}, []func(context.Context) ([]Metric, error){hangs})
	r := &runner{places: new(Places), progress: new(bytes.Buffer)}
	if o := r.watch(t.Context(), g[0], time.Millisecond); !errors.Is(o.err, errHangs) {
		t.Errorf("%v", o.err)
	}
}

// A run of minutes has to have all figures that comparisons are made with.
func TestQuickRun(t *testing.T) {
	o, err := parse([]string{"-quick"}, new(bytes.Buffer))
	if err != nil {
		t.Fatal(err)
	}
	groups := matrix(o)
	if took := estimate(groups); took > 9*time.Minute+15*time.Second || !o.fits {
		t.Errorf("about %v, which leaves little of ten minutes", took)
	}
	has := map[string]bool{}
	for _, g := range groups {
		for _, c := range g {
			has[c.Name()] = true
			if c.C.Name == "engine" || c.P.Config == defaults {
				t.Errorf("%s is part of it", c.Name())
			}
		}
	}
	for _, storage := range []string{"postgres", "sqlite", "redis", "mysql", "memory"} {
		for _, name := range []string{"enqueue-1/S/pawl/callers=1,100 B", "enqueue-16/S/pawl/callers=16,100 B", "enqueue-100/S/pawl/callers=100,100 B",
			"bulk/S/pawl/batch=1000,callers=1,100 B", "drain/S/pawl/history,slots=10,100 B", "drain/S/pawl/delete,slots=100,100 B",
			"steady/S/pawl/delete,slots=100,batch=500,callers=1,100 B", "latency/S/pawl/history,slots=10,100 B", "due-at-once/S/pawl/history,slots=100,100 B"} {
			if name := strings.Replace(name, "/S/", "/"+storage+"/", 1); !has[name] {
				t.Errorf("%s is missing", name)
			}
		}
	}
}

func TestCellsAreShortenedToEndInTime(t *testing.T) {
	o, err := parse([]string{"-quick"}, new(bytes.Buffer))
	if err != nil {
		t.Fatal(err)
	}
	groups := matrix(o)
	r := &runner{progress: new(bytes.Buffer), budget: estimate(groups) + time.Second, began: time.Now()}
	if r.fit(groups); r.limit != quickLimit {
		t.Errorf("cells of %v with enough time", r.limit)
	}
	// Half of the time is over with a third of the work.
	r.began, r.planned, r.total = time.Now().Add(-r.budget/2), r.budget/3, count(groups)
	r.ran = r.total / 3
	r.fit(groups[len(groups)/3:])
	if r.limit >= quickLimit || r.shortest != r.limit || !slices.Contains(limits, r.limit) || groups[len(groups)-1][0].Limit != r.limit {
		t.Errorf("cells of %v with too little time", r.limit)
	}
	// All the same the cells before the last have caught up.
	r.began = time.Now().Add(-r.planned)
	if r.fit(groups[len(groups)-1:]); r.limit != quickLimit || r.shortest == quickLimit {
		t.Errorf("cells of %v, at least of %v, with enough time again", r.limit, r.shortest)
	}
}
