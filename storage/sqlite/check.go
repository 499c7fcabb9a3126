package sqlite

import (
	"context"
	"time"
)

// probeWait is how long New waits for a second connection to look at the
// program's transactions.
const probeWait = 100 * time.Millisecond

// checkSettings warns of settings of the program's connections that lose
// commits or make its own statements fail.
func (s *Store) checkSettings(ctx context.Context, run plain) error {
	level, err := number(ctx, run, synchronous)
	if err != nil {
		return err
	}
	if int(level) < s.o.Synchronous.level() {
		s.warn(ctx, "synchronous is weaker than expected: a loss of power can undo commits",
			"have", level, "want", s.o.Synchronous.level())
	}
	if s.own {
		return nil // they are ours
	}
	timeout, err := number(ctx, run, busyTimeout)
	if err != nil {
		return err
	}
	if timeout == 0 {
		s.warn(ctx, "busy_timeout is 0: the program's own statements fail while the Store writes; see New")
	}
	if s.db.Stats().MaxOpenConnections != 1 && s.hasDeferred(ctx, run, timeout) {
		s.warn(ctx, "transactions are deferred: those that read before they write can fail; see New")
	}
	return nil
}

func (s *Store) warn(ctx context.Context, text string, args ...any) {
	s.o.Logger.WarnContext(ctx, "pawl/sqlite: "+text, append(args, "file", s.file)...)
}

// hasDeferred reports whether it is sure that a transaction of the program
// does not have the write lock after its begin: the connection of run, which is
// another, can get it.
func (s *Store) hasDeferred(ctx context.Context, run plain, timeout int64) bool {
	end := context.WithoutCancel(ctx)
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	if setBusyTimeout(ctx, run, 0) != nil {
		return false
	}
	defer func() { _ = setBusyTimeout(end, run, timeout) }()
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	tx, err := beginOn(ctx, conn)
	if err != nil {
		return false
	}
	defer tx.Rollback()
	if _, err := run.exec(end, begin); err != nil {
		return false
	}
	_, err = run.exec(end, rollback)
	return err == nil
}
