package storagetest

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

const benchPayload = `{"user":123456789,"template":"welcome","locale":"en","trace":"0123456789abcdef","attempt":0,"ok":1}`

// Bench measures the storage of h by the time of the machine, in jobs per
// second: enqueueing, whole lives of jobs, and claims beside a million jobs
// that are not to be claimed (-short: beside 50,000), with the same claim on an
// otherwise empty storage as the baseline.
func Bench(b *testing.B, h Harness) {
	b.Run("Enqueue1", func(b *testing.B) { benchEnqueue(b, h, 1) })
	b.Run("EnqueueParallel64", func(b *testing.B) { benchEnqueueParallel(b, h, 64) })
	b.Run("EnqueueBulk1000", func(b *testing.B) { benchEnqueue(b, h, 1000) })
	b.Run("Batch100", func(b *testing.B) { benchBatch(b, h, 100) })
	if traitsOf(b, h).cycles {
		b.Run("DrainCycle100", func(b *testing.B) { benchDrain(b, h, 100) })
	}
	n := 1_000_000
	if testing.Short() {
		n = 50_000
	}
	b.Run("Claim/beside=nothing", func(b *testing.B) { benchClaim(b, h, 0, nil) })
	b.Run(fmt.Sprintf("Claim/beside=%dscheduled", n), func(b *testing.B) { benchClaim(b, h, n, fillScheduled) })
	b.Run(fmt.Sprintf("Claim/beside=%dcompleted", n), func(b *testing.B) { benchClaim(b, h, n, fillCompleted) })
	if h.Reopen != nil {
		b.Run("OpenLarge", func(b *testing.B) { benchOpen(b, h, n/10) })
	}
}

func benchRequests(n int) []*pawl.Request {
	reqs := make([]*pawl.Request, n)
	for i := range reqs {
		reqs[i] = Complete(pawl.Request{Queue: queueA, Payload: []byte(benchPayload)})
	}
	return reqs
}

func perSecond(b *testing.B, jobs int) {
	b.Helper()
	b.ReportMetric(float64(jobs)/b.Elapsed().Seconds(), "jobs/s")
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func mustEnqueue(b *testing.B, s pawl.Storage, reqs []*pawl.Request) {
	b.Helper()
	_, err := s.Enqueue(context.Background(), reqs)
	must(b, err)
}

func benchEnqueue(b *testing.B, h Harness, batch int) {
	s := h.Open(b, time.Now)
	for b.Loop() {
		b.StopTimer()
		reqs := benchRequests(batch)
		b.StartTimer()
		mustEnqueue(b, s, reqs)
	}
	perSecond(b, b.N*batch)
}

func benchEnqueueParallel(b *testing.B, h Harness, callers int) {
	s := h.Open(b, time.Now)
	b.SetParallelism(max(1, callers/runtime.GOMAXPROCS(0)))
	var failed atomic.Pointer[error]
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Enqueue(context.Background(), benchRequests(1)); err != nil {
				failed.Store(&err)
				return
			}
		}
	})
	if err := failed.Load(); err != nil {
		b.Fatal(*err)
	}
	perSecond(b, b.N)
}

// benchBatch measures whole lives: enqueue, claim and ack, in batches.
func benchBatch(b *testing.B, h Harness, batch int) {
	s := h.Open(b, time.Now)
	for b.Loop() {
		b.StopTimer()
		reqs := benchRequests(batch)
		b.StartTimer()
		mustEnqueue(b, s, reqs)
		c, err := s.Claim(context.Background(), asking(queueA, batch))
		must(b, err)
		if len(c.Jobs) != batch {
			b.Fatalf("claimed %d jobs, want %d", len(c.Jobs), batch)
		}
		_, err = s.Settle(context.Background(), acks(c.Jobs))
		must(b, err)
	}
	perSecond(b, b.N*batch)
}

func acks(jobs []*pawl.Job) []pawl.Outcome {
	outcomes := make([]pawl.Outcome, len(jobs))
	for i, j := range jobs {
		outcomes[i] = pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack}
	}
	return outcomes
}

// benchDrain measures claim and ack in one round trip, over jobs that are there
// already.
func benchDrain(b *testing.B, h Harness, batch int) {
	s := h.Open(b, time.Now)
	cycler, _ := pawl.Find[pawl.Cycler](s)
	var outcomes []pawl.Outcome
	there := 0
	for b.Loop() {
		if there == 0 {
			b.StopTimer()
			mustEnqueue(b, s, benchRequests(100*batch))
			there = 100 * batch
			b.StartTimer()
		}
		_, c, err := cycler.Cycle(context.Background(), outcomes, asking(queueA, batch))
		must(b, err)
		if len(c.Jobs) != batch {
			b.Fatalf("claimed %d jobs, want %d", len(c.Jobs), batch)
		}
		there -= batch
		outcomes = acks(c.Jobs)
	}
	perSecond(b, b.N*batch)
}

// benchClaim measures a claim and ack of one job beside n others.
func benchClaim(b *testing.B, h Harness, n int, fill func(*testing.B, pawl.Storage, int)) {
	s := h.Open(b, time.Now)
	if fill != nil {
		fill(b, s, n)
	}
	there := 0
	for b.Loop() {
		if there == 0 {
			b.StopTimer()
			mustEnqueue(b, s, benchRequests(1000))
			there = 1000
			b.StartTimer()
		}
		c, err := s.Claim(context.Background(), asking(queueA, 1))
		must(b, err)
		if len(c.Jobs) != 1 {
			b.Fatalf("claimed %d jobs, want 1", len(c.Jobs))
		}
		there--
		_, err = s.Settle(context.Background(), acks(c.Jobs))
		must(b, err)
	}
	perSecond(b, b.N)
}

// fillScheduled stores n jobs for later that are more urgent than those that
// are claimed.
func fillScheduled(b *testing.B, s pawl.Storage, n int) {
	b.Helper()
	for done := 0; done < n; done += pawl.MaxStep {
		reqs := benchRequests(pawl.MaxStep)
		for i, q := range reqs {
			q.Priority, q.Delay = -1, 24*time.Hour+time.Duration(done+i)*time.Millisecond
		}
		mustEnqueue(b, s, reqs)
	}
}

func fillCompleted(b *testing.B, s pawl.Storage, n int) {
	b.Helper()
	for done := 0; done < n; done += pawl.MaxStep {
		mustEnqueue(b, s, benchRequests(pawl.MaxStep))
		c, err := s.Claim(context.Background(), asking(queueA, pawl.MaxStep))
		must(b, err)
		_, err = s.Settle(context.Background(), acks(c.Jobs))
		must(b, err)
	}
}

// benchOpen measures how long a handle takes to open on n jobs of 10 KB.
func benchOpen(b *testing.B, h Harness, n int) {
	s := h.Open(b, time.Now)
	payload := make([]byte, 10_000)
	for done := 0; done < n; done += 100 {
		reqs := benchRequests(100)
		for _, q := range reqs {
			q.Payload = payload
		}
		mustEnqueue(b, s, reqs)
	}
	b.ResetTimer()
	for b.Loop() {
		scoped(b, func(t testing.TB) {
			if _, err := h.Reopen(t, s, time.Now).Count(context.Background(), queueA); err != nil {
				t.Fatal(err)
			}
			b.StopTimer() // not the closing
		})
		b.StartTimer()
	}
}
