package main

import (
	"testing"

	"github.com/pawlq/pawl/internal/testserver"
)

func TestMySQL(t *testing.T) {
	t.Parallel()
	testserver.MariaDB(t) // or the test is skipped
	results := measure(t, "-run", "^(enqueue-16|enqueue-tx|unique|bulk|drain|retries|steady|latency)/mysql/.*(callers=16|batch=1000,callers|slots=10,|batch=100,|textbook/history,)")
	for system, names := range map[string][]string{
		"pawl": {"enqueue-16", "enqueue-tx", "unique", "bulk", "bytes-per-job", "drain", "retries", "steady", "cpu-per-job", "redo-per-job"}, "raw": {"bulk", "drain"},
		"engine": {"drain"}, "textbook": {"enqueue-16", "enqueue-tx", "unique", "bulk", "drain", "retries", "steady", "latency-p99", "redo-per-job"},
	} {
		found := filled(t, results, system)
		for _, name := range names {
			if found[name] == nil || found[name].Value == 0 {
				t.Errorf("%s: no figure %s", system, name)
			}
		}
	}
	for _, r := range results {
		if r.System == "pawl" && r.Workload == "drain" && (r.RatioTo["textbook"] == 0 || r.RatioTo["raw"] == 0) {
			t.Errorf("ratios of %v: %v", r.Params, r.RatioTo)
		}
	}
}
