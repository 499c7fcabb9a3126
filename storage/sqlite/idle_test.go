//go:build unix

package sqlite_test

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

// BenchmarkIdle is what a Watch costs while nothing happens, for a fixed time
// whatever b.N is.
func BenchmarkIdle(b *testing.B) {
	const settle, measured = 2 * time.Second, 5 * time.Second
	s := openBench(b, sqlite.Full)
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Watch(ctx, func(pawl.Event) {}) })
	<-time.After(settle)
	before := processorTime(b)
	<-time.After(measured)
	used := processorTime(b) - before
	cancel()
	wg.Wait()
	b.ReportMetric(100*used.Seconds()/measured.Seconds(), "%core")
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
