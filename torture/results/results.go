// Package results keeps the page of what runs have shown.
package results

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// The page is its introduction, and a table with a line for each storage.
const introduction = `# Results

Written by the runs themselves (` + "`-results`" + `), the last soak, or run, of each storage. What is checked is in
README.md. A job is lost if it was accepted and did not end as it should; doubled if it ran more often than its counts
say, or left more than one effect in its database; stale is an outcome of a claim that was over and that was
accepted all the same; others are violations of what else must hold. Runs are in vain if their claim was taken back.
Commit cuts are calls that were cut in which something was written, or would have been: commits of a transaction that
has written, and calls of their own that may write, such as claims, whether they found a job or not. A run is broken if
something did not hold, or it did not come to its end, and vacuous if the faults hardly hit. Where there is a goal it stands
beside the number, and what was missed is called so.

`

// Revision is what git calls the source here when it is first asked, with -dirty if that was
// changed since: later it may not be what runs.
var Revision = sync.OnceValue(func() string {
	out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	revision := strings.TrimSpace(string(out))
	if exec.Command("git", "diff", "--quiet", "HEAD", "--", ":/*.go", ":/*.lua", ":/*.sql", ":/*.mod").Run() != nil {
		revision += "-dirty"
	}
	return revision
})

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
