package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
)

// textbookSystem is the table of pending tasks that textbooks show: claimers read
// ten candidates, take each by its version, and set each to its end.
type textbookSystem struct {
	*MySQLDatabase
	v  Variant
	db *sql.DB
}

const (
	textbookClaimers = 4
	textbookBatch    = 10
	textbookPoll     = 50 * time.Millisecond // pawl's default between processes
)

const textbookSchema = `CREATE TABLE task (
	id BIGINT AUTO_INCREMENT PRIMARY KEY,
	biz_type VARCHAR(64) NOT NULL,
	biz_key VARCHAR(64) NOT NULL,
	status TINYINT NOT NULL DEFAULT 0, -- 1 running, 2 success
	priority INT NOT NULL DEFAULT 0,
	payload BLOB NOT NULL,
	retry_count INT NOT NULL DEFAULT 0,
	max_retry INT NOT NULL DEFAULT 25,
	next_run_at DATETIME(6) NOT NULL,
	version INT NOT NULL DEFAULT 0,
	created_at DATETIME(6) NOT NULL,
	updated_at DATETIME(6) NOT NULL,
	UNIQUE KEY biz (biz_type, biz_key),
	KEY ready (status, priority, next_run_at))`

const (
	textbookInsert = "INSERT INTO task (biz_type, biz_key, payload, next_run_at, created_at, updated_at) VALUES "
	textbookRow    = "('bench', ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))"
	textbookSelect = `SELECT id, version, payload FROM task FORCE INDEX (ready) WHERE status = 0 AND next_run_at <= UTC_TIMESTAMP(6)
		ORDER BY priority, next_run_at LIMIT ?`
	textbookTake  = "UPDATE task SET status = 1, version = version + 1, updated_at = UTC_TIMESTAMP(6) WHERE id = ? AND version = ? AND status = 0"
	textbookAgain = `UPDATE task SET status = 0, version = version + 1, retry_count = retry_count + 1, updated_at = UTC_TIMESTAMP(6),
		next_run_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE id = ?`
	textbookEnd = "UPDATE task SET status = 2, version = version + 1, updated_at = UTC_TIMESTAMP(6) WHERE id = ?"
)

func textbook() *Contender {
	return &Contender{Name: "textbook", Storage: "mysql", Variants: textbookVariants,
		Open: func(ctx context.Context, p *Place, v Variant) (System, error) {
			db, err := p.MySQL.Open()
			if err != nil {
				return nil, err
			}
			if !p.Joined {
				_, err = db.ExecContext(ctx, textbookSchema)
			}
			if err != nil {
				return nil, errors.Join(err, db.Close())
			}
			return &textbookSystem{p.MySQL, v, db}, nil
		}}
}

// textbookVariants are of the workloads that need nothing but jobs that come due.
func textbookVariants(w *Workload) []Variant {
	for _, prefix := range []string{"enqueue-1", "enqueue-64", "enqueue-tx", "unique", "bulk", "drain", "retries", "steady", "latency", "two-processes", "due-at-once"} {
		if strings.HasPrefix(w.Name, prefix) && w.Prepare == nil {
			return []Variant{{Retention: history, Extra: w.Name == "due-at-once"}} // which takes long
		}
	}
	return nil
}

// Enqueue implements [System].
func (s *textbookSystem) Enqueue(ctx context.Context, j Job) error {
	return s.EnqueueMany(ctx, []Job{j})
}

// EnqueueMany implements [System].
func (s *textbookSystem) EnqueueMany(ctx context.Context, jobs []Job) error {
	const most = 1000
	for ; len(jobs) > 0; jobs = jobs[min(most, len(jobs)):] {
		part := jobs[:min(most, len(jobs))]
		var args []any
		for _, j := range part {
			payload, err := json.Marshal(j.Args)
			if err != nil {
				return err
			}
			args = append(args, uuid.NewString(), payload, j.Delay.Microseconds())
		}
		rows := strings.Repeat(","+textbookRow, len(part))[1:]
		if _, err := s.db.ExecContext(ctx, textbookInsert+rows, args...); err != nil {
			return err
		}
	}
	return nil
}

// InTx implements [TxSystem].
func (s *textbookSystem) InTx(ctx context.Context, jobs []Job, hold func()) (time.Time, error) {
	return inSQLTx(ctx, s.db, hold, func(tx *sql.Tx) error {
		for _, j := range jobs {
			if err := textbookSave(ctx, tx, uuid.NewString(), j); err != nil {
				return err
			}
		}
		return nil
	})
}

// EnqueueUnique implements [UniqueSystem].
func (s *textbookSystem) EnqueueUnique(ctx context.Context, j Job) (bool, error) {
	const duplicate = 1062
	err := textbookSave(ctx, s.db, strconv.FormatInt(j.N, 10), j)
	var e *driver.MySQLError
	if errors.As(err, &e) && e.Number == duplicate {
		return false, nil
	}
	return err == nil, err
}

// textbookSave stores one job.
func textbookSave(ctx context.Context, x interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, key string, j Job) error {
	payload, err := json.Marshal(j.Args)
	if err != nil {
		return err
	}
	_, err = x.ExecContext(ctx, textbookInsert+textbookRow, key, payload, j.Delay.Microseconds())
	return err
}

// Close implements [System].
func (s *textbookSystem) Close() error { return s.db.Close() }

// Work implements [System].
func (s *textbookSystem) Work(ctx context.Context, h Handler) (Workers, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &textbookWorkers{s: s, cancel: cancel}
	for range textbookClaimers {
		w.wg.Go(func() {
			if err := w.run(ctx, h); err != nil && ctx.Err() == nil {
				w.failed.CompareAndSwap(nil, &err)
			}
		})
	}
	return w, nil
}

type textbookWorkers struct {
	s       *textbookSystem
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	settled atomic.Int64
	failed  atomic.Pointer[error]
}

type textbookTask struct {
	id, version int64
	args        Args
}

func (w *textbookWorkers) run(ctx context.Context, h Handler) error {
	for ctx.Err() == nil {
		found, err := w.candidates(ctx)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			pause(ctx, textbookPoll)
		}
		for _, task := range found {
			if err := w.one(ctx, task, h); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *textbookWorkers) candidates(ctx context.Context) (found []textbookTask, err error) {
	rows, err := w.s.db.QueryContext(ctx, textbookSelect, textbookBatch)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var task textbookTask
		var payload []byte
		if err := rows.Scan(&task.id, &task.version, &payload); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(payload, &task.args); err != nil {
			return nil, err
		}
		found = append(found, task)
	}
	return found, rows.Err()
}

// one takes a task, unless another claimer was faster, and does it.
func (w *textbookWorkers) one(ctx context.Context, task textbookTask, h Handler) error {
	res, err := w.s.db.ExecContext(ctx, textbookTake, task.id, task.version)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); n == 0 || err != nil {
		return err
	}
	if err := h(ctx, task.args.N); err != nil {
		_, err := w.s.db.ExecContext(ctx, textbookAgain, w.s.v.Retry.Microseconds(), task.id)
		return err
	}
	if _, err := w.s.db.ExecContext(ctx, textbookEnd, task.id); err != nil {
		return err
	}
	w.settled.Add(1)
	return nil
}

// Settled implements [Workers].
func (w *textbookWorkers) Settled(_ context.Context, n int64) (bool, error) {
	if err := w.failed.Load(); err != nil {
		return false, *err
	}
	return w.settled.Load() >= n, nil
}

// Stop implements [Workers].
func (w *textbookWorkers) Stop() error {
	w.cancel()
	w.wg.Wait()
	if err := w.failed.Load(); err != nil {
		return *err
	}
	return nil
}
