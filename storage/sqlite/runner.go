package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pawlq/pawl"
)

// reader runs queries.
type reader interface {
	query(ctx context.Context, s *statement, args ...any) (*sql.Rows, error)
}

// runner runs statements on one connection.
type runner interface {
	reader
	exec(ctx context.Context, s *statement, args ...any) (sql.Result, error)
}

// Querier is what [Store.SQLTx] needs of a transaction: [sql.Tx], and the
// transactions of most packages built on it.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// plain runs statements as they come.
type plain struct{ Querier }

func (p plain) exec(ctx context.Context, s *statement, args ...any) (sql.Result, error) {
	return p.ExecContext(ctx, s.text, args...)
}

func (p plain) query(ctx context.Context, s *statement, args ...any) (*sql.Rows, error) {
	return p.QueryContext(ctx, s.text, args...)
}

// prepared prepares each statement at its first use and keeps it.
type prepared struct {
	conn  *sql.Conn
	stmts map[*statement]*sql.Stmt
}

func newPrepared(conn *sql.Conn) *prepared {
	return &prepared{conn: conn, stmts: make(map[*statement]*sql.Stmt)}
}

func (p *prepared) get(ctx context.Context, s *statement) (*sql.Stmt, error) {
	if stmt, ok := p.stmts[s]; ok {
		return stmt, nil
	}
	stmt, err := p.conn.PrepareContext(ctx, s.text)
	if err != nil {
		return nil, err
	}
	p.stmts[s] = stmt
	return stmt, nil
}

func (p *prepared) exec(ctx context.Context, s *statement, args ...any) (sql.Result, error) {
	stmt, err := p.get(ctx, s)
	if err != nil {
		return nil, err
	}
	return stmt.ExecContext(ctx, args...)
}

func (p *prepared) query(ctx context.Context, s *statement, args ...any) (*sql.Rows, error) {
	stmt, err := p.get(ctx, s)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

// close closes the statements, on which nothing is open.
func (p *prepared) close() {
	for _, stmt := range p.stmts {
		_ = stmt.Close()
	}
	clear(p.stmts)
}

// batch is one transaction on the tables: the writer's, for a group of
// requests, or a caller's.
type batch struct {
	ctx context.Context
	run runner
	q   *statements
	now int64 // by the storage's clock

	fence       int64 // the last one given, once read
	storedFence int64
	fenceRead   bool

	waiting map[string]depth // known numbers of waiting jobs
	grace   grace
	events  events
}

// savepoint runs f so that all it wrote is gone if it fails.
func (b *batch) savepoint(f func() error) error {
	if _, err := b.run.exec(b.ctx, savepointBegin); err != nil {
		return err
	}
	before := b.events.clone()
	err := f()
	if err != nil {
		b.waiting, b.events = nil, before
		if _, undo := b.run.exec(b.ctx, savepointUndo); undo != nil {
			return &undoError{err, undo}
		}
	}
	if _, end := b.run.exec(b.ctx, savepointEnd); end != nil {
		return &undoError{err, end}
	}
	return err
}

// undoError says that a savepoint could not be undone or ended, so the
// transaction is not what it should be.
type undoError struct{ err, undo error }

func (e *undoError) Error() string { return fmt.Sprint(errors.Join(e.err, e.undo)) }

func (e *undoError) Unwrap() []error { return []error{e.err, e.undo} }

var (
	begin          = &statement{"BEGIN IMMEDIATE"}
	beginRead      = &statement{"BEGIN"}
	commit         = &statement{"COMMIT"}
	rollback       = &statement{"ROLLBACK"}
	savepointBegin = &statement{"SAVEPOINT pawl"}
	savepointUndo  = &statement{"ROLLBACK TO pawl"}
	savepointEnd   = &statement{"RELEASE pawl"}

	busyTimeout    = &statement{"PRAGMA busy_timeout"}
	dataVersion    = &statement{"PRAGMA data_version"}
	totalChanges   = &statement{"SELECT total_changes()"}
	journalMode    = &statement{"PRAGMA journal_mode"}
	synchronous    = &statement{"PRAGMA synchronous"}
	freePages      = &statement{"PRAGMA freelist_count"}
	autoVacuum     = &statement{"PRAGMA auto_vacuum"}
	giveBack       = &statement{fmt.Sprintf("PRAGMA incremental_vacuum(%d)", vacuumStep)}
	pageCount      = &statement{"PRAGMA page_count"}
	setAutoVacuum  = &statement{"PRAGMA auto_vacuum = INCREMENTAL"}
	setJournalMode = &statement{"PRAGMA journal_mode = WAL"}
	databaseFile   = &statement{"SELECT file FROM pragma_database_list WHERE name = 'main'"}
	hasTable       = &statement{"SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?1"}
	truncateWAL    = &statement{"PRAGMA wal_checkpoint(TRUNCATE)"}
)

// nextFence draws a fence; storeFence keeps what was drawn, in the same commit.
func (b *batch) nextFence() (int64, error) {
	if !b.fenceRead {
		n, err := b.number(b.q.fence)
		if err != nil {
			return 0, err
		}
		b.fence, b.storedFence, b.fenceRead = n, n, true
	}
	b.fence++
	return b.fence, nil
}

func (b *batch) storeFence() error {
	if b.fence == b.storedFence {
		return nil
	}
	n, err := b.exec(b.q.setFence, b.fence)
	if err == nil && n != 1 {
		err = fmt.Errorf("pawl/sqlite: the row of %smeta that keeps the fence is gone: %w", b.q.prefix, pawl.ErrSchema)
	}
	return err
}

func (b *batch) exec(s *statement, args ...any) (affected int64, err error) {
	res, err := b.run.exec(b.ctx, s, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// number is what the function number returns.
func (b *batch) number(s *statement, args ...any) (int64, error) {
	return number(b.ctx, b.run, s, args...)
}

// column returns the one column that a query gives.
func column[T any](ctx context.Context, run reader, s *statement, args ...any) ([]T, error) {
	rows, err := run.query(ctx, s, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		var v T
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// number returns the one number that a query gives; 0 for NULL and for no row.
func number(ctx context.Context, run reader, s *statement, args ...any) (int64, error) {
	all, err := column[sql.NullInt64](ctx, run, s, args...)
	if err != nil || len(all) == 0 {
		return 0, err
	}
	return all[0].Int64, nil
}

// text returns the one text that a query gives; "" for NULL and for no row.
func text(ctx context.Context, run reader, s *statement, args ...any) (string, error) {
	all, err := column[sql.NullString](ctx, run, s, args...)
	if err != nil || len(all) == 0 {
		return "", err
	}
	return all[0].String, nil
}

// events are what a batch will have made true once it is committed.
type events struct {
	ready map[string]int64 // queue: when the first job becomes due
	other []pawl.Event
}

// clone returns events to which more can be added apart.
func (e *events) clone() events {
	return events{ready: maps.Clone(e.ready), other: slices.Clip(e.other)}
}

// due notes that a job of the queue can be claimed at that time.
func (e *events) due(queue string, at int64) {
	if old, ok := e.ready[queue]; ok && old <= at {
		return
	}
	if e.ready == nil {
		e.ready = make(map[string]int64)
	}
	e.ready[queue] = at
}

// ended notes that a claim was ended by someone other than its worker.
func (e *events) ended(ref pawl.Ref) {
	e.other = append(e.other, pawl.Event{Kind: pawl.EventEnded, Queue: ref.Queue, Ref: ref})
}
