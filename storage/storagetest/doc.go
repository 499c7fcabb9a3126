// Package storagetest is the contract of [pawl.Storage] in executable form. A
// storage that passes [Run] is a storage, whoever wrote it; this is all that a
// test of one needs:
//
//	func TestStorage(t *testing.T) {
//		storagetest.Run(t, storagetest.Harness{
//			Open: func(t testing.TB, clock func() time.Time) pawl.Storage {
//				s, err := mystorage.Open(t.Context(), t.TempDir(), mystorage.Options{Clock: clock})
//				if err != nil {
//					t.Fatal(err)
//				}
//				t.Cleanup(func() { s.Close() })
//				return s
//			},
//		})
//	}
//
//	func BenchmarkStorage(b *testing.B) { storagetest.Bench(b, harness) }
//
// Time stands still in the tests until a case moves its [Clock], so the storage
// must take every time from the clock that it is given, and from nothing else.
// A storage whose server has a clock of its own takes the test's time as a
// parameter of each statement instead.
//
// Cases that need a second handle or a caller's transaction are run if the
// [Harness] has Reopen and Begin; cases about wake-ups and about [pawl.Cycler]
// are run if the storage implements them. A case that does not apply is not run
// and does not show up as skipped.
//
// The cases come in groups:
//   - table: each state, reached in each way, times each verb, in all modes of
//     unique keys and with DeleteNow; generated from the transition table.
//   - rules: one case for each sentence of the contract.
//   - tx: what a caller's transaction does and undoes.
//   - watch: the events of a [pawl.Watcher].
//   - concurrent: many goroutines, and many handles, at once.
//   - model: random calls, compared with a plain model after each. The flags of
//     pgregory.net/rapid, such as -rapid.checks=1000, make it longer.
//
// For tests of what is built on a storage there are [Wrap], which makes calls
// fail, hang, or lose their replies, and [StepSweep], which fails each call of
// an operation in turn.
package storagetest
