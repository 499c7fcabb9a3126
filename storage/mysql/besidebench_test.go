package mysql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// BenchmarkClaimBeside claims batches of 100, alone in the tables and beside many
// jobs that are not to be claimed: finished, far in the future, and of a queue
// that is paused.
func BenchmarkClaimBeside(b *testing.B) {
	for _, full := range []bool{false, true} {
		b.Run(fmt.Sprintf("full=%v", full), func(b *testing.B) {
			s := openBench(b)
			if full {
				crowd(b, s.DB().Exec)
				paused := true
				if err := s.Configure(b.Context(), "paused", pawl.QueueSettings{Paused: &paused}); err != nil {
					b.Fatal(err)
				}
			}
			fillBench(b, s, 100*b.N, pawl.DeleteNow)
			ask := spec(100)
			ask.Queues = append(ask.Queues, pawl.QueueAsk{Queue: "paused", Max: 100})
			b.ResetTimer()
			for range b.N {
				if c, err := s.Claim(b.Context(), ask); err != nil || len(c.Jobs) != 100 {
					b.Fatal(len(c.Jobs), err)
				}
			}
		})
	}
}

// crowd inserts a million finished jobs, 200,000 in a hundred years and 50,000
// ready ones of another queue, with MariaDB's table of numbers.
func crowd[R any](b *testing.B, exec func(query string, args ...any) (R, error)) {
	b.Helper()
	for _, c := range []struct{ jobs, queue, state, moment, wake string }{
		{"1000000", "default", "4", "1700000000000000 + n.seq", "4000000000000000"},
		{"200000", "default", "1", "4000000000000000 + n.seq", "4000000000000000 + n.seq"},
		{"50000", "paused", "2", "1700000000000000 + n.seq", "NULL"},
	} {
		_, err := exec(fmt.Sprintf(`INSERT INTO pawl_job (id, queue, kind, state, urgency, moment, wake_at, run_at, priority,
			max_attempts, max_rescues, lease, timeout, retention, created_at, mark, payload)
			SELECT UNHEX(MD5(CONCAT('%s', n.seq))), '%s', 'bench', %s, 0, %s, %s, 1700000000000000, 0, 25, 5, 0, 0, 3600000000,
			1700000000000000, 0, REPEAT('x', 100) FROM seq_1_to_%s AS n`, c.state, c.queue, c.state, c.moment, c.wake, c.jobs))
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRepeat repeats claims of 100 whose replies were lost, while 10,000
// other jobs of the queue are running.
func BenchmarkRepeat(b *testing.B) {
	s := openBench(b)
	fillBench(b, s, 10_100, time.Hour)
	for range 10 {
		claim(b, s, 1000)
	}
	ask := spec(100)
	ask.Token, ask.Repeat = 7, true
	b.ResetTimer()
	for range b.N {
		if c, err := s.Claim(b.Context(), ask); err != nil || len(c.Jobs) != 100 {
			b.Fatal(len(c.Jobs), err)
		}
	}
}
