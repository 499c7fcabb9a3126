package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// figure is a drain of pawl.
func figure(least, median, most float64, n int, ratios map[string]float64) *Result {
	return &Result{System: "pawl", Storage: "postgres", Workload: "drain", Unit: "jobs/s",
		Value: median, Min: least, Max: most, N: n, RatioTo: ratios}
}

// delay is a latency of pawl.
func delay(least, median, most float64) *Result {
	r := figure(least, median, most, 3, nil)
	r.Workload, r.Unit, r.less = "latency-p50", "ms", true
	return r
}

func TestJudge(t *testing.T) {
	river := func(ratio float64) map[string]float64 { return map[string]float64{"river": ratio} }
	for _, c := range []struct {
		about    string
		old, now *Result
		want     verdict
	}{
		{"ranges overlap", figure(80, 100, 120, 3, nil), figure(60, 70, 81, 3, nil), same},
		{"ranges are apart", figure(80, 100, 120, 3, nil), figure(60, 70, 79, 3, nil), worse},
		{"and better", figure(80, 100, 120, 3, nil), figure(121, 130, 140, 3, nil), better},
		{"narrow ranges near each other", figure(100, 100, 100, 3, nil), figure(92, 92, 92, 3, nil), same},
		{"narrow ranges apart", figure(100, 100, 100, 3, nil), figure(88, 88, 88, 3, nil), worse},
		{"one repetition near", figure(100, 100, 100, 1, nil), figure(80, 80, 80, 1, nil), same},
		{"one repetition far", figure(100, 100, 100, 1, nil), figure(70, 70, 70, 1, nil), worse},
		{"a time that grew", delay(1, 2, 3), delay(4, 5, 6), worse},
		{"from nothing", delay(0, 0, 0), delay(3, 3, 3), worse},
		{"nothing still", delay(0, 0, 0), delay(0, 0, 0), same},
		{"a time that fell", delay(4, 5, 6), delay(1, 2, 3), better},
		{"the machine is slower", figure(95, 100, 105, 3, river(4)), figure(45, 50, 55, 3, river(3.9)), asPeers},
		{"pawl is slower", figure(95, 100, 105, 3, river(4)), figure(45, 50, 55, 3, river(2)), worse},
		{"other peers only", figure(95, 100, 105, 3, river(4)), figure(45, 50, 55, 3, map[string]float64{"gue": 9}), worse},
	} {
		if got := judge(c.old, c.now); got != c.want {
			t.Errorf("%s: %q, want %q", c.about, got, c.want)
		}
	}
}

func TestCompareFiles(t *testing.T) {
	dir := t.TempDir()
	old, same, slow, failed := filepath.Join(dir, "old.json"), filepath.Join(dir, "same.json"), filepath.Join(dir, "slow.json"), filepath.Join(dir, "failed.json")
	cost := func(r *Result) *Result { r.Workload, r.Unit = "cpu-per-job", "µs"; return r }
	peer := figure(9, 10, 11, 3, nil)
	peer.System = "river"
	broken := figure(0, 0, 0, 0, nil)
	broken.Reason = "broken"
	for file, results := range map[string][]*Result{
		old:    {figure(95, 100, 105, 3, nil), cost(figure(9, 10, 11, 3, nil)), peer},
		same:   {figure(94, 101, 109, 3, nil), cost(figure(9, 10, 11, 3, nil))}, // the peer may be missing
		slow:   {figure(95, 100, 105, 3, nil), cost(figure(19, 20, 21, 3, nil))},
		failed: {broken, cost(figure(9, 10, 11, 3, nil))},
	} {
		if err := writeJSON(file, nil, results); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{same: "", slow: "1 regressions", failed: "1 regressions"} {
		var out bytes.Buffer
		err := run(t.Context(), []string{"compare", old, file}, &out, new(bytes.Buffer))
		if (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %q\n%s", filepath.Base(file), err, want, &out)
		}
		if !strings.Contains(out.String(), "2 figures of pawl compared") {
			t.Errorf("%s:\n%s", filepath.Base(file), &out)
		}
	}
	if err := run(t.Context(), []string{"compare", old}, new(bytes.Buffer), new(bytes.Buffer)); err == nil {
		t.Error("one file is enough")
	}
}
