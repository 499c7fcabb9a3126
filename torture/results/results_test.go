package results

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl/torture/check"
)

// TestPut puts lines into a page: the newest one of each storage stays.
func TestPut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "RESULTS.md")
	for i, name := range []string{"sqlite", "redis", "sqlite"} {
		if err := Put(path, &Total{Storage: name, Seeds: []uint64{uint64(i)}, Counts: Counts{Jobs: int64(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines, found := strings.CutPrefix(string(got), head())
	first, second, _ := strings.Cut(lines, "\n")
	if !found || !strings.HasPrefix(first, "| redis | 1 |") || !strings.HasPrefix(second, "| sqlite | 2 |") || strings.Count(second, "\n") != 1 {
		t.Errorf("the page is\n%s", got)
	}
}

// TestAdd adds two legs.
func TestAdd(t *testing.T) {
	var sum Total
	for i := range 2 {
		n := int64(i + 1)
		sum.Add(&Total{Storage: "redis", Seeds: []uint64{uint64(n)}, Counts: Counts{Jobs: n}, Worst: Worst{RecoverMax: time.Duration(3 - n)},
			Causes: check.Causes{n}, Faults: time.Second})
	}
	want := Total{Storage: "redis", Seeds: []uint64{1, 2}, Counts: Counts{Jobs: 3}, Worst: Worst{RecoverMax: 2}, Causes: check.Causes{3}, Faults: 2 * time.Second}
	if d := cmp.Diff(want, sum); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
