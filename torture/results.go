package main

import (
	"fmt"
	"time"

	"github.com/pawlq/pawl/torture/check"
)

// result is the line of a run in the page of results.
func (r *run) result(c *check.Report) []any {
	hit := r.faults.counts()
	lost := c.Broken[check.Lost] + c.Broken[check.Ghost] + c.Broken[check.Unresolved]
	doubled := c.Broken[check.Executions] + c.Broken[check.Effects] + c.Broken[check.Claims] + c.Broken[check.Final]
	kills := int64(hit[killWorker])
	if c.Deaths > 0 {
		kills = c.Deaths - int64(hit[killProducer])
	}
	return []any{r.o.storage, c.Jobs, c.Executions, kills, hit[pauseWorker], hit[killServer], hit[haltServer], hit[endBackends], hit[cutCommits],
		fmt.Sprintf("%d, %d", c.Unknown, c.UnknownTx), c.StaleOffered,
		fmt.Sprintf("%.2f s / %.2f s", c.RecoverP50.Seconds(), c.RecoverP99.Seconds()),
		fmt.Sprintf("%d / %d / %d", lost, doubled, c.Broken[check.StaleWrite]), r.lasted.Round(time.Second), r.o.seed}
}
