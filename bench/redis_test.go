package main

import (
	"testing"

	"github.com/pawlq/pawl/internal/testserver"
)

func TestRedis(t *testing.T) {
	t.Parallel()
	testserver.Redis(t) // or the test is skipped
	results := measure(t, "-run", "^(enqueue-16|unique|bulk|drain|retries)/redis/.*(callers=16|batch=1000,callers|slots=100,|batch=100,)")
	for system, names := range map[string][]string{
		"pawl": {"enqueue-16", "bulk", "bytes-per-job", "drain", "cpu-per-job", "aof-per-job", "unique", "retries"}, "asynq": {"enqueue-16", "bulk", "bytes-per-job", "drain", "aof-per-job", "unique", "retries"},
		"raw": {"bulk", "drain"}, "engine": {"drain"},
	} {
		found := filled(t, results, system)
		for _, name := range names {
			if found[name] == nil || found[name].Value == 0 {
				t.Errorf("%s: no figure %s", system, name)
			}
		}
	}
	for _, r := range results {
		if r.System == "pawl" && r.Workload == "drain" && (r.RatioTo["asynq"] == 0 || r.RatioTo["raw"] == 0) {
			t.Errorf("ratios of %v: %v", r.Params, r.RatioTo)
		}
	}
}
