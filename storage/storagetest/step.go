package storagetest

import (
	"sync/atomic"
	"testing"

	"github.com/pawlq/pawl"
)

// maxSteps is more calls than any operation worth a [StepSweep] makes: one that
// never runs through fails.
const maxSteps = 1000

// StepSweep finds out whether an operation of many calls survives the failure
// of any one of them. It runs op on a fresh storage of which the first call
// fails before it has any effect, then again with the second call failing, and
// so on, until op runs through without having reached the call that was to
// fail; then all of that again with calls that fail after their effect.
//
// If op returns an error, because it does not repeat its calls itself, it is
// run a second time, now without faults, and must succeed. After each run check
// looks at what is stored.
func StepSweep(
	t testing.TB,
	open func(t testing.TB) pawl.Storage,
	op func(s pawl.Storage) error,
	check func(t testing.TB, s pawl.Storage),
) {
	t.Helper()
	for _, after := range []bool{false, true} {
		sweep := &stepSweep{open, op, check, after}
		for n := 1; sweep.step(t, n); n++ {
			if n == maxSteps {
				t.Fatalf("the operation still fails at call %d", n)
			}
		}
	}
}

// A stepSweep is one direction of a StepSweep: faults before, or after, the
// effect.
type stepSweep struct {
	open  func(t testing.TB) pawl.Storage
	op    func(s pawl.Storage) error
	check func(t testing.TB, s pawl.Storage)
	after bool
}

// step runs the operation with the nth call failing and reports whether it made
// that many calls.
func (w *stepSweep) step(t testing.TB, n int) (reached bool) {
	t.Helper()
	scoped(t, func(t testing.TB) {
		t.Helper()
		s := w.open(t)
		var failed atomic.Pointer[string] // the method of the nth call
		err := w.op(Wrap(s, func(c Call) Fault {
			if c.N != n || c.Method == Event {
				return Fault{}
			}
			failed.Store(&c.Method)
			return Fault{Err: ErrFault, After: w.after}
		}))
		method := failed.Load()
		if reached = method != nil; !reached {
			if err != nil {
				t.Fatalf("the operation fails without a fault: %v", err)
			}
			w.check(t, s)
			return
		}
		t.Logf("call %d, %s, failed; after its effect: %v; the operation returned %v", n, *method, w.after, err)
		if err != nil {
			if again := w.op(s); again != nil {
				t.Fatalf("repeated without a fault, the operation returned %v", again)
			}
		}
		w.check(t, s)
	})
	return reached
}
