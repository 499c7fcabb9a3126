package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawlq/pawl"
)

// ErrServer means that the server can't be used: it is too old, or it is a
// standby, or its default transactions are read-only, or texts are not UTF8: of the
// database, or on the pool's connections by client_encoding.
var ErrServer = errors.New("pawl/postgres: server can't be used")

// SQLSTATE codes (https://www.postgresql.org/docs/current/errcodes-appendix.html).
const (
	codeUnique        = "23505"
	codeReadOnly      = "25006"
	codeAborted       = "25P02" // the transaction has failed before
	codeSerialization = "40001"
	codeDeadlock      = "40P01"
	codeLocked        = "55P03" // lock_timeout
	codeNoSetting     = "42704" // see statements.pinCommitted
	codeNoRight       = "42501"
	codeNoSchema      = "3F000"
	codeNoTable       = "42P01"
	codeIdleSession   = "57P05" // ended while it was idle: the statement came too late
	codeShutdown      = "57P01" // by an administrator's hand
	codeCrash         = "57P02" // of another process of the server
)

// code is the SQLSTATE of err, "" if it has none. It knows the errors of other
// drivers by their method SQLState.
func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	var other interface{ SQLState() string }
	if errors.As(err, &other) {
		return other.SQLState()
	}
	return ""
}

// isOver reports whether err has ended the transaction it came from in a way
// that its caller should begin it anew.
func isOver(err error) bool {
	c := code(err)
	return c == codeSerialization || c == codeDeadlock || c == codeAborted
}

func isBusy(err error) bool {
	var busy *pawl.BusyError
	return errors.As(err, &busy)
}

// isCut reports whether the server has ended a connection. Those that wait in the
// pool have most likely ended too.
func isCut(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false // the driver did it
	}
	var op *net.OpError
	c := code(err)
	return c == codeShutdown || c == codeCrash || errors.As(err, &op) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// Limits of retries on the Store's own connections. Deadlocks and serialization
// failures are over at the next attempt, so the limit is only against a fault
// of ours.
const (
	maxTries   = 12
	retryPause = 2 * time.Millisecond // doubles up to the next
	maxPause   = 100 * time.Millisecond
)

// errAgain makes retry run its function again.
var errAgain = errors.New("pawl/postgres: another call was faster")

// retry runs f again while it fails for a conflict with another transaction, or
// because the server had ended an idle connection before f came to use it. f
// is one whole transaction, and at most one after it that only reads: what was
// committed is not undone, nor done again.
func retry(ctx context.Context, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		c := code(err)
		again := c == codeSerialization || c == codeDeadlock || c == codeUnique || c == codeIdleSession ||
			errors.Is(err, errAgain) || pgconn.SafeToRetry(err) // nothing was sent
		if !again || try == maxTries || pause(ctx, try) != nil {
			return err
		}
	}
}

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
	for _, own := range []error{
		pawl.ErrFull, pawl.ErrInvalid, pawl.ErrClosed, pawl.ErrTxOver, pawl.ErrSchema, ErrServer,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, own) {
			return err
		}
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("pawl/postgres: %s: %w", what, err)
}
