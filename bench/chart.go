package main

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// writeCharts makes a picture for each storage of a file of figures: STORAGE.svg.
func writeCharts(jsonFile, folder string) error {
	results, env, err := readJSON(jsonFile)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, storage := range storages {
		if svg := chart(storage, env, results); svg != "" {
			if err := os.WriteFile(filepath.Join(folder, storage+".svg"), []byte(svg), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// panels are the workloads that a chart shows, with their heads.
var panels = []struct{ workload, head string }{
	{"drain", "Drain a backlog through workers"},
	{"enqueue-16", "Enqueue, 16 callers, one job a call"},
	{"bulk", "Enqueue, one caller, many jobs a call"},
}

// A bar is one figure in a panel.
type bar struct {
	label string
	class string // pawl, raw or peer
	r     *Result
}

// bars are the figures of a workload on a storage, the greatest first. Of a system
// in several configurations the best is shown; pawl with each number of slots.
func bars(storage, workload string, results []*Result) []bar {
	greatest := map[string]*Result{}
	for _, r := range results {
		if r.Storage != storage || r.Workload != workload || r.Reason != "" || r.System == "engine" || r.Params.Payload != defaultPayload ||
			workload == "bulk" && r.Params.Batch != bulkBatch {
			continue
		}
		k := r.System + "/" + r.Params.Retention
		if r.System == "pawl" {
			k = key(r)
		}
		if g := greatest[k]; g == nil || r.Value > g.Value {
			greatest[k] = r
		}
	}
	var all []bar
	for _, r := range greatest {
		all = append(all, bar{barLabel(r), barClass(r), r})
	}
	slices.SortFunc(all, func(a, b bar) int {
		return cmp.Or(cmp.Compare(b.r.Value, a.r.Value), cmp.Compare(a.label, b.label))
	})
	return all
}

func barClass(r *Result) string {
	if r.System == "pawl" || r.System == "raw" {
		return r.System
	}
	return "peer"
}

// barLabel says what the figure was measured with.
func barLabel(r *Result) string {
	parts := []string{r.System}
	if r.System == "raw" {
		parts[0] = "raw statements"
	}
	if r.Params.Slots > 0 || r.Workload == "drain" {
		parts = append(parts, map[string]string{history: "kept", deleteNow: "deleted"}[r.Params.Retention])
	}
	switch {
	case r.Params.Slots > 0:
		parts = append(parts, fmt.Sprintf("%d slots", r.Params.Slots))
	case r.Params.Batch > 0:
		parts = append(parts, fmt.Sprintf("by %s", grouped(fmt.Sprint(r.Params.Batch))))
	}
	return strings.Join(parts, ", ")
}

// Measures of a chart, in pixels.
const (
	chartWidth            = 800
	labelWidth            = 220 // where bars begin
	barWidth              = 360 // of the longest
	barHeight, barStep    = 15, 21
	headHeight, panelRest = 28, 12
)

// chartStyle reads on light and on dark pages: the background is the page's, and the
// text follows what the reader has asked for.
const chartStyle = `text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 }
.head { font-weight: 600 }
.foot { font-size: 10px; fill: #59636e }
.pawl { fill: #1f6feb } .raw { fill: #9aa4af } .peer { fill: #bc6c25 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.foot { fill: #9198a1 }
.pawl { fill: #4493f8 } .raw { fill: #6e7781 } .peer { fill: #dd9b5b }
}`

// chart is the picture of a storage, or empty if there is nothing to show.
func chart(storage string, env []string, results []*Result) string {
	b := new(strings.Builder)
	y, least := 30, 0
	for _, p := range panels {
		all := bars(storage, p.workload, results)
		if len(all) == 0 {
			continue
		}
		fmt.Fprintf(b, "<text class=\"head\" x=\"0\" y=\"%d\">%s, jobs/s</text>\n", y+18, p.head)
		y += headHeight
		longest := all[0].r.Value
		for _, one := range all {
			one.draw(b, y, longest)
			y += barStep
			if least == 0 || one.r.N < least {
				least = one.r.N
			}
		}
		y += panelRest
	}
	if b.Len() == 0 {
		return ""
	}
	for _, line := range footer(least, env) {
		y += 13
		fmt.Fprintf(b, "<text class=\"foot\" x=\"0\" y=\"%d\">%s</text>\n", y, escaped(line))
	}
	y += 8
	title := "pawl and others on " + storage
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n"+
		"<title>%s: jobs a second</title>\n<style>%s</style>\n<text class=\"title\" x=\"0\" y=\"18\">%s</text>\n%s</svg>\n",
		chartWidth, y, chartWidth, y, title, chartStyle, title, b)
}

// draw draws the bar at a height, with its label and its figure.
func (one bar) draw(b *strings.Builder, y int, longest float64) {
	width := max(one.r.Value/longest*barWidth, 1)
	base := y + barHeight - 3
	figure := number(one.r.Value)
	if one.r.N > 1 {
		figure += fmt.Sprintf(" (%s–%s)", number(one.r.Min), number(one.r.Max))
	}
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", labelWidth-8, base, escaped(one.label))
	fmt.Fprintf(b, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>\n", one.class, labelWidth, y, width, barHeight)
	fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%d\">%s</text>\n", labelWidth+width+6, base, figure)
}

// footer says how the figures were made, and on what.
func footer(reps int, env []string) []string {
	lines := []string{fmt.Sprintf("Medians of %d (least–greatest), interleaved, 100-byte payloads, equal durability.", reps)}
	if reps == 1 {
		lines[0] = "One run of each, 100-byte payloads, equal durability."
	}
	if len(env) > 0 {
		lines = append(lines, env[0])
	}
	return lines
}

func escaped(text string) string {
	b := new(strings.Builder)
	_ = xml.EscapeText(b, []byte(text)) // a Builder takes everything
	return b.String()
}
