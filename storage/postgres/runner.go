package postgres

import (
	"context"
	"database/sql"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawlq/pawl"
)

// Querier is what [Store.SQLTx] needs of a transaction: a *sql.Tx, or one of a
// package built on database/sql.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// scanner is a row.
type scanner interface{ Scan(dest ...any) error }

// runner runs statements. each calls f with each row.
type runner interface {
	exec(ctx context.Context, sql string, args ...any) error
	each(ctx context.Context, f func(scanner) error, sql string, args ...any) error
}

// native is a runner on what pgx offers: a pool, a connection or a transaction.
type native struct {
	q interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}
	// mode, if set, overrides how statements are sent.
	mode *pgx.QueryExecMode
}

func (n native) args(args []any) []any {
	if n.mode == nil {
		return args
	}
	return append([]any{*n.mode}, args...)
}

func (n native) exec(ctx context.Context, sql string, args ...any) error {
	_, err := n.q.Exec(ctx, sql, n.args(args)...)
	return err
}

func (n native) each(ctx context.Context, f func(scanner) error, sql string, args ...any) error {
	rows, err := n.q.Query(ctx, sql, n.args(args)...)
	if err != nil {
		return err
	}
	return scanAll(rows, f)
}

// scanAll reads rows to their end.
func scanAll(rows pgx.Rows, f func(scanner) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// portable is a runner on database/sql, whatever the driver. Arrays go as text,
// which every driver can send.
type portable struct{ Querier }

func (p portable) exec(ctx context.Context, sql string, args ...any) error {
	_, err := p.ExecContext(ctx, sql, literals(args)...)
	return err
}

func (p portable) each(ctx context.Context, f func(scanner) error, sql string, args ...any) error {
	rows, err := p.QueryContext(ctx, sql, literals(args)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func literals(args []any) []any {
	all := make([]any, len(args))
	for i, arg := range args {
		all[i] = literal(arg)
	}
	return all
}

// literal writes slices as array literals.
func literal(arg any) any {
	switch a := arg.(type) {
	case []string:
		return array(a, quoteElement)
	case []int64:
		return array(a, func(n int64) string { return strconv.FormatInt(n, 10) })
	case []int32:
		return array(a, func(n int32) string { return strconv.Itoa(int(n)) })
	case []int16:
		return array(a, func(n int16) string { return strconv.Itoa(int(n)) })
	case []*int16:
		return array(a, func(n *int16) string {
			if n == nil {
				return "NULL"
			}
			return strconv.Itoa(int(*n))
		})
	case [][]byte:
		return array(a, func(b []byte) string {
			if b == nil {
				return "NULL"
			}
			return `"\\x` + hex.EncodeToString(b) + `"`
		})
	}
	return arg
}

func array[T any](all []T, text func(T) string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range all {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(text(v))
	}
	b.WriteByte('}')
	return b.String()
}

func quoteElement(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// inTx runs f in a transaction of the Store's own, and again if that meets a
// conflict. Each statement sees what others have committed before it, whatever
// the pool's default is.
func (s *Store) inTx(ctx context.Context, f func(run runner) error) error {
	return retry(ctx, func() error { return s.within(ctx, s.pool, f) })
}

// beginner is a pool or a connection.
type beginner interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// within is one try of inTx.
func (s *Store) within(ctx context.Context, on beginner, f func(run runner) error) error {
	return pgx.BeginTxFunc(ctx, on, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		run := native{q: tx}
		if err := run.exec(ctx, s.q.pin); err != nil {
			return err
		}
		return f(run)
	})
}

// pipeline is a transaction whose statements go out in one piece.
type pipeline struct {
	batch pgx.Batch
	// explicit is whether it needs a BEGIN to be READ COMMITTED.
	explicit bool
	// locked, if not nil, is set when a lock was waited for in vain: what is
	// built then does without.
	locked *bool
}

// exec adds a statement.
func (p *pipeline) exec(sql string, args ...any) { p.batch.Queue(sql, args...) }

// each adds a statement whose rows f reads.
func (p *pipeline) each(f func(scanner) error, sql string, args ...any) {
	p.rows(func(rows pgx.Rows) error { return scanAll(rows, f) }, sql, args...)
}

// rows adds a statement whose result f reads.
func (p *pipeline) rows(f func(pgx.Rows) error, sql string, args ...any) {
	p.batch.Queue(sql, args...).Query(f)
}

// begin begins an explicit transaction, commit ends it: what follows is another
// one.
func (p *pipeline) begin(q *statements) {
	if !p.explicit {
		p.batch.QueuedQueries = slices.Insert(p.batch.QueuedQueries, 0, &pgx.QueuedQuery{SQL: q.begin})
	}
}

func (p *pipeline) commit(q *statements) {
	p.exec(q.commit)
	if p.explicit {
		p.exec(q.begin)
	}
	p.exec(q.pin)
}

// pipelined sends the transaction that build makes, and returns when it is
// committed. If that meets a conflict, another one is built: build must begin
// by forgetting what it has read.
func (s *Store) pipelined(ctx context.Context, build func(p *pipeline)) error {
	return retry(ctx, func() error {
		p := &pipeline{explicit: s.explicit.Load()}
		if p.explicit {
			p.exec(s.q.begin)
		}
		p.exec(s.q.pinCommitted)
		build(p)
		if p.explicit {
			p.exec(s.q.commit)
		}
		err := s.pool.SendBatch(ctx, &p.batch).Close()
		switch c := code(err); {
		case c == codeLocked && p.locked != nil && !*p.locked:
			*p.locked = true
			return errAgain
		case c == codeNoSetting && !p.explicit:
			s.explicit.Store(true)
			return errAgain
		}
		return err
	})
}

// read runs one statement that only reads, and again if the server has ended the
// connection before the first row.
func (s *Store) read(ctx context.Context, f func(scanner) error, sql string, args ...any) error {
	since := time.Now()
	for again := true; ; again = false {
		begun := false
		err := s.pipelined(ctx, func(p *pipeline) {
			p.each(func(row scanner) error { begun = true; return f(row) }, sql, args...)
		})
		if !again || begun || !isCut(err) {
			return err
		}
		s.refresh(since, 0) // else the next one may be as old
	}
}

func texts(ids []pawl.ID) []string {
	all := make([]string, len(ids))
	for i := range ids {
		all[i] = ids[i].String()
	}
	return all
}
