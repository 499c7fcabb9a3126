package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/pawlq/pawl/torture/check"
)

// The page of results: its head, then a line for each storage's last run.
const resultsHead = `# Results

Written by the runs themselves (` + "`-results`" + `), the last one of each storage. What the columns mean and what is
checked beside them is in README.md. A job is lost if it was accepted and did not end as it should; doubled if it
ran more often than its counts say, or left more than one effect in its database; stale is an outcome of a claim that was
over and that was accepted all the same.

| storage | jobs | runs | worker kills | pauses | server kills | server stops | backends ended | commit cuts | unknown enqueues, transactions | stale outcomes offered | rescued after a worker's death, p50 / p99 | lost / doubled / stale accepted | faults for | seed |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
`

// result is the line of a run.
func (r *run) result(c *check.Report) string {
	hit := r.faults.counts()
	lost := c.Broken[check.Lost] + c.Broken[check.Ghost] + c.Broken[check.Unresolved]
	doubled := c.Broken[check.Executions] + c.Broken[check.Effects] + c.Broken[check.Claims] + c.Broken[check.Final]
	kills := int64(hit[killWorker])
	if c.Deaths > 0 {
		kills = c.Deaths - int64(hit[killProducer])
	}
	cells := []any{r.o.storage, c.Jobs, c.Executions, kills, hit[pauseWorker], hit[killServer], hit[haltServer], hit[endBackends], hit[cutCommits],
		fmt.Sprintf("%d, %d", c.Unknown, c.UnknownTx), c.StaleOffered,
		fmt.Sprintf("%.2f s / %.2f s", c.RecoverP50.Seconds(), c.RecoverP99.Seconds()),
		fmt.Sprintf("%d / %d / %d", lost, doubled, c.Broken[check.StaleWrite]), r.lasted.Round(time.Second), r.o.seed}
	line := "|"
	for _, cell := range cells {
		line += fmt.Sprintf(" %v |", cell)
	}
	return line
}

// addResult puts a line into the page, in the place of the storage's older one.
func addResult(path, line string) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	storage, _, _ := strings.Cut(line[2:], " ")
	lines := []string{}
	for l := range strings.Lines(strings.TrimPrefix(string(old), resultsHead)) {
		l = strings.TrimSpace(l)
		if strings.HasPrefix(l, "| ") && !strings.HasPrefix(l, "| storage") && !strings.HasPrefix(l, "| "+storage+" ") {
			lines = append(lines, l)
		}
	}
	lines = append(lines, line)
	return os.WriteFile(path, []byte(resultsHead+strings.Join(lines, "\n")+"\n"), 0o644)
}
