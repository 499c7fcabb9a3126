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
	Broken  []uint64 // of those in which something did not hold
	Counts  Counts   // sums
	Worst   Worst
	Returns []float64     // throughput after each return of a server, as a part of that before
	Causes  check.Causes  // of rescues
	Vain    check.Causes  // runs under the claims that these ended
	Faults  time.Duration // how long they went on
}

// Counts are numbers that legs add up to.
type Counts map[string]int64

// Names of Counts.
const (
	Jobs          = "jobs"
	Runs          = "runs"
	Kills         = "worker kills"
	Deaths        = "deaths of processes"
	Pauses        = "worker pauses"
	ServerKills   = "server kills"
	ServerStops   = "server stops"
	Backends      = "backend kills"
	FullDisks     = "full disks"
	Cuts          = "commit cuts"
	Unknown       = "unknown enqueues"
	Failed        = "unknown enqueues that had time left"
	UnknownTx     = "unknown transactions"
	Stale         = "stale outcomes"
	Lost          = "lost"
	Doubled       = "doubled"
	StaleAccepted = "stale accepted"
	Others        = "other violations"
	Closed        = "workers that left nothing"
	Returned      = "returns of servers" // that nothing followed soon
	Legs          = "legs"
)

// Worst is what was the worst in any leg.
type Worst struct {
	RecoverP50, RecoverP99, RecoverMax time.Duration
	Vain                               int64   // runs, of one death
	Drift                              float64 // of a worker's memory, in percent
}

// Add adds a leg.
func (t *Total) Add(leg *Total) {
	t.Storage = leg.Storage
	t.Seeds, t.Broken = append(t.Seeds, leg.Seeds...), append(t.Broken, leg.Broken...)
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
	w.RecoverP50, w.RecoverP99, w.RecoverMax = max(w.RecoverP50, l.RecoverP50), max(w.RecoverP99, l.RecoverP99), max(w.RecoverMax, l.RecoverMax)
	w.Vain, w.Drift = max(w.Vain, l.Vain), max(w.Drift, l.Drift)
	t.Returns = append(t.Returns, leg.Returns...)
	t.Faults += leg.Faults
}

// columns are the heads of the page's table, and what stands below.
var columns = []struct {
	head string
	cell func(t *Total) string
}{
	{"storage", func(t *Total) string { return t.Storage }},
	{"jobs", count(Jobs)},
	{"runs", count(Runs)},
	{"worker kills", count(Kills)},
	{"pauses", count(Pauses)},
	{"server kills", count(ServerKills)},
	{"server stops", count(ServerStops)},
	{"backends ended", count(Backends)},
	{"commit cuts", count(Cuts)},
	{"unknown enqueues, transactions", func(t *Total) string { return count(Unknown)(t) + ", " + count(UnknownTx)(t) }},
	{"stale outcomes offered", count(Stale)},
	{"rescued after a worker's death, worst p50 / p99 / max", func(t *Total) string {
		w := &t.Worst
		if w.RecoverMax == 0 {
			return none
		}
		return fmt.Sprintf("%.2f s / %.2f s / %.2f s", w.RecoverP50.Seconds(), w.RecoverP99.Seconds(), w.RecoverMax.Seconds())
	}},
	{"rescues by cause", func(t *Total) string { return cmp.Or(t.Causes.String(), none) }},
	{"runs in vain for a worker's death, mean / most", func(t *Total) string {
		if t.Counts[Deaths] == 0 {
			return none
		}
		return fmt.Sprintf("%.1f / %d", float64(t.Vain[0])/float64(t.Counts[Deaths]), t.Worst.Vain)
	}},
	{"**lost / doubled / stale accepted**; others", func(t *Total) string {
		return fmt.Sprintf("**%d / %d / %d**; %d", t.Counts[Lost], t.Counts[Doubled], t.Counts[StaleAccepted], t.Counts[Others])
	}},
	{"workers closed, leaks 0", count(Closed)},
	{"throughput after a server's return, median / least", func(t *Total) string {
		if len(t.Returns) == 0 {
			return none
		}
		sorted := slices.Sorted(slices.Values(t.Returns))
		return fmt.Sprintf("%.0f %% / %.0f %%", 100*sorted[len(sorted)/2], 100*sorted[0])
	}},
	{"growth of a worker, worst", func(t *Total) string {
		if t.Worst.Drift == 0 {
			return none
		}
		return fmt.Sprintf("%.1f %%", t.Worst.Drift)
	}},
	{"faults for", func(t *Total) string { return t.Faults.Round(time.Second).String() }},
	{"legs: seeds", func(t *Total) string {
		return fmt.Sprintf("%d: %s", len(t.Seeds), strings.Trim(fmt.Sprint(t.Seeds), "[]"))
	}},
}

// none is what stands for nothing.
const none = "–"

func count(name string) func(*Total) string {
	return func(t *Total) string {
		if n := t.Counts[name]; n > 0 {
			return fmt.Sprint(n)
		}
		return none
	}
}
