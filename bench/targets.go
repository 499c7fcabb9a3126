package main

import "fmt"

// A target is what a figure of pawl is to reach: a ratio to a peer, or a value.
type target struct {
	storage, workload string
	p                 Params  // those that are set must be the figure's
	peer              string  // empty: the value counts
	bound             float64 // the ratio is to be no less; a value no worse
}

// targets lists them by storage. They are for quiet machines and full runs.
func targets() []target {
	slots := func(n int, retention string) Params { return Params{Slots: n, Retention: retention} }
	all, by1000 := Params{}, Params{Batch: bulkBatch}
	return []target{
		{"postgres", "drain", slots(100, history), "river", 3.5}, {"postgres", "drain", slots(100, deleteNow), "river", 5},
		{"postgres", "drain", slots(10, history), "river", 2.5}, {"postgres", "drain", slots(10, deleteNow), "river", 3},
		{"postgres", "drain", slots(100, ""), "raw", 0.6},
		{"postgres", "steady", slots(100, ""), "river", 4},
		{"postgres", "enqueue-1", all, "river", 2}, {"postgres", "enqueue-16", all, "river", 2}, {"postgres", "bulk", by1000, "river", 2},
		{"postgres", "wal-per-job", slots(0, history), "river", 2.5}, {"postgres", "wal-per-job", slots(0, deleteNow), "river", 3},
		{"postgres", "held-snapshot-kept", all, "", 0.6}, {"postgres", "held-snapshot-end", all, "river", 12},
		{"postgres", "latency-p50", all, "", 3}, {"postgres", "latency-p99", all, "", 15},
		{"postgres", "latency-held-p99", Params{Hold: "20ms"}, "", 150}, {"postgres", "latency-held-p99", Params{Hold: "200ms"}, "", 150},
		{"postgres", "latency-held-p99", Params{Hold: "10s"}, "", 250}, {"postgres", "latency-p99", Params{Poll: true}, "", 1100},
		{"postgres", "cancel-p99", all, "", 1000}, {"postgres", "claim-growth", all, "", 1.5}, {"postgres", "enqueue-purge-growth", all, "", 3},

		{"sqlite", "enqueue-16", all, "goqite", 6}, {"sqlite", "enqueue-16", all, "backlite", 6}, {"sqlite", "enqueue-16", all, "river", 6},
		{"sqlite", "drain", all, "goqite", 30}, {"sqlite", "drain", all, "river", 25},
		{"sqlite", "bulk", by1000, "river", 2}, {"sqlite", "bulk", by1000, "backlite", 1.8},

		{"redis", "drain", all, "asynq", 10}, {"redis", "drain", slots(100, ""), "raw", 0.55}, {"redis", "steady", all, "asynq", 8},
		{"redis", "enqueue-16", all, "asynq", 1.3}, {"redis", "enqueue-100", all, "asynq", 2.5}, {"redis", "bulk", Params{Batch: bulkBatch / 10}, "asynq", 3},
		{"redis", "due-at-once", all, "asynq", 10}, {"redis", "bytes-per-job", all, "asynq", 2},
		{"redis", "latency-p50", all, "", 2}, {"redis", "latency-p99", all, "", 10},

		{"mysql", "drain", all, "textbook", 5}, {"mysql", "drain", slots(100, ""), "raw", 0.6},
		{"mysql", "latency-p50", all, "", 5}, {"mysql", "claim-growth", all, "", 1.5},
	}
}

// worst is the figure that is furthest from the target, of those that it is about.
func (t target) worst(results []*Result) (at float64, of *Result) {
	for _, r := range results {
		if r.System != "pawl" || r.Storage != t.storage || r.Workload != t.workload || r.Reason != "" || !t.about(r.Params) {
			continue
		}
		v := r.Value
		if t.peer != "" {
			v = r.RatioTo[t.peer]
		}
		if v > 0 && (of == nil || v < at != t.least(r)) {
			at, of = v, r
		}
	}
	return at, of
}

// least reports whether the figure is to be no more than the bound.
func (t target) least(r *Result) bool { return t.peer == "" && r.less }

func (t target) about(p Params) bool {
	return (p.Payload == 0 || p.Payload == defaultPayload) && (t.p.Slots == 0 || t.p.Slots == p.Slots) && (t.p.Batch == 0 || t.p.Batch == p.Batch) &&
		(t.p.Retention == "" || t.p.Retention == p.Retention) && (t.p.Hold == "" || t.p.Hold == p.Hold) && t.p.Poll == p.Poll
}

// met reports whether a figure reaches the target.
func (t target) met(at float64, of *Result) bool {
	if t.least(of) {
		return at <= t.bound
	}
	return at >= t.bound
}

// row is the target, what was measured, and whether that is enough; nil if nothing was.
func (t target) row(results []*Result) []string {
	at, of := t.worst(results)
	if of == nil {
		return nil
	}
	verdict := "met"
	if !t.met(at, of) {
		verdict = "**missed**"
	}
	sign := "≥ "
	if t.least(of) {
		sign = "≤ "
	}
	said := number(at)
	if t.peer == "" {
		said += " " + of.Unit
	}
	return []string{t.storage, t.workload, t.params(), t.asked(sign), said + " (" + of.Params.String() + ")", verdict}
}

func (t target) asked(sign string) string {
	if t.peer == "" {
		return sign + number(t.bound)
	}
	return fmt.Sprintf("≥ %s × %s", number(t.bound), t.peer)
}

func (t target) params() string {
	if t.p == (Params{}) {
		return "the worst"
	}
	p := t.p
	if p.Slots > 0 || p.Batch > 0 {
		p.Payload = defaultPayload
		return p.String()
	}
	return p.Retention
}
