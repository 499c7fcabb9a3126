package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
)

// old is a program that knows version 1 of the schema.
type old struct {
	t  *testing.T
	db *sql.DB
}

// newOld makes tables of version 1 as another tool would.
func newOld(t *testing.T) *old {
	t.Helper()
	o := &old{t, openDB(t, testserver.MariaDB(t), 8, nil)}
	file, err := fs.ReadFile(mysql.Migrations(), "0001_init.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range strings.SplitAfter(string(file), ";\n") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := o.db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// Statements of version 1, their literals as arguments.
const (
	oldNow    = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	oldInsert = `INSERT IGNORE INTO pawl_job (id, queue, kind, state, urgency, moment, wake_at, run_at, priority, max_attempts,
		max_rescues, lease, timeout, retention, created_at, start_before, mark, ukey, umode, uwindow, held, apart, meta, payload)
		VALUES (?, 'default', 'kind', 2, 0, ` + oldNow + `, NULL, ` + oldNow + `, 0, 3, 3, 0, 0, 3600000000, ` + oldNow + `,
		0, 1, '', 0, 0, 0, 0, NULL, NULL)`
	oldCandidates = `SELECT j.seq, j.id, j.fence FROM (SELECT seq AS s FROM pawl_job FORCE INDEX (place) WHERE queue = 'default'
		AND state = 2 ORDER BY urgency, moment, seq LIMIT ? OFFSET 0) AS v
		STRAIGHT_JOIN pawl_job AS j FORCE INDEX (PRIMARY) ON j.seq = v.s`
	oldFence = "INSERT INTO pawl_fence VALUES (NULL)"
	oldTake  = `SET STATEMENT innodb_lock_wait_timeout = 1 FOR UPDATE JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$[0]',
		f BIGINT PATH '$[1]')) AS v STRAIGHT_JOIN pawl_job AS j FORCE INDEX (PRIMARY) ON j.seq = v.s AND j.fence = v.f
		AND j.state = 2 SET j.state = 3, j.urgency = 0, j.moment = ` + oldNow + `, j.claimed_at = ` + oldNow + `,
		j.wake_at = 60000000 + ` + oldNow + `, j.fence = ?, j.token = ?, j.worker = 'old', j.attempt = j.attempt + 1`
	oldWon = `SELECT seq, id, fence FROM pawl_job FORCE INDEX (place) WHERE queue = 'default' AND state = 3 AND token = ?
		ORDER BY priority, run_at, seq LIMIT 1000`
	oldAck = `SET STATEMENT innodb_lock_wait_timeout = 1 FOR UPDATE JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$[0]',
		f BIGINT PATH '$[1]')) AS v STRAIGHT_JOIN pawl_job AS j FORCE INDEX (PRIMARY) ON j.seq = v.s AND j.fence = v.f
		AND j.state = 3 SET j.state = 4, j.last_fence = j.fence, j.last_verb = 1, j.moment = ` + oldNow + `,
		j.wake_at = j.retention + ` + oldNow
	oldOverdue = `SELECT seq, id, fence FROM pawl_job FORCE INDEX (wake) WHERE state = 3 AND wake_at <= ` + oldNow + `
		ORDER BY wake_at LIMIT 100 FOR UPDATE SKIP LOCKED`
)

// oldJob is what an old program knows of a job.
type oldJob struct {
	seq, fence int64
	id         pawl.ID
}

// pairs are jobs as numbers and fences in JSON.
func pairs(jobs []oldJob) string {
	var all []string
	for _, j := range jobs {
		all = append(all, fmt.Sprintf("[%d,%d]", j.seq, j.fence))
	}
	return "[" + strings.Join(all, ",") + "]"
}

func (o *old) enqueue() (pawl.ID, error) {
	id := pawl.ID(uuid.Must(uuid.NewV7()))
	_, err := o.db.Exec(oldInsert, id[:])
	return id, err
}

func (o *old) query(run mysql.Querier, query string, args ...any) (jobs []oldJob, err error) {
	rows, err := run.QueryContext(context.Background(), query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var j oldJob
		var id []byte
		if err := rows.Scan(&j.seq, &id, &j.fence); err != nil {
			return nil, err
		}
		j.id = pawl.ID(id)
		jobs = append(jobs, j)
	}
	return jobs, rows.Err()
}

// inTx runs a transaction, and again after a deadlock, as version 1 did.
func (o *old) inTx(f func(tx *sql.Tx) error) error {
	for {
		tx, err := o.db.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		err = f(tx)
		if err == nil {
			return tx.Commit()
		}
		_ = tx.Rollback() // err says more
		var e *driver.MySQLError
		if !errors.As(err, &e) || e.Number != 1213 {
			return err
		}
	}
}

// claim claims up to n jobs by version, under a token.
func (o *old) claim(n int, token int64) (jobs []oldJob, err error) {
	err = o.inTx(func(tx *sql.Tx) error {
		found, err := o.query(tx, oldCandidates, n)
		if len(found) == 0 || err != nil {
			return err
		}
		res, err := tx.Exec(oldFence)
		if err != nil {
			return err
		}
		fence, err := res.LastInsertId()
		if err != nil {
			return err
		}
		if _, err := tx.Exec(oldTake, pairs(found), fence, token); err != nil {
			return err
		}
		jobs, err = o.query(tx, oldWon, token)
		return err
	})
	return jobs, err
}

// ack completes jobs.
func (o *old) ack(jobs []oldJob) error {
	return o.inTx(func(tx *sql.Tx) error {
		res, err := tx.Exec(oldAck, pairs(jobs))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || int(n) != len(jobs) {
			return fmt.Errorf("acked %d of %d jobs, error %w", n, len(jobs), err)
		}
		return nil
	})
}

// sweep looks for leases that are over, of which the tests have none.
func (o *old) sweep() error {
	return o.inTx(func(tx *sql.Tx) error {
		found, err := o.query(tx, oldOverdue)
		if len(found) > 0 {
			return fmt.Errorf("overdue: %v", found)
		}
		return err
	})
}

// cycle claims some jobs and completes them.
func (o *old) cycle(token int64) (ids []pawl.ID, err error) {
	jobs, err := o.claim(3, token)
	if len(jobs) > 0 && err == nil {
		err = o.ack(jobs)
	}
	for _, j := range jobs {
		ids = append(ids, j.id)
	}
	return ids, errors.Join(err, o.sweep())
}
