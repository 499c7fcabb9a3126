package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

// written runs results through a file, and returns its objects as they are there.
func written(t *testing.T, results []*Result) (file string, objects []map[string]any) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "results.json")
	if err := writeJSON(file, []string{"one machine", "one server"}, results); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &objects); err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	return file, objects
}

func TestJSONFieldByField(t *testing.T) {
	g := group{
		cellOf("pawl", Params{Retention: deleteNow, Slots: 10, Payload: 100}),
		cellOf("river", Params{Retention: history, Slots: 2000, Payload: 100, Config: best}),
		cellOf("raw", Params{Retention: deleteNow, Batch: 1000, Payload: 100}),
	}
	speed := Metric{Name: "drain", Unit: "jobs/s"}
	_, objects := written(t, summarize(g, [][]outcome{runsOf(speed, 40, 30, 90), runsOf(speed, 10, 10, 10), runsOf(speed, 80, 120, 90)}))
	want := []map[string]any{{
		"system": "pawl", "storage": "postgres", "workload": "drain",
		"params": map[string]any{"slots": 10.0, "payload": 100.0, "retention": "delete"},
		"value":  40.0, "unit": "jobs/s", "min": 30.0, "max": 90.0, "n": 3.0,
		"ratio_to": map[string]any{"river": 4.0, "raw": 0.5}, // River keeps its history, and is compared all the same
	}, {
		"system": "river", "storage": "postgres", "workload": "drain",
		"params": map[string]any{"slots": 2000.0, "payload": 100.0, "retention": "history", "config": "best"},
		"value":  10.0, "unit": "jobs/s", "min": 10.0, "max": 10.0, "n": 3.0,
	}, {
		"system": "raw", "storage": "postgres", "workload": "drain",
		"params": map[string]any{"batch": 1000.0, "payload": 100.0, "retention": "delete"},
		"value":  90.0, "unit": "jobs/s", "min": 80.0, "max": 120.0, "n": 3.0,
	}}
	if !reflect.DeepEqual(objects, want) {
		t.Errorf("got  %v\nwant %v", objects, want)
	}
}

func TestJSONWithoutPeersAndWithout(t *testing.T) {
	_, objects := written(t, summarize(group{cellOf("pawl", Params{Payload: 100})}, [][]outcome{runsOf(Metric{Name: "drain", Unit: "jobs/s"}, 5)}))
	if ratios, ok := objects[0]["ratio_to"].(map[string]any); !ok || len(ratios) != 0 {
		t.Errorf("pawl without peers: %v", objects[0])
	}
	if _, objects = written(t, nil); objects == nil || len(objects) != 0 {
		t.Errorf("no figures: %v, want an array with nothing in it", objects)
	}
}

func TestJSONIsReadAsWritten(t *testing.T) {
	file, _ := written(t, summarize(group{cellOf("pawl", Params{Retention: history, Slots: 10})},
		[][]outcome{runsOf(Metric{Name: "latency-p50", Unit: "ms", Less: true}, 3, 1, 2)}))
	results, env, err := readJSON(file)
	if err != nil || len(results) != 1 || !slices.Equal(env, []string{"one machine", "one server"}) {
		t.Fatalf("%v, %v, %v", results, env, err)
	}
	if r := results[0]; !r.less || r.Value != 2 || r.Min != 1 || r.Max != 3 || r.Params.Slots != 10 {
		t.Errorf("%+v", r)
	}
}

// The unit must say which direction is better: files have nothing else for it.
func TestUnitSaysWhatIsBetter(t *testing.T) {
	metrics := append((cost{}).per(1, cost{log: 1, figure: "wal-per-job"}, ""), quantiles("latency", newTimes(3))...)
	metrics = append(metrics, Metric{"heartbeat-cpu", 1, "CPU s/min", true}, Metric{"heartbeat-lost", 1, "leases", true})
	metrics = append(metrics, rate("drain", 1, 1), Metric{jobsPerClaim, 1, "jobs", false})
	for _, m := range metrics {
		if slices.Contains(lessUnits, m.Unit) != m.Less {
			t.Errorf("%s in %s: less is better: %v", m.Name, m.Unit, m.Less)
		}
	}
}

func TestNoTimeIsNothing(t *testing.T) {
	for _, m := range quantiles("latency", newTimes(0)) {
		if m.Value <= 0 {
			t.Errorf("%s is %v, which has no ratio", m.Name, m.Value)
		}
	}
}
