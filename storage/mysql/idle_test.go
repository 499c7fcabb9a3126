//go:build unix

package mysql_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
	"github.com/pawlq/pawl/worker"
)

// startBench starts a pool of four queues on a server whose commits wait for the
// disk.
func startBench(b *testing.B, f worker.Func) (*testserver.MariaDBServer, *mysql.Store) {
	b.Helper()
	server := testserver.NewMariaDB(b, &testserver.MariaDBOptions{Fsync: true})
	s := open(b, openDB(b, server, 64, func(c *driver.Config) { c.InterpolateParams = true }), nil)
	o := &worker.Options{Logger: slog.New(slog.DiscardHandler)}
	for _, name := range []string{"default", "a", "b", "c"} {
		o.Queues = append(o.Queues, worker.Queue{Name: name, Concurrency: 10})
	}
	p := worker.New(pawl.New(s, nil), f, o)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(context.Background()); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(func() {
		if err := p.Stop(context.Background()); err != nil {
			b.Error(err)
		}
		wg.Wait()
	})
	return server, s
}

// BenchmarkIdle is what a pool of four queues costs while nothing happens, for a
// fixed time whatever b.N is: in this process, and in the server.
func BenchmarkIdle(b *testing.B) {
	const settle, measured = 5 * time.Second, 15 * time.Second
	server, _ := startBench(b, func(context.Context, *pawl.Job) error { return nil })
	<-time.After(settle)
	here, there := processorTime(b), server.CPU()
	<-time.After(measured)
	b.ReportMetric(100*(processorTime(b)-here).Seconds()/measured.Seconds(), "%core")
	b.ReportMetric(100*(server.CPU()-there).Seconds()/measured.Seconds(), "%core-server")
}

// BenchmarkWake is the time from the call of Enqueue, and from its return, to the
// handler in an idle pool of the same process, 50 times a second.
func BenchmarkWake(b *testing.B) {
	began := make(chan time.Time, 1)
	_, s := startBench(b, func(context.Context, *pawl.Job) error { began <- time.Now(); return nil })
	var fromCall, fromReturn []time.Duration
	every := time.NewTicker(20 * time.Millisecond)
	defer every.Stop()
	b.ResetTimer()
	for range b.N {
		<-every.C
		called := time.Now()
		if _, err := s.Enqueue(b.Context(), benchRequests(1, time.Hour)); err != nil {
			b.Fatal(err)
		}
		returned := time.Now()
		at := <-began
		fromCall, fromReturn = append(fromCall, at.Sub(called)), append(fromReturn, max(0, at.Sub(returned)))
	}
	for name, all := range map[string][]time.Duration{"call": fromCall, "return": fromReturn} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1e3, "p50-ms-from-"+name)
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1e3, "p99-ms-from-"+name)
	}
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
