package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

// BenchmarkRaw is the limit that the other benchmarks are to be seen beside:
// the same statements on the same tables, without calls, groups and records.
func BenchmarkRaw(b *testing.B) {
	b.Run("bulk", func(b *testing.B) {
		s, run := openRaw(b)
		b.ResetTimer()
		n := 0
		for ; n < b.N; n += 1000 {
			rawInsert(b, s, run, 1000)
		}
		b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "jobs/s")
	})
	b.Run("claim and ack by 100", func(b *testing.B) {
		s, run := openRaw(b)
		for n := 0; n < b.N+100; n += 1000 {
			rawInsert(b, s, run, 1000)
		}
		b.ResetTimer()
		for n := 0; n < b.N; n += 100 {
			rawCycle(b, s, run, int64(n+1))
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
	})
}

func openRaw(b *testing.B) (*Store, *prepared) {
	b.Helper()
	s, err := Open(b.Context(), filepath.Join(b.TempDir(), "jobs.db"), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	conn, err := s.db.Conn(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	return s, newPrepared(conn)
}

func rawExec(b *testing.B, run *prepared, s *statement, args ...any) {
	b.Helper()
	if _, err := run.exec(b.Context(), s, args...); err != nil {
		b.Fatal(err)
	}
}

func rawInsert(b *testing.B, s *Store, run *prepared, n int) {
	b.Helper()
	payload := make([]byte, 100)
	now := time.Now().UnixMicro()
	rawExec(b, run, begin)
	for ; n > 0; n -= insertSizes[0] {
		args := []any{"default", "raw", 2, 0, now, now, 0, 0, 0, 3_600_000_000, 25, 5, 0, now, "", 0, 0, 0, 0}
		for range insertSizes[0] {
			id := uuid.Must(uuid.NewV7())
			args = append(args, id[:], nil, payload)
		}
		rawExec(b, run, s.q.insert[0], args...)
	}
	rawExec(b, run, commit)
}

func rawCycle(b *testing.B, s *Store, run *prepared, fence int64) {
	b.Helper()
	now := time.Now().UnixMicro()
	rawExec(b, run, begin)
	rows, err := run.query(b.Context(), s.q.claim, now, 60_000_000, fence, "raw", 0, "default", 100)
	if err != nil {
		b.Fatal(err)
	}
	var all []record
	for rows.Next() {
		var r record
		if _, err := r.scanClaimed(rows); err != nil {
			b.Fatal(err)
		}
		all = append(all, r)
	}
	if err := rows.Close(); err != nil || len(all) != 100 {
		b.Fatal(err, len(all))
	}
	for i := range all {
		rawExec(b, run, s.q.ackKeep, now, all[i].seq, fence, all[i].id[:], nil)
	}
	rawExec(b, run, commit)
}

// BenchmarkClaimBeside claims and releases while a million other jobs are kept.
func BenchmarkClaimBeside(b *testing.B) {
	for _, kept := range []string{"nothing", "scheduled", "completed"} {
		b.Run(kept, func(b *testing.B) {
			s, run := openRaw(b)
			if kept != "nothing" {
				fillRaw(b, s, run, kept)
			}
			rawInsert(b, s, run, 1000)
			spec := pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: "default", Max: 100}}, Max: 100, Lease: time.Minute}
			var outcomes []pawl.Outcome
			b.ResetTimer()
			for range b.N {
				_, c, err := s.Cycle(b.Context(), outcomes, spec)
				if err != nil || len(c.Jobs) != 100 {
					b.Fatal(err, len(c.Jobs))
				}
				outcomes = outcomes[:0]
				for _, j := range c.Jobs {
					outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Release})
				}
			}
		})
	}
}

// fillRaw adds a million jobs that can't be claimed.
func fillRaw(b *testing.B, s *Store, run *prepared, state string) {
	b.Helper()
	for range 1000 {
		rawInsert(b, s, run, 1000)
	}
	change := "UPDATE pawl_job SET state = 1, rank = 0, at = at + 86400000000, run_at = at, priority = -5"
	if state == "completed" {
		change = "UPDATE pawl_job SET state = 4, rank = 0, purge_at = at + 86400000000"
	}
	rawExec(b, run, &statement{change})
}
