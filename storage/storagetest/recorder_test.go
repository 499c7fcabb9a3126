package storagetest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// A recorder is a test that may fail without failing the test that runs it.
type recorder struct {
	scope
	mu     sync.Mutex
	failed bool
	log    strings.Builder
}

// recorded runs f, whose failures stay in the recorder.
func recorded(t testing.TB, f func(t testing.TB)) *recorder {
	r := &recorder{scope: scope{TB: t}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.close()
		f(r)
	}()
	<-done
	return r
}

func (r *recorder) note(fail bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || fail
	r.log.WriteString(text + "\n")
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) FailNow() { r.note(true, ""); runtime.Goexit() }
func (r *recorder) Fail()    { r.note(true, "") }

func (r *recorder) Log(args ...any)                   { r.note(false, fmt.Sprintln(args...)) }
func (r *recorder) Logf(format string, args ...any)   { r.note(false, fmt.Sprintf(format, args...)) }
func (r *recorder) Error(args ...any)                 { r.note(true, fmt.Sprintln(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.note(true, fmt.Sprintf(format, args...)) }
func (r *recorder) Fatal(args ...any)                 { r.note(true, fmt.Sprintln(args...)); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) {
	r.note(true, fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// failingCase runs the named case, such as "rules/claim order".
func failingCase(t *testing.T, h Harness, name string) *recorder {
	t.Helper()
	for _, g := range groups(traitsOf(t, h)) {
		for _, c := range g.cases {
			if g.name+"/"+c.name == name {
				return recorded(t, func(t testing.TB) { c.check(t, h) })
			}
		}
	}
	t.Fatalf("there is no case %q", name)
	return nil
}
