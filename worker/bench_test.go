package worker_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/worker"
)

// The benchmarks report jobs/s from the start of a pool until all jobs, which
// were enqueued before, are acked. Their handlers do nothing. SQLite syncs
// every commit. A run of some seconds says more than b.N jobs of the default:
//
//	go test -bench . -benchtime 200000x ./worker

func openMemory(testing.TB) pawl.Storage { return memory.New(nil) }

func openSQLite(tb testing.TB) pawl.Storage {
	s, err := sqlite.Open(context.Background(), filepath.Join(tb.TempDir(), "jobs.db"), nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

var engines = []struct {
	name string
	open func(testing.TB) pawl.Storage
}{{"memory", openMemory}, {"sqlite", openSQLite}}

func BenchmarkPool(b *testing.B) {
	for _, e := range engines {
		for _, slots := range []int{10, 100} {
			b.Run(fmt.Sprintf("%s/slots=%d", e.name, slots), func(b *testing.B) {
				benchmarkPool(b, pawl.New(e.open(b), nil), &worker.Options{Concurrency: slots})
			})
		}
	}
}

// BenchmarkWeights is BenchmarkPool on memory with jobs in many queues that
// share slots by weight.
func BenchmarkWeights(b *testing.B) {
	for _, n := range []int{1, 3, 100, 1000} {
		b.Run(fmt.Sprintf("queues=%d", n), func(b *testing.B) {
			q := pawl.New(openMemory(b), nil)
			queues := make([]worker.Queue, n)
			for i := range queues {
				queues[i] = worker.Queue{Name: fmt.Sprint("q", i), Weight: 1 + i%7}
			}
			var ran atomic.Int64
			all := make(chan struct{})
			h := worker.Func(func(context.Context, *pawl.Job) error {
				if ran.Add(1) == int64(b.N) {
					close(all)
				}
				return nil
			})
			for jobs := range slices.Chunk(make([]*pawl.Request, b.N), pawl.MaxBatch) {
				for i := range jobs {
					jobs[i] = &pawl.Request{Queue: queues[i%n].Name, Kind: "k", Retention: pawl.DeleteNow}
				}
				if _, err := q.EnqueueMany(b.Context(), jobs); err != nil {
					b.Fatal(err)
				}
			}
			p := worker.New(q, h, &worker.Options{Concurrency: 100, Queues: queues})
			b.ResetTimer()
			run(b, p, func() { <-all })
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
			b.ReportMetric(p.Stats().ClaimBatch(), "jobs/claim")
		})
	}
}

// BenchmarkSubscriber is BenchmarkPool on memory beside one subscription to all
// events, two a job, of which the subscriber reads none, a thousand a second at
// most, or all. On a busy machine the CPU time tells more than the rate.
func BenchmarkSubscriber(b *testing.B) {
	read := func(pause time.Duration) func(context.Context, *worker.Subscription) {
		return func(ctx context.Context, sub *worker.Subscription) {
			for {
				if _, err := sub.Next(ctx); err != nil {
					return
				}
				if pause > 0 {
					time.Sleep(pause)
				}
			}
		}
	}
	for _, c := range []struct {
		name string
		read func(context.Context, *worker.Subscription)
	}{{"nobody", nil}, {"blocked", func(context.Context, *worker.Subscription) {}}, {"slow", read(time.Millisecond)}, {"fast", read(0)}} {
		b.Run(c.name, func(b *testing.B) {
			var events worker.Events
			if c.read != nil {
				ctx, stop := context.WithCancel(context.Background())
				defer stop()
				sub := events.Subscribe(nil)
				defer sub.Close()
				go c.read(ctx, sub)
			}
			benchmarkPool(b, pawl.New(memory.New(nil), nil), &worker.Options{Concurrency: 10, Events: &events})
		})
	}
}

func benchmarkPool(b *testing.B, q *pawl.Queue, o *worker.Options) {
	enqueue(b, q, b.N)
	var n atomic.Int64
	all := make(chan struct{})
	h := worker.Func(func(context.Context, *pawl.Job) error {
		if n.Add(1) == int64(b.N) {
			close(all)
		}
		return nil
	})
	p := worker.New(q, h, o)
	b.ResetTimer()
	before := cpuTime(b)
	run(b, p, func() { <-all })
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/job")
	s := p.Stats()
	if s.Completed != int64(b.N) {
		b.Errorf("%d of %d jobs completed: %+v", s.Completed, b.N, s)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
	b.ReportMetric(s.ClaimBatch(), "jobs/claim")
	b.ReportMetric(s.SettleBatch(), "jobs/settle")
}

// run runs the pool while f does.
func run(tb testing.TB, p *worker.Pool, f func()) {
	tb.Helper()
	done := make(chan error, 1)
	go func() { done <- p.Run(context.Background()) }()
	f()
	if err := p.Stop(context.Background()); err != nil {
		tb.Error(err)
	}
	if err := <-done; err != nil {
		tb.Error(err)
	}
}

func enqueue(tb testing.TB, q *pawl.Queue, n int) {
	tb.Helper()
	for n > 0 {
		reqs := make([]*pawl.Request, min(n, pawl.MaxBatch))
		for i := range reqs {
			reqs[i] = &pawl.Request{Kind: "noop", Payload: []byte(`{"user":7}`), Retention: pawl.DeleteNow}
		}
		if _, err := q.EnqueueMany(context.Background(), reqs); err != nil {
			tb.Fatal(err)
		}
		n -= len(reqs)
	}
}

// BenchmarkLatency reports the time from Enqueue's call to the handler's in an
// idle pool of the same process. With SQLite that holds two commits.
func BenchmarkLatency(b *testing.B) {
	for _, e := range engines {
		b.Run(e.name, func(b *testing.B) {
			started := make(chan time.Time, 1)
			h := worker.Func(func(context.Context, *pawl.Job) error {
				started <- time.Now()
				return nil
			})
			q := pawl.New(e.open(b), nil)
			times := make([]time.Duration, 0, b.N)
			run(b, worker.New(q, h, nil), func() {
				for b.Loop() {
					began := time.Now()
					enqueue(b, q, 1)
					times = append(times, (<-started).Sub(began))
				}
			})
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
		})
	}
}

// BenchmarkLatencyAcrossProcesses reports the time from Enqueue's call in this
// process to the handler's in an idle pool of another, on one SQLite file. The
// pause before each job lets the other process come to rest:
//
//	go test -bench AcrossProcesses -benchtime 30x ./worker
func BenchmarkLatencyAcrossProcesses(b *testing.B) {
	file := filepath.Join(b.TempDir(), "jobs.db")
	s, err := sqlite.Open(b.Context(), file, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	said, stop := process(b, "latency", file)
	defer stop()
	q := pawl.New(s, nil)
	times := make([]time.Duration, 0, b.N)
	for b.Loop() {
		time.Sleep(time.Second + rand.N(20*time.Millisecond)) // the pause
		now := strconv.FormatInt(time.Now().UnixNano(), 10)
		if _, err := q.Enqueue(b.Context(), &pawl.Request{Kind: "noop", Payload: []byte(now)}); err != nil {
			b.Fatal(err)
		}
		if !said.Scan() {
			b.Fatal("the other process has ended")
		}
		d, err := time.ParseDuration(said.Text())
		if err != nil {
			b.Fatal(err)
		}
		times = append(times, d)
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
}

// process starts this binary again in a role.
func process(b *testing.B, role, file string) (said *bufio.Scanner, stop func()) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRole+"="+role, envFile+"="+file)
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	return bufio.NewScanner(out), func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	}
}

// tellLatency prints how long ago its payload says that it was enqueued.
func tellLatency(_ context.Context, j *pawl.Job) error {
	began, err := strconv.ParseInt(string(j.Payload), 10, 64)
	if err != nil {
		return err
	}
	_, err = fmt.Println(time.Since(time.Unix(0, began)))
	return err
}

// BenchmarkIdle reports what share of a core a pool with four empty queues
// takes, in percent, each iteration being a second:
//
//	go test -bench Idle -benchtime 10x ./worker
func BenchmarkIdle(b *testing.B) {
	for _, e := range engines {
		b.Run(e.name, func(b *testing.B) {
			queues := []worker.Queue{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}}
			h := worker.Func(func(context.Context, *pawl.Job) error { return nil })
			run(b, worker.New(pawl.New(e.open(b), nil), h, &worker.Options{Queues: queues}), func() {
				before := cpuTime(b)
				for b.Loop() {
					time.Sleep(time.Second) // what is measured is the time in which nothing happens
				}
				used := cpuTime(b) - before
				b.ReportMetric(100*used.Seconds()/b.Elapsed().Seconds(), "%core")
			})
		})
	}
}

func cpuTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
