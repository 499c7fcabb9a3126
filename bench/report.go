package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
)

// writeTable writes what was measured, on what, and how.
func writeTable(out io.Writer, env []string, results []*Result) error {
	for _, line := range env {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprint(out, "ratios above 1: pawl is better\n\n"); err != nil {
		return err
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if _, err := fmt.Fprintln(t, "figure\tstorage\tsystem\tparameters\tmedian\tunit\tmin\tmax\tn\tratios"); err != nil {
		return err
	}
	for _, r := range sorted(results) {
		if r.notOffered() {
			continue
		}
		if _, err := fmt.Fprintln(t, row(r)); err != nil {
			return err
		}
	}
	return t.Flush()
}

// sorted has the results by figure, in the order in which they came.
func sorted(results []*Result) []*Result {
	order := map[string]int{}
	for i, r := range results {
		key := r.Workload + "/" + r.Storage
		if _, ok := order[key]; !ok {
			order[key] = i
		}
	}
	sorted := slices.Clone(results)
	slices.SortStableFunc(sorted, func(a, b *Result) int {
		return order[a.Workload+"/"+a.Storage] - order[b.Workload+"/"+b.Storage]
	})
	return sorted
}

func row(r *Result) string {
	head := strings.Join([]string{r.Workload, r.Storage, r.System, r.Params.String()}, "\t")
	if r.Reason != "" {
		return head + "\t-\t" + strings.ReplaceAll(r.Reason, "\n", "; ")
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%d\t%s", head, number(r.Value), r.Unit, number(r.Min), number(r.Max), r.N, said(r.RatioTo))
}

// number shows three digits that matter.
func number(v float64) string {
	switch {
	case v >= 100:
		return grouped(fmt.Sprintf("%.0f", v))
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func grouped(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// environment describes what the figures depend on.
func environment(ctx context.Context, p *Places, results []*Result) ([]string, error) {
	lines := []string{fmt.Sprintf("%s, %s/%s, %d CPUs, %s", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), cpuModel())}
	if info, ok := debug.ReadBuildInfo(); ok {
		lines = append(lines, "modules: "+strings.Join(modules(info), ", "))
	}
	servers, err := p.Versions(context.WithoutCancel(ctx))
	if err == nil && slices.ContainsFunc(results, func(r *Result) bool { return r.Storage == "redis" && r.Reason == "" }) {
		var about string
		about, err = describeRedis(context.WithoutCancel(ctx))
		servers["redis"] = about
	}
	var settings []string
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		settings = append(settings, name+"="+servers[name])
	}
	if len(settings) > 0 {
		lines = append(lines, strings.Join(settings, ", "))
	}
	return lines, err
}

// modules are the systems and the drivers.
func modules(info *debug.BuildInfo) (found []string) {
	for _, m := range info.Deps {
		for _, name := range []string{"riverqueue/river", "vgarvardt/gue/v5", "acaloiaro/neoq", "hibiken/asynq", "maragu.dev/goqite", "mikestefanello/backlite",
			"jackc/pgx/v5", "redis/go-redis/v9", "go-sql-driver/mysql", "modernc.org/sqlite"} {
			if strings.HasSuffix(m.Path, name) {
				found = append(found, m.Path+" "+m.Version)
			}
		}
	}
	return found
}

func cpuModel() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "model not known"
	}
	for line := range bytes.Lines(data) {
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && string(bytes.TrimSpace(name)) == "model name" {
			return string(bytes.TrimSpace(value))
		}
	}
	return "model not known"
}
