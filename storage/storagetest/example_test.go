package storagetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/storage/storagetest"
)

// TestStorage is a whole test of a storage by the contract.
func TestStorage(t *testing.T) { storagetest.Run(t, harness()) }

func BenchmarkStorage(b *testing.B) { storagetest.Bench(b, harness()) }

// harness makes storages for the tests of the contract.
func harness() storagetest.Harness {
	return storagetest.Harness{
		Open: func(t testing.TB, clock func() time.Time) pawl.Storage {
			s := memory.New(&memory.Options{Clock: clock})
			t.Cleanup(func() { s.Close() })
			return s
		},
	}
}

// A reply is lost after the job was stored. Enqueueing the same request again
// finds that out.
func ExampleWrap() {
	store := memory.New(nil)
	defer store.Close()
	s := storagetest.Wrap(store, func(c storagetest.Call) storagetest.Fault {
		if c.Method == "Enqueue" && c.Nth == 1 {
			return storagetest.Fault{After: true}
		}
		return storagetest.Fault{}
	})
	reqs := []*pawl.Request{storagetest.Complete(pawl.Request{Kind: "welcome"})}
	_, err := s.Enqueue(context.Background(), reqs)
	fmt.Println(errors.Is(err, storagetest.ErrFault))
	receipts, err := s.Enqueue(context.Background(), reqs)
	fmt.Println(receipts[0].Status, err)
	// Output:
	// true
	// exists <nil>
}
