package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync"
)

// connector opens connections that wait for the write lock fairly: for the
// program's own use of the file that Open has opened. Transactions take turns
// with the writer; single statements ask again every now and then. SQLite's
// own busy handler would let a busy writer starve them until "database is
// locked".
type connector struct {
	dsn    string
	driver driver.Driver
	turn   chan struct{}
	done   func() // called after each transaction
}

func newConnector(dsn string, turn chan struct{}, done func()) (*connector, error) {
	db, err := sql.Open("sqlite", dsn) // connects to nothing yet
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return &connector{dsn: dsn, driver: db.Driver(), turn: turn, done: done}, nil
}

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return c.driver }

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	var conn driver.Conn
	err := untilFree(ctx, func() (err error) {
		conn, err = c.driver.Open(c.dsn)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &patientConn{fullConn: conn.(fullConn), c: c}, nil
}

// fullConn is what database/sql uses of modernc's connections.
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
	fullConn
	c *connector
	// impatient is set on the writer's own connection: it has ways of its own
	// to wait.
	impatient bool
}

// setImpatient makes a connection of ours answer at once that the file is busy.
func setImpatient(conn *sql.Conn, impatient bool) {
	_ = conn.Raw(func(c any) error {
		if c, ok := c.(*patientConn); ok {
			c.impatient = impatient
		}
		return nil
	})
}

// BeginTx begins a transaction that has the write lock, unless it is for
// reading only.
func (c *patientConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if opts.ReadOnly {
		return c.fullConn.BeginTx(ctx, opts)
	}
	select {
	case c.c.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var tx driver.Tx
	err := untilFree(ctx, func() (err error) {
		tx, err = c.fullConn.BeginTx(ctx, opts)
		return err
	})
	if err != nil {
		<-c.c.turn
		return nil, err
	}
	return &turnTx{Tx: tx, c: c.c}, nil
}

// ExecContext runs a statement as soon as the file is free.
func (c *patientConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (res driver.Result, err error) {
	err = c.patiently(ctx, func() (err error) {
		res, err = c.fullConn.ExecContext(ctx, query, args)
		return err
	})
	return res, err
}

// QueryContext runs a query as soon as the file is free.
func (c *patientConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = c.patiently(ctx, func() (err error) {
		rows, err = c.fullConn.QueryContext(ctx, query, args)
		return err
	})
	return rows, err
}

func (c *patientConn) patiently(ctx context.Context, f func() error) error {
	if c.impatient {
		return f()
	}
	return untilFree(ctx, f)
}

// PrepareContext prepares a statement that runs as soon as the file is free.
func (c *patientConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	stmt, err := c.fullConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return &patientStmt{fullStmt: stmt.(fullStmt), c: c}, nil
}

// fullStmt is what database/sql uses of modernc's statements.
type fullStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type patientStmt struct {
	fullStmt
	c *patientConn
}

// ExecContext runs the statement as soon as the file is free.
func (s *patientStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (res driver.Result, err error) {
	err = s.c.patiently(ctx, func() (err error) {
		res, err = s.fullStmt.ExecContext(ctx, args)
		return err
	})
	return res, err
}

// QueryContext runs the statement as soon as the file is free.
func (s *patientStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = s.c.patiently(ctx, func() (err error) {
		rows, err = s.fullStmt.QueryContext(ctx, args)
		return err
	})
	return rows, err
}

// turnTx gives the turn back when it ends.
type turnTx struct {
	driver.Tx
	c    *connector
	once sync.Once
}

func (t *turnTx) end() {
	t.once.Do(func() {
		<-t.c.turn
		t.c.done()
	})
}

// Commit implements driver.Tx.
func (t *turnTx) Commit() error {
	defer t.end()
	return t.Tx.Commit()
}

// Rollback implements driver.Tx.
func (t *turnTx) Rollback() error {
	defer t.end()
	return t.Tx.Rollback()
}
