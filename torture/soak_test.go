package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawlq/pawl/torture/results"
)

// TestSoak makes legs until a goal is reached, and none when it is started again; a goal
// that grew is gone on with.
func TestSoak(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "RESULTS.md")
	o, err := parse([]string{"-soak", dir, "-results", page}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	run := func(jobs int64) string {
		t.Helper()
		g := goal{name: "memory", storage: "memory", want: results.Counts{results.Jobs: jobs}, leg: []string{"-jobs", "500", "-for", "200ms"}}
		var out strings.Builder
		if err := runSoak(t.Context(), o, []goal{g}, &out); err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		return out.String()
	}
	for _, c := range []struct {
		jobs int64
		legs int
		all  string
	}{{700, 2, "memory: 2 legs"}, {700, 0, "memory: 2 legs"}, {1200, 1, "memory: 3 legs"}} {
		out := run(c.jobs)
		if n := strings.Count(out, "go run ."); n != c.legs || !strings.Contains(out, c.all) {
			t.Errorf("for %d jobs it made %d legs, and said:\n%s", c.jobs, n, out)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil || !strings.Contains(string(text), "| memory | 1") || !strings.Contains(string(text), "| 3: ") {
		t.Errorf("error %v, and the page is\n%s", err, text)
	}
}
