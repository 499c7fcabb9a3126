package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/pawlq/pawl"
)

// ErrServer means that the server can't be used: it is too old, or it takes no
// writes.
var ErrServer = errors.New("pawl/mysql: server can't be used")

// Numbers of the server's errors.
const (
	codeDuplicate    = 1062
	codeNoTable      = 1146
	codeChanged      = 1020 // the whole transaction was undone, see innodb_snapshot_isolation
	codeLockTimeout  = 1205 // the statement was undone
	codeDeadlock     = 1213 // the whole transaction was undone
	codeReadOnly     = 1290 // read_only is set
	codeNoSavepoint  = 1305
	codeReadOnlyTx   = 1792
	codeReadOnlyMode = 1836 // innodb_read_only is set
)

// code is the number of the server's error, 0 if it is none.
func code(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}

func isReadOnly(err error) bool {
	c := code(err)
	return c == codeReadOnly || c == codeReadOnlyMode || c == codeReadOnlyTx
}

func isBusy(err error) bool {
	var busy *pawl.BusyError
	return errors.As(err, &busy)
}

// isLost reports whether the connection was lost.
func isLost(err error) bool {
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, sql.ErrConnDone)
}

// Limits of retries on the Store's own connections.
const (
	// maxTries is for conflicts, which are over at the next attempt or soon after,
	// and for servers that take no writes: the pool may have several connections
	// to one that was the primary until now.
	maxTries = 12
	// maxLost is for connections that were lost before a commit was sent: those
	// that were idle in the pool while the server was restarted.
	maxLost    = 3
	retryPause = 2 * time.Millisecond // doubles up to the next
	maxPause   = 100 * time.Millisecond
)

// errAgain makes retry run its function again.
var errAgain = errors.New("pawl/mysql: another call was faster")

// retry runs f again while it fails for a conflict with another transaction,
// because the server takes no writes, which it also says to a commit before it
// undoes all, or because the connection was lost before anything could be
// committed. f is one whole transaction or statement, never more: what was
// committed is not undone.
func retry(ctx context.Context, f func() error) error {
	for try, lost := 1, 1; ; try++ {
		err := f()
		if err == nil || ctx.Err() != nil || try == maxTries {
			return err
		}
		c := code(err)
		switch {
		case c == codeDeadlock, c == codeLockTimeout, c == codeDuplicate, errors.Is(err, errAgain), isReadOnly(err):
		case mayRepeat(err) && lost < maxLost:
			lost++
		default:
			return err
		}
		if pause(ctx, try) != nil {
			return err
		}
	}
}

// mayRepeat reports whether a connection was lost in a way that nothing can
// have been committed.
func mayRepeat(err error) bool {
	var unknown *commitError
	if errors.As(err, &unknown) {
		return false
	}
	var sent *sentError
	if errors.As(err, &sent) {
		return errors.Is(err, driver.ErrBadConn) // says that it was not sent
	}
	return isLost(err)
}

// mayBeDone reports whether what failed may have been committed all the same.
func mayBeDone(err error) bool {
	var unknown *commitError
	var sent *sentError
	return errors.As(err, &unknown) || errors.As(err, &sent) && !errors.Is(err, driver.ErrBadConn)
}

// sentError marks the error of a statement outside of a transaction: if the
// connection was lost, it may have been committed.
type sentError struct{ error }

func (e *sentError) Unwrap() error { return e.error }

// pause waits before the next of several tries.
func pause(ctx context.Context, try int) error {
	d := min(retryPause<<min(try-1, 10), maxPause)
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// explain says what failed. The errors of package pawl and of contexts pass
// through as they are.
func explain(what string, err error) error {
	if err == nil {
		return nil
	}
	for _, own := range []error{
		pawl.ErrFull, pawl.ErrInvalid, pawl.ErrClosed, pawl.ErrTxOver, pawl.ErrSchema, ErrServer,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, own) {
			return err
		}
	}
	if isReadOnly(err) {
		return fmt.Errorf("pawl/mysql: %s: %w: %w", what, ErrServer, err)
	}
	if code(err) == codeNoTable {
		return fmt.Errorf("pawl/mysql: %s: %w: %w", what, pawl.ErrSchema, err)
	}
	return fmt.Errorf("pawl/mysql: %s: %w", what, err)
}

// withCause makes sure that a call whose context ended says so: what its
// connection says then is that it was closed.
func withCause(ended, err error) error {
	if errors.Is(err, ended) {
		return err
	}
	return fmt.Errorf("%w: %w", ended, err)
}
