package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawlq/pawl/internal/testserver"
)

// measure runs the program on small cells and returns what it wrote as JSON.
func measure(t *testing.T, args ...string) []*Result {
	t.Helper()
	file := filepath.Join(t.TempDir(), "results.json")
	args = append([]string{"-quick", "-limit", "150ms", "-jobs", "300", "-finished", "400", "-json", file}, args...)
	var out, progress bytes.Buffer
	if err := run(t.Context(), args, &out, &progress); err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var results []*Result
	if err := json.Unmarshal(data, &results); err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Reason == "" && !strings.Contains(out.String(), r.Workload) {
			t.Errorf("the table lacks %s:\n%s", r.Workload, &out)
		}
	}
	return results
}

// filled fails for each figure of a system that is missing, and returns the
// names of those that are there.
func filled(t *testing.T, results []*Result, system string) map[string]*Result {
	t.Helper()
	found := map[string]*Result{}
	for _, r := range results {
		if r.System != system || r.notOffered() {
			continue
		}
		if r.Reason != "" || r.N < 1 || r.Min > r.Value || r.Value > r.Max {
			t.Errorf("%s of %s: %+v", r.Workload, system, r)
		}
		found[r.Workload] = r
	}
	return found
}

func TestMemoryAndSQLite(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"^(enqueue-16|bulk|drain|retries|unique|latency|cancel|claim|foreign-kind)/memory/.*[^0]100 B", "^(enqueue-16|enqueue-tx|bulk|drain|retries|unique|latency)/sqlite/(pawl|goqite)/.*100 B"} {
		found := filled(t, measure(t, "-run", pattern), "pawl")
		for _, name := range []string{"drain", "bulk", "latency-p99", "cpu-per-job", "retries", "retries-back", "unique"} {
			if found[name] == nil || found[name].Value == 0 && name != "latency-p99" {
				t.Errorf("%s: no figure %s: %v", pattern, name, found)
			}
		}
	}
}

func TestPeersOnSQLite(t *testing.T) {
	t.Parallel()
	results := measure(t, "-run", "^(drain|enqueue-1)/sqlite/.*[^0]100 B")
	for _, system := range []string{"goqite", "backlite", "river", "engine"} {
		if found := filled(t, results, system); found["drain"] == nil {
			t.Errorf("%s: %v", system, found)
		}
	}
	for _, r := range results {
		if r.System == "pawl" && r.Workload == "drain" && (r.RatioTo["goqite"] == 0 || r.RatioTo["backlite"] == 0) {
			t.Errorf("ratios of %v: %v", r.Params, r.RatioTo)
		}
	}
}

// TestMain is the program itself where a cell starts its second process.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "work" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	results := measure(t, "-limit", startLimit.String(), "-run", "^two-processes/sqlite/(pawl|goqite)/.*slots=10,100 B")
	for _, system := range []string{"pawl", "goqite"} {
		if found := filled(t, results, system); found["two-processes"] == nil || found["two-processes"].Value == 0 || found["two-processes-second"] == nil {
			t.Errorf("%s: %v", system, found)
		}
	}
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	found := filled(t, measure(t, "-run", "^heartbeat/memory/"), "pawl")
	if r := found["heartbeat-cpu"]; r == nil || r.Value <= 0 {
		t.Errorf("no cost: %v", found)
	}
	if r := found["heartbeat-lost"]; r == nil || r.Value != 0 {
		t.Errorf("leases lost: %v", found)
	}
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t).DSN("")
	results := measure(t, "-postgres", dsn, "-run", "^(enqueue-16|enqueue-tx|bulk|drain|steady|cancel|latency)/postgres/(pawl|river)/(best,)?(history,slots=(10|2000),|callers=16|batch=1000,callers)")
	for _, system := range []string{"pawl", "river"} {
		found := filled(t, results, system)
		for _, name := range []string{"enqueue-16", "enqueue-tx", "bulk", "drain", "steady", "latency-p99", "cancel-p99", "wal-per-job", "bytes-per-job"} {
			if found[name] == nil || found[name].Value == 0 && !strings.Contains(name, "p99") {
				t.Errorf("%s: no figure %s", system, name)
			}
		}
	}
}

func TestSlowWorkloadsOnPostgres(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t).DSN("")
	results := measure(t, "-postgres", dsn, "-run", "^(held-snapshot|drain-1m-finished|foreign-kind|enqueue-purge|claim)/postgres/(pawl/(delete,slots=10|history,slots=100,beside=unknown|callers|batch=100,beside=future)|river/best,history,slots=2000)")
	found := filled(t, results, "pawl")
	for _, name := range []string{"held-snapshot-end", "drain-1m-finished", "foreign-kind-first", "enqueue-purge-p99", "claim-growth"} {
		if found[name] == nil {
			t.Errorf("no figure %s", name)
		}
	}
}

func TestNothingSelected(t *testing.T) {
	if err := run(t.Context(), []string{"-run", "nothing"}, new(bytes.Buffer), new(bytes.Buffer)); err == nil {
		t.Error("a pattern that selects nothing is no error")
	}
}
