package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"
)

// severalWait is how long each statement of a text of several waits for the
// file: they can't be repeated as a whole.
const severalWait = 10 * time.Second

// connector opens connections for the program's own use of a file of ours.
// They wait for the write lock fairly: SQLite's own way to wait would let a
// busy writer starve them until "database is locked".
type connector struct {
	dsn    string
	driver driver.Driver
	s      *Store
}

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return c.driver }

// Connect implements driver.Connector. The connection opens the file at its
// first use: many transactions may wait for their turn, and those need none.
func (c *connector) Connect(context.Context) (driver.Conn, error) {
	return &patientConn{c: c}, nil
}

// fullConn is what database/sql uses of the driver's connections.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// patientConn waits for the write lock until the context ends.
type patientConn struct {
	c    *connector
	real fullConn // nil before the first use
	inTx bool     // in a transaction of BeginTx
}

func (p *patientConn) open(ctx context.Context) error {
	if p.real != nil {
		return nil
	}
	return untilFree(ctx, func() error {
		conn, err := p.c.driver.Open(p.c.dsn)
		if err == nil {
			p.real = conn.(fullConn)
			p.c.s.opened.Add(1)
		}
		return err
	})
}

// Close implements driver.Conn.
func (p *patientConn) Close() error {
	if p.real == nil {
		return nil
	}
	p.c.s.opened.Add(-1)
	return p.real.Close()
}

// Ping implements driver.Pinger.
func (p *patientConn) Ping(ctx context.Context) error {
	if err := p.open(ctx); err != nil {
		return err
	}
	return p.real.Ping(ctx)
}

// ResetSession implements driver.SessionResetter.
func (p *patientConn) ResetSession(ctx context.Context) error {
	if p.real == nil {
		return nil
	}
	return p.real.ResetSession(ctx)
}

// IsValid implements driver.Validator.
func (p *patientConn) IsValid() bool { return p.real == nil || p.real.IsValid() }

// Begin implements driver.Conn.
func (p *patientConn) Begin() (driver.Tx, error) {
	return p.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx begins a transaction that has the write lock, unless it is for
// reading only.
func (p *patientConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	end := func() {}
	if !opts.ReadOnly {
		var err error
		if end, err = p.c.s.takeTurn(ctx); err != nil {
			return nil, err
		}
	}
	var tx driver.Tx
	err := p.open(ctx)
	if err == nil {
		// Drivers may say that the context has ended of a transaction that has begun,
		// which nobody would end. They do not wait for the file here.
		err = untilFree(ctx, func() (err error) {
			tx, err = p.real.BeginTx(context.WithoutCancel(ctx), opts)
			return err
		})
	}
	if err != nil {
		end()
		return nil, err
	}
	p.inTx = true
	if !opts.ReadOnly {
		p.c.s.turn.opened()
	}
	return &turnTx{Tx: tx, p: p, end: end}, nil
}

// turnTx gives the turn back when it ends. database/sql ends it once.
type turnTx struct {
	driver.Tx
	p   *patientConn
	end func()
}

// Commit implements driver.Tx.
func (t *turnTx) Commit() error {
	defer t.ended()
	return t.Tx.Commit()
}

// Rollback implements driver.Tx.
func (t *turnTx) Rollback() error {
	defer t.ended()
	return t.Tx.Rollback()
}

func (t *turnTx) ended() {
	t.p.inTx = false
	t.end()
}

// ExecContext runs a statement as soon as the file is free.
func (p *patientConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (res driver.Result, err error) {
	err = p.patiently(ctx, query, func() (err error) {
		res, err = p.real.ExecContext(ctx, query, args)
		return err
	})
	return res, err
}

// QueryContext runs a query as soon as the file is free.
func (p *patientConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = p.patiently(ctx, query, func() (err error) {
		rows, err = p.real.QueryContext(ctx, query, args)
		return err
	})
	return rows, err
}

// patiently runs f, which runs the query. If the file is busy it takes its
// turn, so that only other processes are in its way, and goes on until the
// file is free. A transaction of BeginTx has nothing to wait for.
func (p *patientConn) patiently(ctx context.Context, query string, f func() error) error {
	if err := p.open(ctx); err != nil {
		return err
	}
	if p.inTx {
		return f()
	}
	if isSeveral(query) {
		return p.once(ctx, f)
	}
	err := f()
	if !isBusy(err) || isOldSnapshot(err) {
		return err
	}
	end, err := p.c.s.takeTurn(ctx)
	if err != nil {
		return err
	}
	defer end()
	return untilFree(ctx, f)
}

// once runs f, which runs several statements: if one of them finds the file
// busy, those before it are done and must not be repeated, so each waits by
// itself.
func (p *patientConn) once(ctx context.Context, f func() error) error {
	// A transaction that was begun by a statement may have the lock that the
	// owner of the turn waits for.
	if p.exec(context.WithoutCancel(ctx), "BEGIN") == nil {
		if err := p.exec(context.WithoutCancel(ctx), "ROLLBACK"); err != nil {
			return err
		}
		end, err := p.c.s.takeTurn(ctx)
		if err != nil {
			return err
		}
		defer end()
	}
	if err := p.exec(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", severalWait.Milliseconds())); err != nil {
		return err
	}
	err := f()
	if undo := p.exec(context.WithoutCancel(ctx), "PRAGMA busy_timeout = 0"); err == nil {
		err = undo
	}
	return err
}

func (p *patientConn) exec(ctx context.Context, text string) error {
	_, err := p.real.ExecContext(ctx, text, nil)
	return err
}

// Prepare implements driver.Conn.
func (p *patientConn) Prepare(query string) (driver.Stmt, error) {
	return p.PrepareContext(context.Background(), query)
}

// PrepareContext prepares a statement that runs as soon as the file is free.
func (p *patientConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := p.open(ctx); err != nil {
		return nil, err
	}
	stmt, err := p.real.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return &patientStmt{fullStmt: stmt.(fullStmt), p: p, query: query}, nil
}

// fullStmt is what database/sql uses of the driver's statements.
type fullStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type patientStmt struct {
	fullStmt
	p     *patientConn
	query string
}

// ExecContext runs the statement as soon as the file is free.
func (s *patientStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (res driver.Result, err error) {
	err = s.p.patiently(ctx, s.query, func() (err error) {
		res, err = s.fullStmt.ExecContext(ctx, args)
		return err
	})
	return res, err
}

// QueryContext runs the statement as soon as the file is free.
func (s *patientStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = s.p.patiently(ctx, s.query, func() (err error) {
		rows, err = s.fullStmt.QueryContext(ctx, args)
		return err
	})
	return rows, err
}
