package main

import (
	"github.com/pawlq/pawl/torture/check"
	"github.com/pawlq/pawl/torture/results"
)

// result is what a run has shown.
func (r *run) result(c *check.Report) *results.Total {
	hit := r.faults.counts()
	t := r.total()
	t.Returns, t.Causes, t.Vain, t.Worst = c.Returns, c.Causes, c.RunsAgain, results.Worst{Vain: c.MostRunsAgain}
	t.Recoveries, t.Bound = c.Recoveries, c.Bound
	for _, d := range c.Memory {
		if d.Telling() { // else it is how a process warms up
			t.Worst.Drift = max(t.Worst.Drift, d.Percent())
		}
	}
	lost := c.Broken[check.Lost] + c.Broken[check.Ghost] + c.Broken[check.Unresolved]
	doubled := c.Broken[check.Executions] + c.Broken[check.Effects] + c.Broken[check.Claims] + c.Broken[check.Final]
	others := -lost - doubled - c.Broken[check.StaleWrite]
	for _, n := range c.Broken {
		others += n
	}
	t.Counts = results.Counts{
		results.Legs: 1, results.Returned: int64(len(c.Returns)), results.Timed: int64(len(c.Recoveries)),
		results.Jobs: c.Jobs, results.Runs: c.Executions, results.WorkerDeaths: c.WorkerDeaths, results.Closed: c.Closed - int64(c.Broken[check.Leaks]),
		results.Unknown: c.Unknown, results.Failed: c.Failed, results.UnknownTx: c.UnknownTx, results.Open: c.Open, results.Stale: c.StaleOffered,
		results.Lost: int64(lost), results.Doubled: int64(doubled), results.StaleAccepted: int64(c.Broken[check.StaleWrite]), results.Others: int64(others),
	}
	for name, k := range map[string]faultKind{results.Kills: killWorker, results.Pauses: pauseWorker, results.Stops: stopWorker, results.ServerKills: killServer,
		results.ServerStops: haltServer, results.Backends: endBackends, results.FullDisks: fillDisk, results.Cuts: cutCommits} {
		t.Counts[name] = int64(hit[k])
	}
	for p, n := range c.Phases {
		t.Counts[results.With(check.Phase(p))] = n
	}
	if !c.Clean() {
		t.Broken = t.Seeds
	}
	return t
}

// failed is what a run has shown that did not come to its end.
func (r *run) failed() *results.Total {
	t := r.total()
	t.Broken, t.Counts = t.Seeds, results.Counts{results.Legs: 1, results.Others: 1}
	return t
}

func (r *run) total() *results.Total {
	return &results.Total{Storage: r.o.storage, Seeds: []uint64{r.o.seed}, Revisions: []string{results.Revision()}, Faults: r.lasted}
}
