package memory_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
)

// maker makes requests in batches. Its IDs grow, as those of version 7 do.
type maker struct {
	reqs     []pawl.Request
	pointers []*pawl.Request
	claiming time.Duration // spent in Claim
}

var nextID atomic.Uint64

func newMaker(batch int, retention time.Duration) *maker {
	m := &maker{reqs: make([]pawl.Request, batch), pointers: make([]*pawl.Request, batch)}
	payload := make([]byte, 100)
	for i := range m.reqs {
		m.reqs[i] = pawl.Request{
			Queue: "bench", Kind: "bench", Payload: payload,
			MaxAttempts: 25, MaxRescues: 5, MaxDepth: pawl.Unlimited, Retention: retention,
		}
		m.pointers[i] = &m.reqs[i]
	}
	return m
}

// next returns the batch with new IDs.
func (m *maker) next() []*pawl.Request {
	for i := range m.reqs {
		id := nextID.Add(1)
		binary.BigEndian.PutUint64(m.reqs[i].ID[:], id>>8)
		binary.BigEndian.PutUint64(m.reqs[i].ID[8:], id*0x9e3779b97f4a7c15)
	}
	return m.pointers
}

// cycle takes one batch through enqueue, claim and ack.
func cycle(tb testing.TB, s *memory.Store, m *maker, outcomes []pawl.Outcome) {
	ctx := context.Background()
	if _, err := s.Enqueue(ctx, m.next()); err != nil {
		tb.Fatal(err)
	}
	begin := time.Now()
	c, err := s.Claim(ctx, pawl.ClaimSpec{
		Queues: []pawl.QueueAsk{{Queue: "bench", Max: len(outcomes)}},
		Max:    len(outcomes), Lease: time.Minute, Worker: "w", Token: int64(nextID.Load()),
	})
	m.claiming += time.Since(begin)
	if err != nil {
		tb.Fatal(err)
	}
	if len(c.Jobs) != len(outcomes) {
		tb.Fatalf("claimed %d jobs, want %d", len(c.Jobs), len(outcomes))
	}
	for i, j := range c.Jobs {
		outcomes[i] = pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack}
	}
	if lost, err := s.Settle(ctx, outcomes); err != nil || len(lost) > 0 {
		tb.Fatal(lost, err)
	}
}

// BenchmarkBatch takes jobs through enqueue, claim and ack in batches.
func BenchmarkBatch(b *testing.B) {
	for _, bench := range []struct {
		batch     int
		retention time.Duration
	}{{1, pawl.DeleteNow}, {10, pawl.DeleteNow}, {100, pawl.DeleteNow}, {1000, pawl.DeleteNow}, {100, time.Hour}} {
		name := fmt.Sprintf("batch=%d/keep=%v", bench.batch, bench.retention > 0)
		b.Run(name, func(b *testing.B) {
			s := memory.New(nil)
			defer s.Close()
			m := newMaker(bench.batch, bench.retention)
			outcomes := make([]pawl.Outcome, bench.batch)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				cycle(b, s, m, outcomes)
				n += bench.batch
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}

// BenchmarkParallel is BenchmarkBatch on one store from many goroutines.
func BenchmarkParallel(b *testing.B) {
	const batch = 16
	s := memory.New(nil)
	defer s.Close()
	var n atomic.Int64
	b.SetParallelism(4)
	b.RunParallel(func(pb *testing.PB) {
		m := newMaker(batch, pawl.DeleteNow)
		outcomes := make([]pawl.Outcome, batch)
		for pb.Next() {
			cycle(b, s, m, outcomes)
			n.Add(batch)
		}
	})
	b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "jobs/s")
}

// BenchmarkStanding is BenchmarkBatch at 100 beside a million other jobs.
func BenchmarkStanding(b *testing.B) {
	const million = 1_000_000
	for _, state := range []string{"none", "scheduled", "completed", "ready"} {
		b.Run(state, func(b *testing.B) {
			s := memory.New(nil)
			defer s.Close()
			before := heap()
			if state != "none" {
				fill(b, s, state, million)
			}
			// The payloads are 100 bytes, in a size class of 112.
			perJob := (float64(heap()) - float64(before)) / million
			m := newMaker(100, pawl.DeleteNow)
			outcomes := make([]pawl.Outcome, 100)
			n := 0
			for b.Loop() {
				cycle(b, s, m, outcomes)
				n += 100
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "jobs/s")
			b.ReportMetric(float64(m.claiming.Nanoseconds())/float64(n), "claim-ns/job")
			b.ReportMetric(perJob, "B/job")
		})
	}
}

// fill puts n jobs of a state into s.
func fill(tb testing.TB, s *memory.Store, state string, n int) {
	m := newMaker(100, time.Hour)
	outcomes := make([]pawl.Outcome, 100)
	for i := 0; i < n; i += 100 {
		if state == "completed" {
			cycle(tb, s, m, outcomes)
			continue
		}
		if state == "scheduled" {
			for j := range m.reqs {
				m.reqs[j].Delay = time.Hour + time.Duration((i+j)*7919%n)*time.Millisecond
			}
		}
		if _, err := s.Enqueue(context.Background(), m.next()); err != nil {
			tb.Fatal(err)
		}
	}
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
