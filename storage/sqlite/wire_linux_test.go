package sqlite

import (
	"os"
	"path/filepath"
	"testing"
)

// A wire trips at the first write after it was set, and only then.
func TestWireTripsOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	trips := make(chan struct{}, 10)
	w, err := newWire(func() { trips <- struct{}{} })
	if err != nil {
		t.Skipf("the user has no inotify instance left: %v", err)
	}
	if err := w.set(path); err == nil {
		t.Error("it is set across a file that is not there")
	}
	write := func() {
		t.Helper()
		if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write()
	for range 2 {
		if err := w.set(path); err != nil {
			t.Fatal(err)
		}
		write()
		<-trips
		write()
	}
	w.close()
	if n := len(trips); n > 0 {
		t.Errorf("it has tripped %d times more", n)
	}
}

// A wire that does not tell of changes is given up, unless it was a coincidence.
func TestUselessWire(t *testing.T) {
	var g guard
	g.check() // not set: nothing was missed
	g.set = true
	for range maxMissed {
		if g.useless {
			t.Fatal("given up too soon")
		}
		g.tripped.Store(true)
		g.check() // told, but not yet heard
		g.tripped.Store(false)
		g.check()
	}
	if !g.useless || g.set {
		t.Errorf("%+v, want it given up", &g)
	}
}
