package mysql_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
)

// openBench opens a Store on a server whose commits wait for the disk.
func openBench(b *testing.B) *mysql.Store {
	b.Helper()
	server := testserver.NewMariaDB(b, &testserver.MariaDBOptions{Fsync: true, MaxConnections: 300})
	db := openDB(b, server, 64, func(c *driver.Config) { c.InterpolateParams = true })
	return open(b, db, nil)
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
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := openBench(b)
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
	s := openBench(b)
	b.ResetTimer()
	n := 0
	for ; n < b.N; n += 1000 {
		if _, err := s.Enqueue(b.Context(), benchRequests(1000, time.Hour)); err != nil {
			b.Fatal(err)
		}
	}
	perJob(b, n)
}

// BenchmarkCycle settles and claims in one step, as a pool does.
func BenchmarkCycle(b *testing.B) {
	for _, retention := range []time.Duration{pawl.DeleteNow, time.Hour} {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("keep=%v/batch=%d", retention > 0, n), func(b *testing.B) {
				s := openBench(b)
				fillBench(b, s, b.N, retention)
				b.ResetTimer()
				drain(b, s, n)
				perJob(b, b.N)
			})
		}
	}
}

// drain cycles until no job is found.
func drain(b *testing.B, s *mysql.Store, n int) {
	var outcomes []pawl.Outcome
	for {
		lost, c, err := s.Cycle(b.Context(), outcomes, spec(n))
		if err != nil || len(lost) > 0 {
			b.Error(err, lost)
			return
		}
		if len(c.Jobs) == 0 {
			return
		}
		outcomes = outcomes[:0]
		for _, j := range c.Jobs {
			outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
		}
	}
}
