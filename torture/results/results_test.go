package results

import (
	"os"
	"path/filepath"
	"slices"
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
		total := &Total{Storage: name, Seeds: []uint64{uint64(i)}, Counts: Counts{Jobs: int64(i)}}
		if name == "sqlite" {
			total.Goal = Counts{Jobs: 3}
		}
		if err := Put(path, total); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines, found := strings.CutPrefix(string(got), head())
	first, second, _ := strings.Cut(lines, "\n")
	if !found || !strings.HasPrefix(first, "| redis | 1 |") || !strings.HasPrefix(second, "| sqlite | 2 of 3 | 67 % |") || strings.Count(second, "\n") != 1 {
		t.Errorf("the page is\n%s", got)
	}
}

// TestAdd adds two legs.
func TestAdd(t *testing.T) {
	var sum Total
	for i := range 2 {
		n := int64(i + 1)
		sum.Add(&Total{Storage: "redis", Seeds: []uint64{uint64(n)}, Counts: Counts{Jobs: n}, Worst: Worst{Vain: 3 - n},
			Causes: check.Causes{n}, Recoveries: check.Recoveries{time.Duration(3 - n)}, Revisions: []string{"a"}, Faults: time.Second})
	}
	want := Total{Storage: "redis", Seeds: []uint64{1, 2}, Counts: Counts{Jobs: 3}, Worst: Worst{Vain: 2}, Causes: check.Causes{3},
		Recoveries: check.Recoveries{1, 2}, Revisions: []string{"a"}, Faults: 2 * time.Second}
	if d := cmp.Diff(want, sum); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestMissed says what was missed, if there is enough to tell.
func TestMissed(t *testing.T) {
	slow := func(n int, d time.Duration) check.Recoveries { return slices.Repeat(check.Recoveries{d}, n) }
	for _, c := range []struct {
		name   string
		total  Total
		missed int
	}{
		{"nothing", Total{}, 0},
		{"in time", Total{Recoveries: slow(100, time.Second), Bound: time.Second, Returns: []float64{0.1, 0.2, 0.95, 1, 1}}, 0},
		{"late", Total{Recoveries: slow(100, time.Second+1), Bound: time.Second}, 1},
		{"late, of few deaths", Total{Recoveries: slow(99, time.Second+1), Bound: time.Second}, 0},
		{"slow", Total{Returns: []float64{0.1, 0.2, 0.94, 1, 1}}, 1},
		{"slow, after few returns", Total{Returns: []float64{0.1, 0.2, 0.3, 0.4}}, 0},
	} {
		if got := c.total.Missed(); len(got) != c.missed {
			t.Errorf("%s: missed %v", c.name, got)
		}
	}
}
