// Package results keeps the page of what runs have shown.
package results

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// The page is its introduction, and a table with a line for each storage.
const introduction = `# Results

Written by the runs themselves (` + "`-results`" + `), the last soak, or run, of each storage. What is checked is in
README.md. A job is lost if it was accepted and did not end as it should; doubled if it ran more often than its counts
say, or left more than one effect in its database; stale is an outcome of a claim that was over and that was
accepted all the same; others are violations of what else must hold. Runs are in vain if their claim was taken back.

`

// Put puts a line into the page, in the place of the older one of its storage.
func Put(path string, t *Total) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := head()
	_, lines, _ := strings.Cut(string(old), text)
	for line := range strings.Lines(lines) {
		if !strings.HasPrefix(line, "| "+t.Storage+" |") {
			text += line
		}
	}
	text += "|"
	for _, c := range columns {
		text += fmt.Sprintf(" %s |", c.cell(t))
	}
	return os.WriteFile(path, []byte(text+"\n"), 0o644)
}

// head is what comes before the lines of storages. A page with another one is begun anew.
func head() string {
	names, rule := "|", "|"
	for _, c := range columns {
		names += " " + c.head + " |"
		rule += "---|"
	}
	return introduction + names + "\n" + rule + "\n"
}
