package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/torture/results"
)

// TestMain plays the role of another process of a run if it is started as one.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, "torture:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestTorture makes a short run on each storage, with faults and without. How much the
// faults hit is not asked, since on a slow machine it may be little, but that they did.
func TestTorture(t *testing.T) {
	for _, storage := range storages() {
		for _, faults := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", storage, faults), func(t *testing.T) {
				if testing.Short() && storage != "memory" && storage != "sqlite" {
					t.Skip("SKIPPED: servers take too long for a short test")
				}
				args := []string{"-storage", storage, "-jobs", "1500", "-for", "5s", "-seed", "1", "-workers", "3", "-lease", "1s", "-sweep", "300ms", "-most", "15",
					"-vacuity=false", "-keep", t.TempDir(), fmt.Sprintf("-faults=%v", faults)}
				o, err := parse(args, os.Stderr)
				if err != nil {
					t.Fatal(err)
				}
				var out strings.Builder
				shown, err := torture(t.Context(), o, &out)
				if err != nil && strings.Contains(err.Error(), "is not installed") && os.Getenv(testserver.RequireEnv) != "1" {
					t.Skipf("SKIPPED: %v", err)
				}
				if err != nil {
					t.Fatalf("%v\n%s", err, &out)
				}
				for _, name := range expected(storage, faults) {
					if shown.Counts[name] == 0 {
						t.Errorf("vacuous: no %s:\n%s", name, &out)
					}
				}
			})
		}
	}
}

// expected are the names of numbers that no run may be without.
func expected(storage string, faults bool) []string {
	names := []string{results.Jobs, results.Runs, results.Stale}
	if storage == "memory" {
		return names
	}
	names = append(names, results.Closed)
	if faults {
		names = append(names, results.Kills, results.WorkerDeaths)
	}
	if faults && storage != "sqlite" {
		names = append(names, results.Cuts)
	}
	return names
}

// TestStops asks workers to stop, one after the other, and does nothing else to them: each
// must hand back what it has, so that nothing is rescued but what is let end by hand.
func TestStops(t *testing.T) {
	for _, storage := range []string{"sqlite", "postgres"} {
		t.Run(storage, func(t *testing.T) {
			if testing.Short() && storage != "sqlite" {
				t.Skip("SKIPPED: servers take too long for a short test")
			}
			o, err := parse([]string{"-storage", storage, "-only", stopWorker.String(), "-jobs", "1500", "-for", "5s", "-every", "500ms", "-most", "6", "-seed", "1",
				"-workers", "3", "-lease", "1s", "-sweep", "300ms", "-vacuity=false", "-keep", t.TempDir()}, os.Stderr)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			shown, err := torture(t.Context(), o, &out)
			switch {
			case err != nil && strings.Contains(err.Error(), "is not installed") && os.Getenv(testserver.RequireEnv) != "1":
				t.Skipf("SKIPPED: %v", err)
			case err != nil:
				t.Fatalf("%v\n%s", err, &out)
			}
			if shown.Counts[results.Stops] == 0 || shown.Counts[results.Closed] <= 3 || shown.Counts[results.WorkerDeaths] > 0 {
				t.Errorf("vacuous: nobody was asked to stop, or else ended:\n%s", &out)
			}
		})
	}
}

// TestFullDisk leaves no room for jobs twice. Calls must fail in time, nothing that was accepted
// be lost, and all end when there is room again.
func TestFullDisk(t *testing.T) {
	for _, storage := range []string{"sqlite", "postgres"} {
		t.Run(storage, func(t *testing.T) {
			if testing.Short() && storage != "sqlite" {
				t.Skip("SKIPPED: servers take too long for a short test")
			}
			args := []string{"-storage", storage, "-disk", "384m", "-only", fillDisk.String(), "-jobs", "3000", "-for", "20s", "-every", "1s", "-most", "2",
				"-seed", "1", "-workers", "2", "-producers", "1", "-vacuity=false", "-keep", t.TempDir()}
			o, err := parse(args, os.Stderr)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			shown, err := torture(t.Context(), o, &out)
			switch {
			case errors.Is(err, errNoDisk):
				t.Logf("LEFT OUT: %v", err)
				return
			case err != nil && strings.Contains(err.Error(), "is not installed") && os.Getenv(testserver.RequireEnv) != "1":
				t.Skipf("SKIPPED: %v", err)
			case err != nil:
				t.Fatalf("%v\n%s", err, &out)
			}
			if shown.Counts[results.FullDisks] == 0 || shown.Counts[results.Failed] == 0 {
				t.Errorf("vacuous: no disk was full, or no call failed by that:\n%s", &out)
			}
		})
	}
}

// TestFaultsAreOfTheirSeed draws a schedule twice, and another one.
func TestFaultsAreOfTheirSeed(t *testing.T) {
	draw := func(seed uint64) string {
		s := newSchedule(seed, time.Second, func(k faultKind) bool { return k < cutCommits })
		text := ""
		for range 100 {
			f := s.next()
			text += fmt.Sprintln(f.after, f)
		}
		return text
	}
	first, again := draw(7), draw(7)
	if first != again {
		t.Error("one seed gave two schedules")
	}
	if first == draw(8) {
		t.Error("two seeds gave one schedule")
	}
	for k := killWorker; k < cutCommits; k++ {
		if !strings.Contains(first+draw(8)+draw(9), k.String()+",") {
			t.Errorf("no %v in 300 faults", k)
		}
	}
}

// TestUnknownStorage asks for one that is not there.
func TestUnknownStorage(t *testing.T) {
	if _, err := parse([]string{"-storage", "paper"}, os.Stderr); err == nil {
		t.Error("a storage that is not there was accepted")
	}
}
