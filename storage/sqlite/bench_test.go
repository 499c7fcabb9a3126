package sqlite_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

func openBench(b *testing.B, sync sqlite.Synchronous) *sqlite.Store {
	b.Helper()
	s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "jobs.db"), &sqlite.Options{Synchronous: sync})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

var benchPayload = make([]byte, 100)

func benchRequest(retention time.Duration) *pawl.Request {
	return &pawl.Request{
		ID: uuid.Must(uuid.NewV7()), Queue: "default", Kind: "bench", Payload: benchPayload,
		MaxAttempts: 25, MaxRescues: 5, Timeout: time.Minute, Retention: retention,
	}
}

func benchRequests(n int, retention time.Duration) []*pawl.Request {
	reqs := make([]*pawl.Request, n)
	for i := range reqs {
		reqs[i] = benchRequest(retention)
	}
	return reqs
}

func fillBench(b *testing.B, s pawl.Storage, n int, retention time.Duration) {
	b.Helper()
	for ; n > 0; n -= 1000 {
		if _, err := s.Enqueue(b.Context(), benchRequests(min(n, 1000), retention)); err != nil {
			b.Fatal(err)
		}
	}
}

func perJob(b *testing.B, jobs int) {
	b.ReportMetric(float64(jobs)/b.Elapsed().Seconds(), "jobs/s")
}

// BenchmarkEnqueue is by callers that enqueue one job each at a time.
func BenchmarkEnqueue(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := openBench(b, sqlite.Full)
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for next.Add(1) <= int64(b.N) {
						if _, err := s.Enqueue(context.Background(), benchRequests(1, time.Hour)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			perJob(b, b.N)
		})
	}
}

// BenchmarkBulk enqueues batches of 1,000.
func BenchmarkBulk(b *testing.B) {
	s := openBench(b, sqlite.Full)
	b.ResetTimer()
	n := 0
	for ; n < b.N; n += 1000 {
		if _, err := s.Enqueue(b.Context(), benchRequests(1000, time.Hour)); err != nil {
			b.Fatal(err)
		}
	}
	perJob(b, n)
}

// BenchmarkOpen opens a file of 100,000 jobs of 10 KB, some 1 GB, and claims.
func BenchmarkOpen(b *testing.B) {
	s := openBench(b, sqlite.Off)
	for range 100 {
		reqs := benchRequests(1000, time.Hour)
		for _, r := range reqs {
			r.Payload = make([]byte, 10<<10)
		}
		if _, err := s.Enqueue(b.Context(), reqs); err != nil {
			b.Fatal(err)
		}
	}
	path := fileOf(b, s)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var most uint64
	for b.Loop() {
		again := openAt(b, path, &sqlite.Options{})
		if c, err := again.Claim(b.Context(), askBench(10)); err != nil || len(c.Jobs) != 10 {
			b.Fatal(err, len(c.Jobs))
		}
		runtime.ReadMemStats(&after)
		most = max(most, after.Sys-min(after.Sys, before.Sys), after.HeapAlloc-min(after.HeapAlloc, before.HeapAlloc))
	}
	b.ReportMetric(float64(most)/(1<<20), "MB")
}

// BenchmarkCycle settles and claims in one step, as a pool does.
func BenchmarkCycle(b *testing.B) {
	for _, retention := range []time.Duration{pawl.DeleteNow, time.Hour} {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("keep=%v/batch=%d", retention > 0, n), func(b *testing.B) {
				s := openBench(b, sqlite.Full)
				fillBench(b, s, b.N, retention)
				b.ResetTimer()
				drain(b, s, n, b.N)
				perJob(b, b.N)
			})
		}
	}
}

func drain(b *testing.B, s *sqlite.Store, n, jobs int) {
	b.Helper()
	var outcomes []pawl.Outcome
	for done := 0; done < jobs; done += len(outcomes) {
		lost, c, err := s.Cycle(b.Context(), outcomes, askBench(n))
		if err != nil || len(lost) > 0 || len(c.Jobs) == 0 {
			b.Fatal(err, lost, len(c.Jobs), done)
		}
		outcomes = outcomes[:0]
		for _, j := range c.Jobs {
			outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
		}
	}
	if _, err := s.Settle(b.Context(), outcomes); err != nil {
		b.Fatal(err)
	}
}

func askBench(n int) pawl.ClaimSpec {
	return pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: "default", Max: n}}, Max: n, Lease: time.Minute, Worker: "bench"}
}

// BenchmarkCPU is BenchmarkCycle without syncs, for profiles.
func BenchmarkCPU(b *testing.B) {
	for _, retention := range []time.Duration{pawl.DeleteNow, time.Hour} {
		b.Run(fmt.Sprintf("keep=%v", retention > 0), func(b *testing.B) {
			s := openBench(b, sqlite.Off)
			fillBench(b, s, b.N, retention)
			b.ResetTimer()
			drain(b, s, 100, b.N)
			perJob(b, b.N)
		})
	}
}
