package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func cellOf(system string, p Params) *Cell {
	return &Cell{W: &Workload{Name: "drain"}, C: &Contender{Name: system, Storage: "postgres"}, P: p}
}

func runsOf(m Metric, values ...float64) (runs []outcome) {
	for _, v := range values {
		m.Value = v
		runs = append(runs, outcome{metrics: []Metric{m}})
	}
	return runs
}

func TestMedianAndRatios(t *testing.T) {
	speed := Metric{Name: "drain", Unit: "jobs/s"}
	g := group{
		cellOf("pawl", Params{Retention: history, Slots: 10}), cellOf("pawl", Params{Retention: deleteNow, Slots: 10}),
		cellOf("river", Params{Retention: history, Slots: 10}), cellOf("river", Params{Retention: history, Slots: 100}),
	}
	results := summarize(g, [][]outcome{runsOf(speed, 40, 30, 90), runsOf(speed, 80, 80, 80), runsOf(speed, 10, 20, 5), runsOf(speed, 20, 10, 10)})
	kept, deleted := results[0], results[1]
	if kept.Value != 40 || kept.Min != 30 || kept.Max != 90 || kept.N != 3 {
		t.Errorf("median, min, max, n: %+v", kept)
	}
	if got := kept.RatioTo["river"]; got != 2 { // of 40/20, 30/20, 90/10: the best of each repetition
		t.Errorf("kept: ratio %v", got)
	}
	if got := deleted.RatioTo["river"]; got != 4 { // River has no such retention
		t.Errorf("deleted: ratio %v", got)
	}
}

func TestRatioOfTimes(t *testing.T) {
	late := Metric{Name: "latency-p50", Unit: "ms", Less: true}
	g := group{cellOf("pawl", Params{}), cellOf("gue", Params{}), cellOf("gue", Params{Slots: 2})}
	results := summarize(g, [][]outcome{runsOf(late, 2), runsOf(late, 8), runsOf(late, 6)})
	if got := results[0].RatioTo["gue"]; got != 3 {
		t.Errorf("ratio %v, want that to the shortest time, above 1 if pawl is better", got)
	}
}

func TestSameRetentionIsCompared(t *testing.T) {
	speed := Metric{Name: "drain", Unit: "jobs/s"}
	g := group{cellOf("pawl", Params{Retention: deleteNow}), cellOf("backlite", Params{Retention: history}), cellOf("backlite", Params{Retention: deleteNow})}
	results := summarize(g, [][]outcome{runsOf(speed, 8), runsOf(speed, 1), runsOf(speed, 4)})
	if got := results[0].RatioTo["backlite"]; got != 2 {
		t.Errorf("ratio %v, want that to the variant that deletes too", got)
	}
}

func TestFailedCellHasAReason(t *testing.T) {
	g := group{cellOf("pawl", Params{}), cellOf("river", Params{})}
	results := summarize(g, [][]outcome{runsOf(Metric{Name: "drain"}, 1), {{err: errors.New("broken")}}})
	if results[1].Reason != "broken" || results[1].Workload != "drain" || len(results[0].RatioTo) != 0 {
		t.Errorf("%+v and %+v", results[0], results[1])
	}
}

func TestLimitOfTheSameBatch(t *testing.T) {
	speed := Metric{Name: "drain", Unit: "jobs/s"}
	g := group{cellOf("pawl", Params{Slots: 100}), cellOf("raw", Params{Batch: 1000}), cellOf("raw", Params{Batch: 100})}
	ours := []outcome{{metrics: []Metric{{Name: "drain", Value: 6}, {Name: jobsPerClaim, Value: 120}}}}
	results := summarize(g, [][]outcome{ours, runsOf(speed, 60), runsOf(speed, 10)})
	if got := results[0].RatioTo["raw"]; got != 0.6 {
		t.Errorf("share of the limit %v, want that of batches of 100", got)
	}
}

// TestNoFigure writes a result that has none, and reads it again.
func TestNoFigure(t *testing.T) {
	text, err := json.Marshal(&Result{System: "gue", Reason: "why"})
	if err != nil || !strings.Contains(string(text), `"value":null`) || strings.Contains(string(text), `"min":0`) {
		t.Fatalf("%s, %v", text, err)
	}
	var r Result
	if err := json.Unmarshal(text, &r); err != nil || r.System != "gue" || r.Reason != "why" || r.N != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	text, err = json.Marshal(&Result{N: 1})
	if err != nil || !strings.Contains(string(text), `"value":0`) {
		t.Fatalf("a figure of 0 is %s, %v", text, err)
	}
}
