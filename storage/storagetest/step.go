package storagetest

import (
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
func StepSweep(t testing.TB, open func(t testing.TB) pawl.Storage, op func(s pawl.Storage) error, check func(t testing.TB, s pawl.Storage)) {
	t.Helper()
	for _, after := range []bool{false, true} {
		for n := 1; step(t, open, op, check, Fault{Err: ErrFault, After: after}, n); n++ {
			if n == maxSteps {
				t.Fatalf("the operation still fails at call %d", n)
			}
		}
	}
}

// step runs op with the nth call failing and reports whether it was reached.
func step(t testing.TB, open func(t testing.TB) pawl.Storage, op func(s pawl.Storage) error, check func(t testing.TB, s pawl.Storage), fault Fault, n int) (reached bool) {
	t.Helper()
	failed := make(chan string, 1)
	scoped(t, func(t testing.TB) {
		t.Helper()
		s := open(t)
		err := op(Wrap(s, func(c Call) Fault {
			if c.N != n || c.Method == Event {
				return Fault{}
			}
			failed <- c.Method
			return fault
		}))
		method := ""
		select {
		case method = <-failed:
			reached = true
		default:
		}
		switch {
		case err != nil && !reached:
			t.Fatalf("the operation fails without a fault: %v", err)
		case err != nil:
			if again := op(s); again != nil {
				t.Fatalf("call %d (%s) failed, after its effect: %v: the operation failed with %v, and when repeated with %v",
					n, method, fault.After, err, again)
			}
		}
		t.Logf("call %d (%s) failed, after its effect: %v", n, method, fault.After)
		check(t, s)
	})
	return reached
}
