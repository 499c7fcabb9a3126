package task

import (
	"bytes"
	"fmt"
	"reflect"
	"runtime/debug"
)

// A Codec turns Args and results into bytes and back. It must be safe for
// concurrent use.
//
// Decode stores what data holds in the value that v points to. It must neither
// keep data nor panic on bytes that Encode never made; an error it returns is
// reported by its type alone, since its text may quote what it read (see
// [DecodeError]).
//
// [Gzip], [Encrypted] and [Versioned] wrap another codec. A codec is the place for
// that: it sees the payload on all ways in and out, while middleware sees only
// enqueues and runs.
type Codec interface {
	Encode(v any) ([]byte, error)
	Decode(data []byte, v any) error
}

// A Coder is Args, or a result, with a codec of its own instead of [JSON]. The
// codec is a method of the type, and not a setting of Register or of a Queue,
// so that those who enqueue and those who run can't disagree about it. It is
// called on zero values too, and must not return nil.
//
// To change the codec of a kind that has jobs waiting, let the new codec decode
// both forms, or use a new kind.
type Coder interface{ Codec() Codec }

// Raw is a codec for types whose underlying type is []byte or string: the
// payload is the value, byte for byte.
type Raw struct{}

// Encode returns a copy of v.
func (Raw) Encode(v any) ([]byte, error) {
	r := reflect.Indirect(reflect.ValueOf(v))
	switch {
	case isBytes(r):
		return bytes.Clone(r.Bytes()), nil
	case r.Kind() == reflect.String:
		return []byte(r.String()), nil
	}
	return nil, rawTypeError(v)
}

// Decode stores a copy of data in the value that v points to.
func (Raw) Decode(data []byte, v any) error {
	p := reflect.ValueOf(v)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		return rawTypeError(v)
	}
	switch r := p.Elem(); {
	case isBytes(r):
		r.SetBytes(bytes.Clone(data))
		return nil
	case r.Kind() == reflect.String:
		r.SetString(string(data))
		return nil
	}
	return rawTypeError(v)
}

func isBytes(v reflect.Value) bool {
	return v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8
}

func rawTypeError(v any) error {
	return &typeError{fmt.Sprintf("task: Raw takes types of []byte or string, not %T", v)}
}

// A typeError speaks of types alone, so its text may be stored.
type typeError struct{ text string }

func (e *typeError) Error() string { return e.text }

func codecOf(v any) Codec {
	c, ok := v.(Coder)
	if !ok {
		return JSON{}
	}
	if codec := c.Codec(); codec != nil {
		return codec
	}
	return noCodec{}
}

// noCodec stands for the nil that a Codec method returned. To take it for JSON
// would write Args that were to be encrypted in plain.
type noCodec struct{}

var errNoCodec = &typeError{"its method Codec returned nil"}

func (noCodec) Encode(any) ([]byte, error) { return nil, errNoCodec }
func (noCodec) Decode([]byte, any) error   { return errNoCodec }

func (noCodec) check(t reflect.Type) error {
	return fmt.Errorf("task: method Codec of %v returned nil", t)
}

func orJSON(c Codec) Codec {
	if c == nil {
		return JSON{}
	}
	return c
}

// uniqueForm returns bytes that are equal for equal values, where the encoded
// form is not, see UniqueByArgs.
func uniqueForm(c Codec, v any) ([]byte, error) {
	if u, ok := c.(interface{ unique(v any) ([]byte, error) }); ok {
		return u.unique(v)
	}
	return c.Encode(v)
}

// checkCodec reports what makes c unfit for values of type t.
func checkCodec(c Codec, t reflect.Type) error {
	if k, ok := c.(interface{ check(t reflect.Type) error }); ok {
		return k.check(t)
	}
	return nil
}

func encode(v any) (data []byte, err error) {
	defer func() {
		err = recovered(recover(), err)
		if err != nil {
			data, err = nil, &EncodeError{Type: fmt.Sprintf("%T", v), Err: err}
		}
	}()
	return codecOf(v).Encode(v)
}

// recovered returns the error that a codec's panic is, or else err.
func recovered(value any, err error) error {
	if value == nil {
		return err
	}
	return &panicError{value, debug.Stack()}
}

// decode decodes into a new T.
func decode[T any](data []byte) (T, error) { return decodeBy[T](codecOf(zero[T]()), data) }

// decodeBy decodes into a new T, through the pointer itself where T is one, so
// that no payload can make it nil.
func decodeBy[T any](c Codec, data []byte) (v T, err error) {
	v = zero[T]()
	defer func() {
		if err = recovered(recover(), err); err != nil {
			v = zero[T]()
		}
	}()
	if reflect.TypeFor[T]().Kind() == reflect.Pointer {
		return v, c.Decode(data, v)
	}
	err = c.Decode(data, &v)
	return v, err
}
