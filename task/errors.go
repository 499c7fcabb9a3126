package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/pawlq/pawl"
)

// An EncodeError says that Args or a result have no encoded form. Its text names
// types, never values. It matches [pawl.ErrInvalid]: nothing was stored.
type EncodeError struct {
	Type string // of the value
	Err  error  // what the codec said; its text may quote the value
}

func (e *EncodeError) Error() string {
	return fmt.Sprintf("task: a value of type %s does not encode: %s", e.Type, describe(e.Err))
}

// Is reports that e is pawl.ErrInvalid.
func (e *EncodeError) Is(target error) bool { return target == pawl.ErrInvalid }

// Unwrap returns e.Err.
func (e *EncodeError) Unwrap() error { return e.Err }

// A DecodeError says that a payload or a result is not what its type can read.
// Its text is kept with the job and may be logged, so it says where and of
// which sort the fault is but never quotes what was read.
//
// A job whose payload does not decode is buried at once: the same bytes would
// fail the same way at each attempt. In the dead-letter queue it keeps its
// payload, and a kick runs it once a program that can read it is in place. A
// panic of a codec counts as an error that it returned.
//
// A job that only lacks a newer program, for its version ([Versioned]) or its key
// ([Encrypted]), is handed back instead with a growing delay, of at most a minute,
// and spends no attempt. It shows in the job's Counts.Snoozes; what is lacking, in
// the log of the pool, once for each kind, and in its events. What middleware sees
// is both a [pawl.Snooze] and a DecodeError.
type DecodeError struct {
	Kind string // of the job
	Part string // "payload" or "result"
	Size int    // in bytes
	Err  error  // what the codec said; its text may quote what was read
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("task: %s of kind %q (%d bytes) does not decode: %s", e.Part, e.Kind, e.Size, describe(e.Err))
}

// Unwrap returns e.Err.
func (e *DecodeError) Unwrap() error { return e.Err }

// A newerError says that this program can't read a payload, but another may that
// has what it lacks: a version, or a key.
type newerError struct{ text string }

func (e *newerError) Error() string { return e.text }

// Lacking tells a pool, which knows no errors of this package, that the job was
// handed back for what this program lacks.
func (e *newerError) Lacking() string { return e.text }

// A panicError is what a codec's panic becomes. Its text may quote the value.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", e.value, e.stack) }

// Unwrap returns the value if it is an error.
func (e *panicError) Unwrap() error {
	err, _ := e.value.(error)
	return err
}

// A FailedError says that a job ended without completing.
type FailedError struct {
	ID     pawl.ID
	Kind   string
	State  pawl.State  // Buried or Canceled
	Reason pawl.Reason // why
	Last   string      // the text of the last recorded failure; may be empty
}

func (e *FailedError) Error() string {
	s := fmt.Sprintf("task: job %v of kind %q is %v (%s)", e.ID, e.Kind, e.State, e.Reason)
	if e.Last != "" {
		s += ": " + e.Last
	}
	return s
}

// describe says what is wrong without the text of err, which may quote the
// value: encoding/json quotes numbers, package time quotes all it parses.
func describe(err error) string {
	var (
		syntax  *json.SyntaxError
		kind    *json.UnmarshalTypeError
		noType  *json.UnsupportedTypeError
		noValue *json.UnsupportedValueError
		ours    *typeError
		newer   *newerError
		panics  *panicError
	)
	switch {
	case errors.As(err, &panics):
		return fmt.Sprintf("the codec panicked with a value of type %T", panics.value)
	case errors.Is(err, errTrailing):
		return "data after the JSON value"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "it ends too early"
	case errors.As(err, &ours):
		return ours.text
	case errors.As(err, &newer):
		return newer.Error()
	case errors.As(err, &syntax):
		return fmt.Sprintf("not JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		return describeType(kind)
	case errors.As(err, &noType):
		return fmt.Sprintf("JSON has no form for type %v", noType.Type)
	case errors.As(err, &noValue):
		return "JSON has no form for one of its values"
	case strings.HasPrefix(err.Error(), "json: unknown field "):
		// It has no type of its own.
		return "a field that the type lacks"
	}
	return fmt.Sprintf("error of type %T", innermost(err))
}

func describeType(e *json.UnmarshalTypeError) string {
	// Value is "string", but "number 12345".
	sort, _, _ := strings.Cut(e.Value, " ")
	s := fmt.Sprintf("JSON %s at byte %d does not fit Go type %v", sort, e.Offset, e.Type)
	if e.Field != "" {
		s += fmt.Sprintf(" of field %q", e.Field)
	}
	return s
}

// innermost returns the error that tells most by its type.
func innermost(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}
