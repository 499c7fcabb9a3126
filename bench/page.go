package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Between these lines the page is written by hand, and kept.
const (
	handBegins = "<!-- written by hand from here -->"
	handEnds   = "<!-- written by hand up to here -->"
)

// handDefault is that part of a page that is new.
const handDefault = "## What was tried and did not help\n\nNothing is noted yet.\n"

// writeResults makes a page of a file of figures. What was written in the page by hand
// is kept.
func writeResults(jsonFile, pageFile string) error {
	results, env, err := readJSON(jsonFile)
	if err != nil {
		return err
	}
	hand, err := byHand(pageFile)
	if err != nil {
		return err
	}
	return os.WriteFile(pageFile, []byte(page(filepath.Base(jsonFile), env, hand, results)), 0o644)
}

// byHand is what the file has between the two lines, if there is a file. A file
// without them is not one of ours, and not to be overwritten.
func byHand(file string) (string, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return handDefault, nil
	}
	if err != nil {
		return "", err
	}
	_, rest, begins := strings.Cut(string(data), handBegins)
	hand, _, ends := strings.Cut(rest, handEnds)
	if !begins || !ends {
		return "", fmt.Errorf("%s lacks the lines between which it is written by hand", file)
	}
	return strings.TrimSpace(hand) + "\n", nil
}

// storages are in the order in which pages and runs have them.
var storages = []string{"postgres", "sqlite", "redis", "mysql", "memory"}

func page(source string, env []string, hand string, results []*Result) string {
	b := new(strings.Builder)
	fmt.Fprintf(b, "# Results\n\nWritten by `go run . results %s RESULTS.md`, but for the part that says so. What the\n"+
		"workloads are and how to read the figures is in the [README](README.md). Ratios above 1:\n"+
		"pawl is better, also where less is better.\n\n## Measured on\n\n", source)
	if len(env) == 0 {
		env = []string{"not recorded"}
	}
	for _, line := range env {
		fmt.Fprintf(b, "- %s\n", line)
	}
	writeLosses(b, results)
	writeTargets(b, results)
	writeMissing(b, results)
	fmt.Fprintf(b, "\n%s\n\n%s\n%s\n", handBegins, hand, handEnds)
	for _, storage := range storages {
		writeStorage(b, storage, results)
	}
	return b.String()
}

// limitsOnly are systems that nobody can pick instead of pawl.
var limitsOnly = []string{"raw", "engine"}

// A loss is a figure in which a peer is better.
type loss struct {
	r     *Result
	peer  string
	ratio float64
}

// losses lists them, the greatest first.
func losses(results []*Result) (found []loss) {
	for _, r := range results {
		for _, peer := range slices.Sorted(maps.Keys(r.RatioTo)) {
			if r.RatioTo[peer] < 1 && !slices.Contains(limitsOnly, peer) {
				found = append(found, loss{r, peer, r.RatioTo[peer]})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b loss) int {
		switch {
		case a.ratio < b.ratio:
			return -1
		case a.ratio > b.ratio:
			return 1
		}
		return 0
	})
	return found
}

func writeLosses(b *strings.Builder, results []*Result) {
	found := losses(results)
	b.WriteString("\n## Where pawl loses\n\n")
	if len(found) == 0 {
		b.WriteString("Against no peer in no figure of this run.\n")
		return
	}
	fmt.Fprintf(b, "In %d figures a peer is better.\n\n", len(found))
	rows := [][]string{{"ratio", "to", "storage", "figure", "parameters", "pawl", "unit"}}
	for _, l := range found {
		rows = append(rows, []string{number(l.ratio), l.peer, l.r.Storage, l.r.Workload, l.r.Params.String(), ranged(l.r), l.r.Unit})
	}
	writeRows(b, rows)
}

func writeTargets(b *strings.Builder, results []*Result) {
	rows := [][]string{{"storage", "figure", "of", "target", "measured", ""}}
	for _, t := range targets() {
		if row := t.row(results); row != nil {
			rows = append(rows, row)
		}
	}
	if len(rows) == 1 {
		return
	}
	b.WriteString("\n## Targets\n\nOf several figures that a target is about, the worst counts. A ratio to `raw` is the share of\nthe limit.\n\n")
	writeRows(b, rows)
	if others := len(targets()) - len(rows) + 1; others > 0 {
		fmt.Fprintf(b, "\nThis run has no figures for %d more targets.\n", others)
	}
}

// writeMissing lists cells without figures. That a system does not offer what a
// workload needs is said with the system.
func writeMissing(b *strings.Builder, results []*Result) {
	rows := [][]string{{"storage", "workload", "system", "parameters", "reason"}}
	for _, r := range results {
		if r.Reason != "" {
			rows = append(rows, []string{r.Storage, r.Workload, r.System, r.Params.String(), r.Reason})
		}
	}
	if len(rows) > 1 {
		b.WriteString("\n## Cells without a figure\n\n`not offered`: what the system lacks for the workload.\n\n")
		writeRows(b, rows)
	}
}

// writeStorage has a table for each figure of a storage.
func writeStorage(b *strings.Builder, storage string, results []*Result) {
	var figures []string
	rows := map[string][][]string{}
	for _, r := range results {
		if r.Storage != storage || r.Reason != "" {
			continue
		}
		if rows[r.Workload] == nil {
			figures = append(figures, r.Workload)
			rows[r.Workload] = [][]string{{"system", "parameters", "median", "unit", "min–max", "n", "ratios"}}
		}
		rows[r.Workload] = append(rows[r.Workload], []string{r.System, r.Params.String(), number(r.Value), r.Unit,
			number(r.Min) + "–" + number(r.Max), fmt.Sprint(r.N), said(r.RatioTo)})
	}
	if len(figures) > 0 {
		fmt.Fprintf(b, "\n## %s\n", storage)
	}
	for _, figure := range figures {
		fmt.Fprintf(b, "\n### %s: %s\n\n", storage, figure)
		writeRows(b, rows[figure])
	}
}

// said lists ratios by name.
func said(ratios map[string]float64) string {
	var to []string
	for _, peer := range slices.Sorted(maps.Keys(ratios)) {
		to = append(to, fmt.Sprintf("%s %.2f", peer, ratios[peer]))
	}
	return strings.Join(to, ", ")
}

// writeRows writes a table, of which the first row is the head.
func writeRows(b *strings.Builder, rows [][]string) {
	clean := strings.NewReplacer("|", `\|`, "\n", "; ")
	for i, row := range rows {
		for _, cell := range row {
			b.WriteString("| " + clean.Replace(cell) + " ")
		}
		b.WriteString("|\n")
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
}
