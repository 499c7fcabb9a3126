package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
)

// BenchmarkWake measures from a commit to its event in another process, 50 times
// a second. Each transaction is held for a while after its enqueue, and overlaps
// with others if that is long.
func BenchmarkWake(b *testing.B) {
	for _, hold := range []time.Duration{-1, 0, 20 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second} {
		name := fmt.Sprintf("hold=%v", hold)
		if hold < 0 {
			name = "enqueue" // without a transaction of the caller's
		}
		b.Run(name, func(b *testing.B) { benchWake(b, hold) })
	}
}

func benchWake(b *testing.B, hold time.Duration) {
	s := openBench(b)
	other := besideBench(b, s)
	w := &wakeTimes{}
	var watching sync.WaitGroup
	ctx, cancel := context.WithCancel(b.Context())
	watching.Go(func() { _ = other.Watch(ctx, w.event) })
	defer watching.Wait()
	defer cancel()
	awaitOther(b, s, w)
	b.ResetTimer()
	var calls sync.WaitGroup
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range b.N {
		<-tick.C
		calls.Go(func() { w.enqueue(b, s, hold) })
	}
	calls.Wait()
	for range 100 { // what was committed last is still to be heard
		if w.open() == 0 {
			break
		}
		<-tick.C
	}
	b.StopTimer()
	slices.Sort(w.times)
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(w.times[len(w.times)*p/100].Microseconds())/1000, fmt.Sprintf("p%d-ms", p))
	}
	b.ReportMetric(0, "ns/op")
}

// besideBench opens a second Store on the tables of s.
func besideBench(b *testing.B, s *postgres.Store) *postgres.Store {
	b.Helper()
	pool, err := pgxpool.NewWithConfig(b.Context(), s.Pool().Config())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return open(b, pool, nil)
}

// awaitOther waits until the other process hears s.
func awaitOther(b *testing.B, s *postgres.Store, w *wakeTimes) {
	b.Helper()
	yes := true
	for !w.hears() {
		if err := s.Configure(b.Context(), "probe", pawl.QueueSettings{Paused: &yes}); err != nil {
			b.Fatal(err)
		}
	}
}

// wakeTimes are how long it took from commits to the events that came next.
type wakeTimes struct {
	mu        sync.Mutex
	heard     bool
	committed []time.Time // and not heard of
	times     []time.Duration
}

func (w *wakeTimes) hears() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heard
}

func (w *wakeTimes) open() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.committed)
}

func (w *wakeTimes) event(e pawl.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Kind == pawl.EventPaused {
		w.heard = true
		return
	}
	for _, at := range w.committed {
		w.times = append(w.times, time.Since(at))
	}
	w.committed = w.committed[:0]
}

// enqueue notes the time just before the commit, so what is measured includes
// that.
func (w *wakeTimes) enqueue(b *testing.B, s *postgres.Store, hold time.Duration) {
	ctx := context.Background()
	if hold < 0 {
		w.note()
		if _, err := s.Enqueue(ctx, benchRequests(1, time.Hour)); err != nil {
			b.Error(err)
		}
		return
	}
	tx, err := s.Pool().Begin(ctx)
	if err != nil {
		b.Error(err)
		return
	}
	if _, err := s.Tx(tx).Enqueue(ctx, benchRequests(1, time.Hour)); err != nil {
		b.Error(err)
	}
	time.Sleep(hold)
	w.note()
	if err := tx.Commit(ctx); err != nil {
		b.Error(err)
	}
}

func (w *wakeTimes) note() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.committed = append(w.committed, time.Now())
}
