package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
)

// watchServer reports how much of the processors the server took for a job, which
// says more than the clock on a machine that others use too, and how many
// deadlocks it saw.
func watchServer(b *testing.B, server *testserver.MariaDBServer, db *sql.DB) (report func()) {
	cpu, locks := server.CPU(), deadlocks(b, db)
	return func() {
		b.ReportMetric(float64((server.CPU()-cpu).Microseconds())/float64(b.N), "server-µs/job")
		b.ReportMetric(float64(deadlocks(b, db)-locks), "deadlocks")
	}
}

func deadlocks(b testing.TB, db *sql.DB) (n int) {
	var name string
	if err := db.QueryRow("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").Scan(&name, &n); err != nil {
		b.Fatal(err)
	}
	return n
}

// A rawDrain takes jobs from the Store's own tables by hand, without a contract.
// It reports whether there were any.
type rawDrain struct {
	name string
	step func(ctx context.Context, db *sql.DB) (bool, error)
}

// BenchmarkRaw drains the tables of a Store by statements alone, by some
// claimers: what a program would write that knows how, and what textbooks show.
func BenchmarkRaw(b *testing.B) {
	for _, claimers := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("claimers=%d", claimers), func(b *testing.B) { benchRaw(b, claimers) })
	}
}

func benchRaw(b *testing.B, claimers int) {
	for _, raw := range []rawDrain{
		{"skip locked, batches of 100", rawBatch}, {"by version, batches of 100", rawVersions}, {"textbook, row by row", rawRows},
	} {
		b.Run(raw.name, func(b *testing.B) {
			server := testserver.NewMariaDB(b, &testserver.MariaDBOptions{Fsync: true})
			db := openDB(b, server, 32, func(c *driver.Config) { c.InterpolateParams = true })
			s := open(b, db, nil)
			fillBench(b, s, b.N, pawl.DeleteNow)
			b.ResetTimer()
			defer watchServer(b, server, db)()
			var wg sync.WaitGroup
			for range claimers {
				wg.Go(func() {
					for more := true; more; {
						var err error
						if more, err = raw.step(b.Context(), db); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			perJob(b, b.N)
			if c := candidates.Swap(0); c > 0 {
				b.ReportMetric(100*float64(races.Swap(0))/float64(c), "%-lost")
			}
		})
	}
}

const ready = " FROM pawl_job FORCE INDEX (place) WHERE queue = 'default' AND state = 2 ORDER BY urgency, moment, seq "

func rawBatch(ctx context.Context, db *sql.DB) (bool, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }()
	seqs, err := seqsOf(tx.QueryContext(ctx, "SELECT seq, payload"+ready+"LIMIT 100 FOR UPDATE SKIP LOCKED"))
	if err != nil || len(seqs) == 0 {
		return false, err
	}
	in := " WHERE seq IN (" + strings.Join(seqs, ",") + ")"
	if _, err := tx.ExecContext(ctx, "UPDATE pawl_job SET state = 3, urgency = 0, wake_at = 1, fence = fence + 1"+in); err != nil {
		return false, err
	}
	if err := tx.Commit(); err != nil {
		return false, err
	}
	_, err = db.ExecContext(ctx, "DELETE FROM pawl_job"+in)
	return true, err
}

// candidates counts those that rawVersions has read, races those that another
// claimer was faster with.
var candidates, races atomic.Int64

// rawVersions reads candidates without a lock, from a random place of a window
// that is wide enough for all claimers, takes those whose version is as it was,
// and reads back which they are if some were lost.
func rawVersions(ctx context.Context, db *sql.DB) (bool, error) {
	seqs, err := seqsOf(db.QueryContext(ctx, fmt.Sprintf("SELECT seq, payload%sLIMIT 100 OFFSET %d", ready, rand.IntN(8)*100)))
	if err == nil && len(seqs) == 0 {
		seqs, err = seqsOf(db.QueryContext(ctx, "SELECT seq, payload"+ready+"LIMIT 100"))
	}
	if err != nil || len(seqs) == 0 {
		return false, err
	}
	token := rand.Int64()
	in := " WHERE seq IN (" + strings.Join(seqs, ",") + ")"
	res, err := db.ExecContext(ctx, fmt.Sprintf(
		"UPDATE pawl_job SET state = 3, urgency = 0, wake_at = 1, fence = 1, token = %d%s AND fence = 0", token, in))
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return false, err
	}
	candidates.Add(int64(len(seqs)))
	races.Add(int64(len(seqs)) - n)
	if int(n) < len(seqs) {
		if seqs, err = seqsOf(db.QueryContext(ctx, fmt.Sprintf("SELECT seq, payload FROM pawl_job%s AND token = %d", in, token))); err != nil {
			return false, err
		}
	}
	if len(seqs) > 0 {
		_, err = db.ExecContext(ctx, "DELETE FROM pawl_job WHERE seq IN ("+strings.Join(seqs, ",")+")")
	}
	return true, err
}

// rawRows reads ten candidates, takes each by its version, and ends each.
func rawRows(ctx context.Context, db *sql.DB) (bool, error) {
	seqs, err := seqsOf(db.QueryContext(ctx, "SELECT seq, payload"+ready+"LIMIT 10"))
	if err != nil || len(seqs) == 0 {
		return false, err
	}
	for _, seq := range seqs {
		res, err := db.ExecContext(ctx, "UPDATE pawl_job SET state = 3, urgency = 0, wake_at = 1, fence = 1 WHERE fence = 0 AND seq = "+seq)
		if err != nil {
			return false, err
		}
		if n, err := res.RowsAffected(); n == 0 || err != nil {
			continue
		}
		if _, err := db.ExecContext(ctx, "UPDATE pawl_job SET state = 4, wake_at = NULL WHERE seq = "+seq); err != nil {
			return false, err
		}
	}
	return true, nil
}

func seqsOf(rows *sql.Rows, err error) (seqs []string, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var seq string
		var payload []byte
		if err := rows.Scan(&seq, &payload); err != nil {
			return nil, err
		}
		seqs = append(seqs, seq)
	}
	return seqs, rows.Err()
}

// BenchmarkDrain drains a Store by cycles of 100, in both ways.
func BenchmarkDrain(b *testing.B) {
	for _, claimers := range []int{1, 4, 16} {
		for _, slow := range []bool{false, true} {
			b.Run(fmt.Sprintf("claimers=%d/slow=%v", claimers, slow), func(b *testing.B) { benchDrain(b, claimers, slow) })
		}
	}
}

func benchDrain(b *testing.B, claimers int, slow bool) {
	server := testserver.NewMariaDB(b, &testserver.MariaDBOptions{Fsync: true})
	s := open(b, openDB(b, server, 32, func(c *driver.Config) { c.InterpolateParams = true }), &mysql.Options{})
	if slow {
		s.SlowWay()
	}
	fillBench(b, s, b.N, pawl.DeleteNow)
	b.ResetTimer()
	defer watchServer(b, server, s.DB())()
	var wg sync.WaitGroup
	for range claimers {
		wg.Go(func() { drain(b, s, 100) })
	}
	wg.Wait()
	perJob(b, b.N)
	if candidates, lost := s.Races(); candidates > 0 {
		b.ReportMetric(100*float64(lost)/float64(candidates), "%-lost")
	}
}
