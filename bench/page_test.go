package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// madeUp writes a file of figures that nobody has measured.
func madeUp(t *testing.T) string {
	t.Helper()
	of := func(system, storage, workload string, p Params, value float64, unit string, ratios map[string]float64) *Result {
		p.Payload = defaultPayload
		return &Result{System: system, Storage: storage, Workload: workload, Params: p, Value: value, Unit: unit, Min: value * 0.9, Max: value * 1.1, N: 3, RatioTo: ratios}
	}
	file := filepath.Join(t.TempDir(), "results.json")
	err := writeJSON(file, []string{"go1.99, <two> CPUs", "cells of 1s"}, []*Result{
		of("pawl", "postgres", "drain", Params{Slots: 100, Retention: history}, 42_800, "jobs/s", map[string]float64{"river": 4, "raw": 0.5}),
		of("pawl", "postgres", "drain", Params{Slots: 10, Retention: history}, 30_000, "jobs/s", map[string]float64{"river": 2, "raw": 0.4}),
		of("raw", "postgres", "drain", Params{Batch: 1000, Retention: history}, 85_600, "jobs/s", nil),
		of("river", "postgres", "drain", Params{Slots: 2000, Retention: history, Config: best}, 10_700, "jobs/s", nil),
		of("river", "postgres", "drain", Params{Slots: 100, Retention: history, Config: defaults}, 1_100, "jobs/s", nil),
		of("engine", "postgres", "drain", Params{Batch: 300, Retention: history}, 77_777, "jobs/s", nil),
		of("pawl", "postgres", "latency-p50", Params{Slots: 10, Retention: history}, 2, "ms", map[string]float64{"gue": 0.25}),
		of("pawl", "postgres", "enqueue-16", Params{Callers: 16}, 9_000, "jobs/s", map[string]float64{"river": 0.75}),
		of("pawl", "memory", "bulk", Params{Callers: 1, Batch: bulkBatch}, 1_000_000, "jobs/s", map[string]float64{}),
		of("pawl", "memory", "bulk", Params{Callers: 1, Batch: 10 * bulkBatch}, 2_000_000, "jobs/s", map[string]float64{}),
		{System: "gue", Storage: "postgres", Workload: "drain", Params: Params{Slots: 16}, Reason: "broken\nby | hand"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// command runs the program and returns what is in a file then.
func command(t *testing.T, file string, args ...string) string {
	t.Helper()
	if err := run(t.Context(), args, new(bytes.Buffer), new(bytes.Buffer)); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestPage(t *testing.T) {
	figures, file := madeUp(t), filepath.Join(t.TempDir(), "RESULTS.md")
	text := command(t, file, "results", figures, file)
	for _, want := range []string{
		"- go1.99, <two> CPUs\n- cells of 1s\n",
		"In 2 figures a peer is better.\n",
		"| 0.25 | gue | postgres | latency-p50 | history,slots=10,100 B | 2.00 (1.80–2.20) | ms |\n| 0.75 | river | postgres | enqueue-16 |",
		"| postgres | drain | history,slots=100,100 B | ≥ 3.50 × river | 4.00 (history,slots=100,100 B) | met |\n",
		"| postgres | drain | history,slots=10,100 B | ≥ 2.50 × river | 2.00 (history,slots=10,100 B) | **missed** |\n",
		"| postgres | latency-p50 | the worst | ≤ 3.00 | 2.00 ms (history,slots=10,100 B) | met |\n",
		"\nThis run has no figures for ",
		"| postgres | drain | gue | slots=16,0 B | broken; by \\| hand |\n",
		"### postgres: drain\n\n| system | parameters | median | unit | min–max | n | ratios |\n|---|---|---|---|---|---|---|\n" +
			"| pawl | history,slots=100,100 B | 42,800 | jobs/s | 38,520–47,080 | 3 | raw 0.50, river 4.00 |\n",
		"### memory: bulk\n",
		handBegins + "\n\n## What was tried and did not help\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestPageKeepsWhatIsWrittenByHand(t *testing.T) {
	figures, file := madeUp(t), filepath.Join(t.TempDir(), "RESULTS.md")
	text := command(t, file, "results", figures, file)
	mine := "## What was tried and did not help\n\nA wheel of timers.\n"
	before, _, _ := strings.Cut(text, handBegins)
	_, after, _ := strings.Cut(text, handEnds)
	edited := before + handBegins + "\n\n" + mine + "\n" + handEnds + after
	if err := os.WriteFile(file, []byte(edited), 0o644); err != nil {
		t.Fatal(err)
	}
	if again := command(t, file, "results", figures, file); again != edited {
		t.Errorf("written again it is\n%s\nwant\n%s", again, edited)
	}
	if err := os.WriteFile(file, []byte("# Mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), []string{"results", figures, file}, new(bytes.Buffer), new(bytes.Buffer)); err == nil {
		t.Error("a file of someone else was overwritten")
	}
}

func TestCharts(t *testing.T) {
	figures, folder := madeUp(t), t.TempDir()
	postgres := filepath.Join(folder, "postgres.svg")
	svg := command(t, postgres, "charts", figures, folder)
	order := -1
	for _, want := range []string{
		">Drain a backlog through workers, jobs/s<",
		">raw statements, kept, by 1,000<", `<rect class="raw" x="220" y="58" width="360.0"`, ">85,600 (77,040–94,160)<",
		">pawl, kept, 100 slots<", `<rect class="pawl" x="220" y="79" width="180.0"`, ">42,800 (38,520–47,080)<",
		">pawl, kept, 10 slots<", ">30,000 (27,000–33,000)<",
		">river, kept, 2000 slots<", `<rect class="peer"`, ">10,700 (9,630–11,770)<",
		">Enqueue, 16 callers, one job a call, jobs/s<", ">9,000 (8,100–9,900)<",
		">Medians of 3 ", ">go1.99, &lt;two&gt; CPUs<",
	} {
		at := strings.Index(svg, want)
		if at <= order {
			t.Errorf("%q is at %d, after what is at %d", want, at, order)
		}
		order = max(at, order)
	}
	for _, not := range []string{"77,777", "1,100", "Enqueue, one caller"} { // the engine, defaults, no figure
		if strings.Contains(svg, not) {
			t.Errorf("has %q", not)
		}
	}
	wellFormed(t, svg)
	for range 5 {
		if again := command(t, postgres, "charts", figures, folder); again != svg {
			t.Fatal("the same figures make another chart")
		}
	}
	memory := command(t, filepath.Join(folder, "memory.svg"), "charts", figures, folder)
	if wellFormed(t, memory); !strings.Contains(memory, ">1,000,000 (") || strings.Contains(memory, "2,000,000") {
		t.Errorf("memory:\n%s", memory)
	}
	if _, err := os.Stat(filepath.Join(folder, "redis.svg")); err == nil {
		t.Error("there is a chart of nothing")
	}
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
	}
}
