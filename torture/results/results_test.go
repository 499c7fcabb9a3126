package results

import (
	"os"
	"path/filepath"
	"testing"
)

// TestAdd puts lines into a page: the newest one of each storage stays.
func TestAdd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "RESULTS.md")
	for _, cells := range [][]any{{"sqlite", 1}, {"redis", 2}, {"sqlite", 3}} {
		if err := Add(path, cells); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := head + "| redis | 2 |\n| sqlite | 3 |\n"; string(got) != want {
		t.Errorf("the page is\n%s", got)
	}
}
