// Package results keeps the page of what runs have shown.
package results

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// The page is its head, and then a line for each storage's last run.
const head = `# Results

Written by the runs themselves (` + "`-results`" + `), the last one of each storage. What the columns mean and what is
checked beside them is in README.md. A job is lost if it was accepted and did not end as it should; doubled if it
ran more often than its counts say, or left more than one effect in its database; stale is an outcome of a claim that was
over and that was accepted all the same.

| storage | jobs | runs | worker kills | pauses | server kills | server stops | backends ended | commit cuts | unknown enqueues, transactions | stale outcomes offered | rescued after a worker's death, p50 / p99 | lost / doubled / stale accepted | faults for | seed |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
`

// Add puts a line into the page, in the place of the older one with the same first
// cell.
func Add(path string, cells []any) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	first := fmt.Sprintf("| %v |", cells[0])
	text := head
	for line := range strings.Lines(strings.TrimPrefix(string(old), head)) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| storage") && !strings.HasPrefix(line, first) {
			text += strings.TrimSpace(line) + "\n"
		}
	}
	text += "|"
	for _, cell := range cells {
		text += fmt.Sprintf(" %v |", cell)
	}
	return os.WriteFile(path, []byte(text+"\n"), 0o644)
}
