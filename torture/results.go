package main

import (
	"github.com/pawlq/pawl/torture/check"
	"github.com/pawlq/pawl/torture/results"
)

// result is what a run has shown.
func (r *run) result(c *check.Report) *results.Total {
	hit := r.faults.counts()
	t := &results.Total{Storage: r.o.storage, Seeds: []uint64{r.o.seed}, Returns: c.Returns, Causes: c.Causes, Vain: c.RunsAgain, Faults: r.lasted,
		Worst: results.Worst{RecoverP50: c.RecoverP50, RecoverP99: c.RecoverP99, RecoverMax: c.RecoverMax, Vain: c.MostRunsAgain}}
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
		results.Legs: 1, results.Returned: int64(len(c.Returns)),
		results.Jobs: c.Jobs, results.Runs: c.Executions, results.Deaths: c.Deaths, results.Closed: c.Closed - int64(c.Broken[check.Leaks]),
		results.Unknown: c.Unknown, results.Failed: c.Failed, results.UnknownTx: c.UnknownTx, results.Stale: c.StaleOffered,
		results.Lost: int64(lost), results.Doubled: int64(doubled), results.StaleAccepted: int64(c.Broken[check.StaleWrite]), results.Others: int64(others),
	}
	for name, k := range map[string]faultKind{results.Kills: killWorker, results.Pauses: pauseWorker, results.ServerKills: killServer,
		results.ServerStops: haltServer, results.Backends: endBackends, results.FullDisks: fillDisk, results.Cuts: cutCommits} {
		t.Counts[name] = int64(hit[k])
	}
	if !c.Clean() {
		t.Broken = t.Seeds
	}
	return t
}
