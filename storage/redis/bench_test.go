package redis_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
	"github.com/pawlq/pawl/storage/storagetest"
)

func BenchmarkStorage(b *testing.B) {
	storagetest.Bench(b, harness(connect(b, testserver.Redis(b))))
}

// openBench opens a Store on a server of its own that syncs every second.
func openBench(b *testing.B) (*redis.Store, *client.Client) {
	b.Helper()
	server := testserver.NewRedis(b, nil)
	c := server.Client(&client.Options{PoolSize: 128})
	b.Cleanup(func() { c.Close() })
	return open(b, c, nil), c
}

const benchPayload = `{"user":123456789,"template":"welcome","locale":"en","trace":"0123456789abcdef","attempt":0,"ok":1}`

func benchRequests(n int, retention time.Duration) []*pawl.Request {
	reqs := make([]*pawl.Request, n)
	for i := range reqs {
		reqs[i] = request(pawl.Request{Payload: []byte(benchPayload), Retention: retention, Timeout: time.Minute})
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

// A meter tells what jobs cost: time, and the server's own share of it, which is
// what bounds a busy server and does not depend on what else the machine does.
type meter struct {
	b   *testing.B
	c   *client.Client
	cpu float64
}

func startMeter(b *testing.B, c *client.Client) *meter {
	m := &meter{b, c, serverTime(b, c)}
	b.ResetTimer()
	return m
}

func (m *meter) stop(jobs int) {
	m.b.StopTimer()
	m.b.ReportMetric(float64(jobs)/m.b.Elapsed().Seconds(), "jobs/s")
	m.b.ReportMetric(1e6*(serverTime(m.b, m.c)-m.cpu)/float64(jobs), "server-µs/job")
}

// serverTime is the processor time that the server has used, in seconds.
func serverTime(b *testing.B, c *client.Client) float64 {
	return info(b, c, "cpu", "used_cpu_user") + info(b, c, "cpu", "used_cpu_sys")
}

func info(b *testing.B, c *client.Client, section, name string) (v float64) {
	b.Helper()
	text, err := c.Info(b.Context(), section).Result()
	if err != nil {
		b.Fatal(err)
	}
	_, text, _ = strings.Cut(text, "\n"+name+":")
	if _, err := fmt.Sscan(text, &v); err != nil {
		b.Fatal(err)
	}
	return v
}

// BenchmarkEnqueue is by callers that enqueue one job each at a time.
func BenchmarkEnqueue(b *testing.B) {
	for _, callers := range []int{1, 16, 100} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s, c := openBench(b)
			var next atomic.Int64
			var wg sync.WaitGroup
			m := startMeter(b, c)
			for range callers {
				wg.Go(func() {
					for next.Add(1) <= int64(b.N) {
						if _, err := s.Enqueue(b.Context(), benchRequests(1, time.Hour)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			m.stop(b.N)
		})
	}
}

// BenchmarkBulk enqueues batches, and tells what a waiting job takes.
func BenchmarkBulk(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("batch=%d", n), func(b *testing.B) {
			s, c := openBench(b)
			before := info(b, c, "memory", "used_memory_dataset")
			m := startMeter(b, c)
			done := 0
			for ; done < b.N; done += n {
				if _, err := s.Enqueue(b.Context(), benchRequests(n, time.Hour)); err != nil {
					b.Fatal(err)
				}
			}
			m.stop(done)
			b.ReportMetric(float64(info(b, c, "memory", "used_memory_dataset")-before)/float64(done), "B/job")
		})
	}
}

// BenchmarkCycle settles and claims in one step, as a pool does.
func BenchmarkCycle(b *testing.B) {
	for _, retention := range []time.Duration{pawl.DeleteNow, time.Hour} {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("keep=%v/batch=%d", retention > 0, n), func(b *testing.B) {
				s, c := openBench(b)
				fillBench(b, s, b.N, retention)
				m := startMeter(b, c)
				drainBench(b, s, n, b.N)
				m.stop(b.N)
			})
		}
	}
}

func drainBench(b *testing.B, s *redis.Store, n, jobs int) {
	b.Helper()
	var outcomes []pawl.Outcome
	for done := 0; done < jobs; done += len(outcomes) {
		lost, c, err := s.Cycle(b.Context(), outcomes, asking(n))
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
