package sqlite

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// SQLite is asked when the log has changed, for some time after that, and
// now and then in any case.
func TestLogMayHaveChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	start := time.Now()
	f := walFile{path: path}
	look := func(after time.Duration, want bool) {
		t.Helper()
		if got := f.mayHaveChanged(start.Add(after)); got != want {
			t.Errorf("after %v: %v, want %v", after, got, want)
		}
	}
	write := func(text string, at time.Duration) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, start, start.Add(at)); err != nil {
			t.Fatal(err)
		}
	}
	look(0, true) // there is none
	write("one", 0)
	look(time.Second, true)
	look(2*time.Second-time.Millisecond, true) // it may become visible only now
	look(2*time.Second+2*time.Millisecond, false)
	look(2*time.Second+3*time.Millisecond, false)
	write("two", time.Second) // as long as before
	look(2*time.Second+4*time.Millisecond, true)
	look(4*time.Second, true) // nothing, but it is time
	look(4*time.Second+time.Millisecond, false)
	write("three", time.Second) // at the same time
	look(4*time.Second+2*time.Millisecond, true)
}
