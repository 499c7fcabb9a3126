//go:build !race

package main

import "testing"

// CI runs this test by itself, without the race detector.
func TestNeoq(t *testing.T) {
	t.Parallel()
	results := measure(t, "-run", "^(enqueue-16|drain)/memory/.*(callers=16|slots=(10|50)),100 B")
	if found := filled(t, results, "neoq"); found["drain"] == nil || found["enqueue-16"] == nil {
		t.Errorf("%v", found)
	}
	for _, r := range results {
		if r.System == "pawl" && r.Workload == "drain" && r.RatioTo["neoq"] == 0 {
			t.Errorf("ratios of %v: %v", r.Params, r.RatioTo)
		}
	}
}
