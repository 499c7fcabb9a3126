package planted

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/torture/linear"
)

// Limits of a run with a bug.
const (
	limit    = 60 * time.Second
	attacked = "8s"
	jobs     = "8000"
)

// servers are those that storages need. They skip a test where there is none.
var servers = map[string]func(*testing.T){
	"postgres": func(t *testing.T) { testserver.Postgres(t) },
	"mysql":    func(t *testing.T) { testserver.MariaDB(t) },
	"redis":    func(t *testing.T) { testserver.Redis(t) },
}

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
			if need := servers[b.Storage]; need != nil {
				need(t)
			}
			t.Parallel()
			dir := t.TempDir()
			overlay, err := b.Overlay(root, dir)
			if err != nil {
				t.Fatal(err)
			}
			program := build(t, overlay, dir)
			attack(t, program, b)
			if b.Linear {
				disorder(t, program, b)
			}
		})
	}
}

// build builds torture with an overlay.
func build(t *testing.T, overlay, dir string) string {
	t.Helper()
	program := filepath.Join(dir, "torture")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", program, "..").CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}

// TestWrongClocks lets the wall clocks of workers and producers be wrong by an hour, some
// early and some late: it must not matter where the server's clock is that of the storage.
func TestWrongClocks(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: builds Go's library anew")
	}
	goroot, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	overlay, err := WrongClock(string(bytes.TrimSpace(goroot)), dir)
	if err != nil {
		t.Fatal(err)
	}
	program := build(t, overlay, dir)
	for storage, need := range servers {
		t.Run(storage, func(t *testing.T) {
			need(t)
			out, err := exec.CommandContext(t.Context(), program, "-storage", storage, "-jobs", "1500", "-for", "5s", "-seed", "1", "-skew", "1h",
				"-vacuity=false", "-keep", t.TempDir()).CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			for _, want := range []string{" worker kills,", " commit cuts"} {
				if !bytes.Contains(out, []byte(want)) {
					t.Errorf("vacuous: there were no%s:\n%s", want, out)
				}
			}
			if bytes.Contains(out, []byte("stale ones offered 0,")) {
				t.Errorf("vacuous: no stale outcome was offered:\n%s", out)
			}
		})
	}
}

// disorder demands that a program with a bug gives answers in small histories of calls that
// no order of these explains.
func disorder(t *testing.T, program string, b Bug) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "-linear", "2000", "-storage", b.Storage, "-seed", "1").CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte(linear.ErrOrder.Error())) {
		t.Errorf("small histories do not show it: %v\n%.1000s", err, out)
	}
}

// attack runs a program with a bug, by one seed after another, until what it breaks is
// reported, whether or not the faults hit much else. Some bugs need luck to show: they have a
// minute.
func attack(t *testing.T, program string, b Bug) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var said []byte
	for seed := 1; ctx.Err() == nil; seed++ {
		run := exec.CommandContext(ctx, program, "-storage", b.Storage, "-jobs", jobs, "-for", attacked, "-seed", strconv.Itoa(seed), "-drain", "10s",
			"-lease", "1s", "-sweep", "300ms", "-cut-every", "100ms", "-most", "20", "-vacuity=false", "-keep", t.TempDir())
		run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
		out, err := run.CombinedOutput()
		for _, name := range b.Catch {
			if err != nil && bytes.Contains(out, []byte("VIOLATED "+name+":")) {
				t.Logf("caught by seed %d", seed)
				return
			}
		}
		said = append(said, out...)
	}
	t.Errorf("none of %v was reported:\n%s", b.Catch, said)
}
