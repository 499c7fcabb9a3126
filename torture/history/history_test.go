package history

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

func read(t *testing.T, dir, process string) (events []Event) {
	t.Helper()
	if err := Read(dir, process, func(e Event) { events = append(events, e) }); err != nil {
		t.Fatal(err)
	}
	return events
}

func create(t *testing.T, dir, process string) *Writer {
	t.Helper()
	w, err := Create(dir, process)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// TestWriteAndRead reads what was written, but for an event that was torn.
func TestWriteAndRead(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, "p-1")
	want := []Event{
		{At: 1, ID: uuid.New(), Fence: -2, A: 3, B: -4, Kind: Claimed},
		{At: 5, Kind: Counted, A: 1 << 62},
	}
	w.Write(want...)
	file := filepath.Join(dir, "p-1"+suffix)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(whole, whole[:Size-1]...), 0o600); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, read(t, dir, "p-1")); d != "" {
		t.Errorf("(-written +read):\n%s", d)
	}
	if names, err := Processes(dir); err != nil || !cmp.Equal(names, []string{"p-1"}) {
		t.Errorf("processes %v, error %v", names, err)
	}
}

// TestDamaged refuses a file that holds something else.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p"+suffix), make([]byte, Size), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Read(dir, "p", func(Event) {}); err == nil {
		t.Error("zeros were taken for an event")
	}
}

// TestConcurrentWrites loses and mixes nothing.
func TestConcurrentWrites(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, "p")
	const writers, each = 8, 200
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for n := range each {
				w.Write(Event{Fence: int64(i), A: int64(n)}, Event{Fence: int64(i), A: int64(n), B: 1})
			}
		})
	}
	wg.Wait()
	next := map[int64]int64{}
	for _, e := range read(t, dir, "p") {
		if 2*e.A+e.B != next[e.Fence] {
			t.Fatalf("event %+v came as number %d of its writer", e, next[e.Fence])
		}
		next[e.Fence]++
	}
	if len(next) != writers || next[0] != 2*each {
		t.Errorf("read %v", next)
	}
}

func TestPack(t *testing.T) {
	c := pawl.Counts{Retries: 1, Rescues: 2, Releases: 3, Snoozes: 4, Skips: 5, Kicks: 300, Extends: 7}
	if got := Sum(Pack(c)); got != 1+2+3+4+5+255 {
		t.Errorf("the sum is %d", got)
	}
}
