package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"

	"github.com/pawlq/pawl"
)

// Errors of this engine. They wrap the driver's, which errors.As still finds.
var (
	// ErrDiskFull means that the file could not grow. What was asked for was
	// not stored, nothing else is lost, and calls succeed again when there is
	// room.
	ErrDiskFull = errors.New("pawl/sqlite: disk is full")
	// ErrReadOnly means that the file can't be written. A folder in which SQLite
	// can't make its files is told by a text only: it has the same code for
	// that as for too many open files.
	ErrReadOnly = errors.New("pawl/sqlite: file is read-only")
	// ErrNotDatabase means that the file is something else, or damaged.
	ErrNotDatabase = errors.New("pawl/sqlite: not a database")
	// ErrNoWAL means that the database can't be put in WAL mode, as with one
	// in memory or on some network file systems.
	ErrNoWAL = errors.New("pawl/sqlite: journal mode WAL is needed")
)

// Primary result codes of SQLite (https://www.sqlite.org/rescode.html).
const (
	codeError        = 1
	codeBusy         = 5
	codeLocked       = 6
	codeNoMemory     = 7
	codeReadOnly     = 8
	codeInterrupt    = 9
	codeIO           = 10
	codeCorrupt      = 11
	codeFull         = 13
	codeCantOpen     = 14
	codeMismatch     = 20
	codeNotADB       = 26
	codeCheck        = 19 | 1<<8
	codeDataType     = 19 | 12<<8
	codeBusySnapshot = codeBusy | 2<<8
	codeShmSize      = codeIO | 19<<8
	primaryCode      = 0xff
)

// code returns the primary SQLite result code of err, 0 if it has none.
func code(err error) int { return extendedCode(err) & primaryCode }

// extendedCode returns the full result code of err. It knows the errors of
// both drivers without linking the one that needs cgo.
func extendedCode(err error) int {
	for ; err != nil; err = errors.Unwrap(err) {
		switch e := err.(type) {
		case interface{ Code() int }:
			return e.Code()
		case interface{ Unwrap() []error }:
			for _, inner := range e.Unwrap() {
				if c := extendedCode(inner); c != 0 {
					return c
				}
			}
			return 0
		}
		// The cgo driver's error is a struct with a numeric field.
		if v := reflect.ValueOf(err); v.Kind() == reflect.Struct {
			if f := v.FieldByName("ExtendedCode"); f.IsValid() && f.CanInt() {
				return int(f.Int())
			}
		}
	}
	return 0
}

func isBusy(err error) bool {
	c := code(err)
	return c == codeBusy || c == codeLocked
}

// isOldSnapshot reports whether a transaction can't write any more because it
// has read before someone else wrote. It is a kind of busy that does not pass.
func isOldSnapshot(err error) bool { return extendedCode(err) == codeBusySnapshot }

// ours reports whether err says that a request was refused and that the
// transaction it ran in is as good as before.
func ours(err error) bool {
	return (errors.Is(err, pawl.ErrFull) || errors.Is(err, pawl.ErrInvalid)) && !isUndone(err)
}

func isUndone(err error) bool {
	var undo *undoError
	return errors.As(err, &undo)
}

// endsTransaction reports whether a caller's transaction can't go on after a
// call that failed with err. After the errors with these codes SQLite may have
// rolled it back, or should be made to.
func endsTransaction(err error) bool {
	if isUndone(err) || errors.Is(err, errNoTransaction) || errors.Is(err, sql.ErrTxDone) {
		return true
	}
	switch code(err) {
	case codeBusy, codeLocked, codeNoMemory, codeInterrupt, codeIO, codeCorrupt, codeFull, codeNotADB:
		return true
	}
	return false
}

// explain wraps what a driver said in the error that callers match. The
// errors of package pawl pass through as they are.
func explain(what string, err error) error {
	if err == nil || ours(err) || errors.Is(err, pawl.ErrClosed) || errors.Is(err, pawl.ErrTxOver) ||
		errors.Is(err, pawl.ErrSchema) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if extendedCode(err) == codeShmSize { // the -shm file could not grow
		return fmt.Errorf("%s: %w: %w", what, ErrDiskFull, err)
	}
	switch code(err) {
	case codeFull:
		return fmt.Errorf("%s: %w: %w", what, ErrDiskFull, err)
	case codeReadOnly:
		return fmt.Errorf("%s: %w: %w", what, ErrReadOnly, err)
	case codeNotADB, codeCorrupt:
		return fmt.Errorf("%s: %w: %w", what, ErrNotDatabase, err)
	case codeCantOpen:
		return fmt.Errorf("pawl/sqlite: %s: the file, or its -wal or -shm, can't be opened or created; "+
			"is the folder read-only?: %w", what, err)
	}
	return fmt.Errorf("pawl/sqlite: %s: %w", what, err)
}
