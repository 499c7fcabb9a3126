package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/pawlq/pawl/storage/mysql"
)

// rawMySQLSystem is the limit on MySQL: statements on pawl's own tables that take
// a batch each. A claim takes those of its candidates whose version is as it was
// read. There are no leases that end, no retries, no wake-ups, no types of jobs,
// and no dispatch.
type rawMySQLSystem struct {
	*MySQLDatabase
	v  Variant
	db *sql.DB
}

func rawMySQL() *Contender {
	return &Contender{Name: "raw", Storage: "mysql", Variants: rawVariants,
		Open: func(ctx context.Context, p *Place, v Variant) (System, error) {
			db, err := p.MySQL.Open()
			if err != nil {
				return nil, err
			}
			if err := mysql.Migrate(ctx, db, nil); err != nil {
				return nil, errors.Join(err, db.Close())
			}
			return &rawMySQLSystem{p.MySQL, v, db}, nil
		}}
}

const (
	rawMySQLNow    = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	rawMySQLInsert = `INSERT INTO pawl_job (id, queue, kind, state, urgency, moment, run_at, priority, max_attempts,
		max_rescues, lease, timeout, retention, created_at, mark, payload, worker) VALUES `
	rawMySQLRow = ", 'default', 'bench', 2, 0, " + rawMySQLNow + ", " + rawMySQLNow + ", 0, 25, 5, 0, 0, 0, " + rawMySQLNow + ", 0, x'%x', SPACE(56))" // room for what the claim writes

	// The parts of an index that begins with queue and state.
	rawMySQLReady = `SELECT c.s, j.payload FROM (SELECT seq AS s FROM pawl_job FORCE INDEX (place) WHERE queue = 'default' AND state = 2
		ORDER BY urgency, moment, seq LIMIT %d OFFSET %d) AS c STRAIGHT_JOIN pawl_job AS j FORCE INDEX (PRIMARY) ON j.seq = c.s`
	rawMySQLTake = `UPDATE pawl_job FORCE INDEX (PRIMARY) SET state = 3, moment = ` + rawMySQLNow + `, wake_at = 60000000 + ` + rawMySQLNow + `,
		fence = 1, token = %d, worker = 'raw' WHERE fence = 0 AND seq IN (%s)`
	rawMySQLWon    = "SELECT seq, payload FROM pawl_job FORCE INDEX (PRIMARY) WHERE token = %d AND seq IN (%s)"
	rawMySQLDelete = "DELETE FROM pawl_job WHERE seq IN (%s)"
	rawMySQLKeep   = `UPDATE pawl_job FORCE INDEX (PRIMARY) SET state = 4, moment = ` + rawMySQLNow + `, wake_at = ` + rawMySQLNow + `
		WHERE seq IN (%s)`
)

// Enqueue implements [System].
func (s *rawMySQLSystem) Enqueue(ctx context.Context, j Job) error {
	return s.EnqueueMany(ctx, []Job{j})
}

// EnqueueMany implements [System].
func (s *rawMySQLSystem) EnqueueMany(ctx context.Context, jobs []Job) error {
	const most = 1000
	for ; len(jobs) > 0; jobs = jobs[min(most, len(jobs)):] {
		text := []byte(rawMySQLInsert)
		for i, j := range jobs[:min(most, len(jobs))] {
			payload, err := json.Marshal(j.Args)
			if err != nil {
				return err
			}
			id, err := uuid.NewV7()
			if err != nil {
				return err
			}
			if i > 0 {
				text = append(text, ',')
			}
			text = fmt.Appendf(text, "(x'%x'"+rawMySQLRow, id[:], payload)
		}
		if _, err := s.db.ExecContext(ctx, string(text)); err != nil {
			return err
		}
	}
	return nil
}

// Close implements [System].
func (s *rawMySQLSystem) Close() error { return s.db.Close() }

// Work implements [System].
func (s *rawMySQLSystem) Work(ctx context.Context, h Handler) (Workers, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &rawMySQLWorkers{s: s, cancel: cancel}
	for i := range engineClaimers {
		w.wg.Go(func() {
			if err := w.run(ctx, i, h); err != nil && ctx.Err() == nil {
				w.failed.CompareAndSwap(nil, &err)
			}
		})
	}
	return w, nil
}

type rawMySQLWorkers struct {
	s       *rawMySQLSystem
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	tokens  atomic.Int64
	settled atomic.Int64
	failed  atomic.Pointer[error]
}

// batch are numbers of jobs as a list.
type rawMySQLBatch struct {
	list string
	n    int
}

func (w *rawMySQLWorkers) run(ctx context.Context, claimer int, h Handler) error {
	var last rawMySQLBatch
	for ctx.Err() == nil {
		found, err := w.candidates(ctx, claimer)
		if err != nil {
			return err
		}
		next, err := w.cycle(ctx, last, found)
		var e *driver.MySQLError
		if errors.As(err, &e) && e.Number == 1213 { // undone: the other claimer was faster
			continue
		}
		if err != nil {
			return err
		}
		w.settled.Add(int64(last.n))
		for range next.n {
			if err := h(ctx, 0); err != nil {
				return err
			}
		}
		last = next
	}
	return nil
}

// candidates reads ready jobs without a lock, each claimer another batch.
func (w *rawMySQLWorkers) candidates(ctx context.Context, claimer int) (rawMySQLBatch, error) {
	n := w.s.v.Batch
	found, err := readRawMySQL(w.s.db.QueryContext(ctx, fmt.Sprintf(rawMySQLReady, n, claimer*n)))
	if err == nil && found.n == 0 && claimer > 0 {
		return w.candidates(ctx, 0)
	}
	return found, err
}

// cycle ends the last batch and takes the next in one transaction.
func (w *rawMySQLWorkers) cycle(ctx context.Context, last, found rawMySQLBatch) (won rawMySQLBatch, err error) {
	if last.n+found.n == 0 {
		return won, nil
	}
	tx, err := w.s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return won, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if last.n > 0 {
		end := rawMySQLKeep
		if w.s.v.Retention == deleteNow {
			end = rawMySQLDelete
		}
		if _, err := tx.ExecContext(ctx, fmt.Sprintf(end, last.list)); err != nil {
			return won, err
		}
	}
	if found.n > 0 {
		token := w.tokens.Add(1)
		res, err := tx.ExecContext(ctx, fmt.Sprintf(rawMySQLTake, token, found.list))
		if err != nil {
			return won, err
		}
		if n, err := res.RowsAffected(); err != nil {
			return won, err
		} else if won = found; int(n) < found.n {
			if won, err = readRawMySQL(tx.QueryContext(ctx, fmt.Sprintf(rawMySQLWon, token, found.list))); err != nil {
				return won, err
			}
		}
	}
	return won, tx.Commit()
}

func readRawMySQL(rows *sql.Rows, err error) (b rawMySQLBatch, _ error) {
	if err != nil {
		return b, err
	}
	defer rows.Close()
	var list []byte
	for rows.Next() {
		var seq int64
		var payload []byte
		if err := rows.Scan(&seq, &payload); err != nil {
			return b, err
		}
		if b.n++; b.n > 1 {
			list = append(list, ',')
		}
		list = strconv.AppendInt(list, seq, 10)
	}
	b.list = string(list)
	return b, rows.Err()
}

// Settled implements [Workers].
func (w *rawMySQLWorkers) Settled(_ context.Context, n int64) (bool, error) {
	if err := w.failed.Load(); err != nil {
		return false, *err
	}
	return w.settled.Load() >= n, nil
}

// Stop implements [Workers].
func (w *rawMySQLWorkers) Stop() error {
	w.cancel()
	w.wg.Wait()
	if err := w.failed.Load(); err != nil {
		return *err
	}
	return nil
}
