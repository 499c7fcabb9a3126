package planted

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl/internal/testserver"
)

// Limits of a run with a bug.
const (
	limit    = 60 * time.Second
	attacked = "8s"
	jobs     = "8000"
)

// TestPlanted builds torture with each bug and demands that it is caught.
func TestPlanted(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range Bugs() {
		t.Run(b.Name, func(t *testing.T) {
			if testing.Short() {
				t.Skip("SKIPPED: takes a minute for all of them")
			}
			if b.Storage == "postgres" {
				testserver.Postgres(t) // skips where there is none
			}
			t.Parallel()
			dir := t.TempDir()
			overlay, err := b.Overlay(root, dir)
			if err != nil {
				t.Fatal(err)
			}
			program := filepath.Join(dir, "torture")
			build := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", program, "..")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build: %v\n%s", err, out)
			}
			out := attack(t, program, b.Storage)
			for _, name := range b.Catch {
				if strings.Contains(out, "VIOLATED "+name+":") {
					return
				}
			}
			t.Errorf("none of %v was reported:\n%s", b.Catch, out)
		})
	}
}

// attack runs a program with a bug and returns what it said. It must fail.
func attack(t *testing.T, program, storage string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	run := exec.CommandContext(ctx, program, "-storage", storage, "-jobs", jobs, "-for", attacked, "-seed", "1", "-drain", "10s",
		"-lease", "1s", "-sweep", "300ms", "-cut-every", "100ms", "-vacuity=false", "-keep", t.TempDir())
	run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
	out, err := run.CombinedOutput()
	if err == nil {
		t.Errorf("the run has found nothing:\n%s", out)
	}
	return string(out)
}
