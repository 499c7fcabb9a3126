package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
)

// openBench opens a Store on a server of its own whose commits reach the disk.
func openBench(b *testing.B) *postgres.Store {
	b.Helper()
	server := testserver.NewPostgres(b, &testserver.PostgresOptions{
		Fsync: true, MaxConnections: 100, Settings: map[string]string{"shared_buffers": "1GB"},
	})
	return open(b, openPool(b, server, 64), nil)
}

const benchPayload = `{"user":123456789,"template":"welcome","locale":"en","trace":"0123456789abcdef","attempt":0,"ok":1}`

func benchRequests(n int, retention time.Duration) []*pawl.Request {
	reqs := make([]*pawl.Request, n)
	for i := range reqs {
		reqs[i] = &pawl.Request{
			ID: uuid.Must(uuid.NewV7()), Queue: "default", Kind: "bench", Payload: []byte(benchPayload),
			MaxAttempts: 25, MaxRescues: 5, MaxDepth: pawl.Unlimited, Timeout: time.Minute, Retention: retention,
		}
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
	s := openBench(b)
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
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
				before := walBytes(b, s)
				b.ResetTimer()
				drain(b, s, n, b.N)
				perJob(b, b.N)
				b.ReportMetric(float64(walBytes(b, s)-before)/float64(b.N), "walB/job")
			})
		}
	}
}

func walBytes(b *testing.B, s *postgres.Store) (n int64) {
	b.Helper()
	err := s.Pool().QueryRow(b.Context(), "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").Scan(&n)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

func drain(b *testing.B, s *postgres.Store, n, jobs int) {
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
