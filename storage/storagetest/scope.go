package storagetest

import (
	"os"
	"testing"
)

// A scope is a part of a test, at whose end what was registered with it is
// cleaned up, so that a case may open many storages one after the other.
type scope struct {
	testing.TB
	cleanups []func()
}

// scoped runs f and then what f registered for cleanup.
func scoped(t testing.TB, f func(t testing.TB)) {
	t.Helper()
	s := &scope{TB: t}
	defer s.close()
	f(s)
}

func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) TempDir() string {
	s.Helper()
	dir, err := os.MkdirTemp("", "storagetest")
	if err != nil {
		s.Fatalf("no directory: %v", err)
	}
	s.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			s.Errorf("directory stays: %v", err)
		}
	})
	return dir
}

// close runs the cleanups, the last first.
func (s *scope) close() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
	s.cleanups = nil
}

// testingTB is testing.TB under a name that can be embedded beside another.
type testingTB = testing.TB

// failing is a scope whose failures go to a random check, which then looks for
// a smaller sequence that fails.
type failing struct {
	testingTB
	t interface {
		Fatalf(format string, args ...any)
		Errorf(format string, args ...any)
		Logf(format string, args ...any)
	}
}

func (f failing) Fatalf(format string, args ...any) { f.t.Fatalf(format, args...) }
func (f failing) Errorf(format string, args ...any) { f.t.Errorf(format, args...) }
func (f failing) Logf(format string, args ...any)   { f.t.Logf(format, args...) }
