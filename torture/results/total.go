package results

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pawlq/pawl/torture/check"
)

// A Total is what the runs on a storage have shown: the legs of a soak, or one.
type Total struct {
	Storage string
	Seeds   []uint64 // of the legs
	Broken  []uint64 // of those in which something did not hold, or which did not come to their end
	Vacuous []uint64 // of those that the faults hardly hit
	// Revisions are those of the source, of what is attacked and of what attacks.
	Revisions []string
	Goal      Counts // what is wanted of Counts
	Counts    Counts // sums
	Worst     Worst
	// Recoveries are the times from workers' deaths to the last rescue of each, and Bound what
	// they may be but for one in a hundred.
	Recoveries check.Recoveries
	Bound      time.Duration
	Returns    []float64     // throughput after each return of a server, as a part of that before
	Causes     check.Causes  // of rescues
	Vain       check.Causes  // runs under the claims that these ended
	Faults     time.Duration // how long they went on
}

// Counts are numbers that legs add up to.
type Counts map[string]int64

// Names of Counts.
const (
	Jobs          = "jobs"
	Runs          = "runs"
	Kills         = "worker kills"
	WorkerDeaths  = "deaths of workers"
	Pauses        = "worker pauses"
	Stops         = "worker stops"
	ServerKills   = "server kills"
	ServerStops   = "server stops"
	Backends      = "backend kills"
	FullDisks     = "full disks"
	Cuts          = "commit cuts"
	Unknown       = "unknown enqueues"
	Failed        = "unknown enqueues that had time left"
	UnknownTx     = "unknown transactions"
	Open          = "unknown outcomes"
	Stale         = "stale outcomes"
	Lost          = "lost"
	Doubled       = "doubled"
	StaleAccepted = "stale accepted"
	Others        = "other violations"
	Closed        = "workers that left nothing"
	Returned      = "returns of servers" // that nothing followed soon
	Timed         = "deaths whose rescues' time counts"
	Legs          = "legs"
)

// With is the name of the deaths in a phase.
func With(p check.Phase) string { return "deaths with " + p.String() }

// Worst is what was the worst in any leg.
type Worst struct {
	Vain  int64   // runs, of one death
	Drift float64 // of a worker's memory, in percent
}

// Add adds a leg.
func (t *Total) Add(leg *Total) {
	t.Storage = leg.Storage
	t.Seeds, t.Broken, t.Vacuous = append(t.Seeds, leg.Seeds...), append(t.Broken, leg.Broken...), append(t.Vacuous, leg.Vacuous...)
	for _, r := range leg.Revisions {
		if !slices.Contains(t.Revisions, r) {
			t.Revisions = append(t.Revisions, r)
		}
	}
	t.Recoveries, t.Bound = append(t.Recoveries, leg.Recoveries...), max(t.Bound, leg.Bound)
	slices.Sort(t.Recoveries)
	if t.Counts == nil {
		t.Counts = Counts{}
	}
	for name, n := range leg.Counts {
		t.Counts[name] += n
	}
	for i := range t.Causes {
		t.Causes[i] += leg.Causes[i]
		t.Vain[i] += leg.Vain[i]
	}
	w, l := &t.Worst, &leg.Worst
	w.Vain, w.Drift = max(w.Vain, l.Vain), max(w.Drift, l.Drift)
	t.Returns = append(t.Returns, leg.Returns...)
	t.Faults += leg.Faults
}

// Reached is the part of the goal that is reached, and 1 if there is none.
func (t *Total) Reached() float64 {
	part := 1.0
	for name, n := range t.Goal {
		if n > 0 {
			part = min(part, float64(t.Counts[name])/float64(n))
		}
	}
	return part
}

// Missed says which goals that are no numbers of faults were missed.
func (t *Total) Missed() (missed []string) {
	if r := t.Recoveries; r.Telling() && r.P99() > t.Bound {
		missed = append(missed, fmt.Sprintf("one in a hundred deaths was over after %v, and it must be %v", r.P99(), t.Bound))
	}
	if n := len(t.Returns); n >= leastReturns && t.median() < wantReturn {
		missed = append(missed, fmt.Sprintf("throughput after %d returns of a server was %.0f %% in the median, and it must be %.0f %%", n, 100*t.median(), 100*wantReturn))
	}
	return missed
}

const (
	// wantReturn is which part of the throughput must be there within ten seconds of a
	// server's return, in the median of leastReturns or more.
	wantReturn   = 0.95
	leastReturns = 5
)

func (t *Total) median() float64 {
	sorted := slices.Sorted(slices.Values(t.Returns))
	return sorted[len(sorted)/2]
}

// columns are the heads of the page's table, and what stands below.
var columns = []struct {
	head string
	cell func(t *Total) string
}{
	{"storage", func(t *Total) string { return t.Storage }},
	{"jobs", count(Jobs)},
	{"part of its goal", func(t *Total) string {
		if len(t.Goal) == 0 {
			return none
		}
		return fmt.Sprintf("%.0f %%", 100*min(t.Reached(), 1))
	}},
	{"runs", count(Runs)},
	{"worker kills", count(Kills)},
	{"pauses", count(Pauses)},
	{"worker stops", count(Stops)},
	{"server kills", count(ServerKills)},
	{"server stops", count(ServerStops)},
	{"backends ended", count(Backends)},
	{"commit cuts", count(Cuts)},
	{"unknown enqueues, transactions", func(t *Total) string { return count(Unknown)(t) + ", " + count(UnknownTx)(t) }},
	{"outcomes not known by their worker", count(Open)},
	{"stale outcomes offered", count(Stale)},
	{"deaths with jobs not begun, running, outcomes not answered, enqueues not answered", func(t *Total) string {
		var all []string
		for p := range check.NumPhases {
			all = append(all, count(With(p))(t))
		}
		return strings.Join(all, ", ")
	}},
	{"last rescue after a worker's death; bound of p99", func(t *Total) string {
		r := t.Recoveries
		switch {
		case len(r) == 0:
			return none
		case !r.Telling():
			return fmt.Sprintf("%v; too few for p99", r)
		case r.P99() > t.Bound:
			return fmt.Sprintf("%v; **missed**: %.2f s", r, t.Bound.Seconds())
		default:
			return fmt.Sprintf("%v; %.2f s", r, t.Bound.Seconds())
		}
	}},
	{"rescues by cause", func(t *Total) string { return cmp.Or(t.Causes.String(), none) }},
	{"runs in vain for a worker's death, mean / most", func(t *Total) string {
		if t.Counts[WorkerDeaths] == 0 {
			return none
		}
		return fmt.Sprintf("%.1f / %d", float64(t.Vain[0])/float64(t.Counts[WorkerDeaths]), t.Worst.Vain)
	}},
	{"**lost / doubled / stale accepted**; others", func(t *Total) string {
		return fmt.Sprintf("**%d / %d / %d**; %d", t.Counts[Lost], t.Counts[Doubled], t.Counts[StaleAccepted], t.Counts[Others])
	}},
	{"workers closed, leaks 0", count(Closed)},
	{"throughput after a server's return, median / least", func(t *Total) string {
		if len(t.Returns) == 0 {
			return none
		}
		text := fmt.Sprintf("%.0f %% / %.0f %% of %d", 100*t.median(), 100*slices.Min(t.Returns), len(t.Returns))
		if t.median() < wantReturn {
			text += fmt.Sprintf("; **missed**: %.0f %%", 100*wantReturn)
		}
		return text
	}},
	{"growth of a worker, worst", func(t *Total) string {
		if t.Worst.Drift == 0 {
			return none
		}
		return fmt.Sprintf("%.1f %%", t.Worst.Drift)
	}},
	{"faults for", func(t *Total) string { return t.Faults.Round(time.Second).String() }},
	{"broken", func(t *Total) string { return seeds(t.Broken) }},
	{"vacuous", func(t *Total) string { return seeds(t.Vacuous) }},
	{"revisions", func(t *Total) string { return cmp.Or(strings.Join(t.Revisions, ", "), none) }},
	{"legs: seeds", func(t *Total) string { return seeds(t.Seeds) }},
}

// none is what stands for nothing.
const none = "–"

// seeds says how many legs there were, and from which seeds.
func seeds(of []uint64) string {
	if len(of) == 0 {
		return none
	}
	return fmt.Sprintf("%d: %s", len(of), strings.Trim(fmt.Sprint(of), "[]"))
}

// count is a number, beside the one that is wanted.
func count(name string) func(*Total) string {
	return func(t *Total) string {
		if goal := t.Goal[name]; goal > 0 {
			return fmt.Sprintf("%d of %d", t.Counts[name], goal)
		}
		if n := t.Counts[name]; n > 0 {
			return fmt.Sprint(n)
		}
		return none
	}
}
