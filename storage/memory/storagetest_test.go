package memory_test

import (
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/storage/storagetest"
)

func harness() storagetest.Harness {
	return storagetest.Harness{
		Open: func(t testing.TB, clock func() time.Time) pawl.Storage {
			s := memory.New(&memory.Options{Clock: clock})
			t.Cleanup(func() { s.Close() })
			return s
		},
	}
}

func TestStorage(t *testing.T) { storagetest.Run(t, harness()) }

func BenchmarkStorage(b *testing.B) { storagetest.Bench(b, harness()) }
