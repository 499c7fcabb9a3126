package task

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"sync"
)

// JSON is the codec of types that have none of their own. Fields without a
// value in the payload keep their zero value. Numbers decoded into an interface
// become [json.Number], so that no digit is lost; text that is not UTF-8 does
// not survive ([]byte does). Data after the value is an error.
type JSON struct {
	// DisallowUnknownFields makes a field that the type lacks an error. By
	// default such a field is ignored, so that workers which are not updated
	// yet can run the jobs of newer programs.
	DisallowUnknownFields bool
}

// Encode returns v as JSON.
func (JSON) Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// A jsonDecoder reads payload after payload as one stream of values, since to
// make a decoder costs more than a small payload does. One that met an error
// remembers it, and one with a large buffer would hold on to it: both are
// dropped. (To use encoders again does not pay: they keep their own memory.)
type jsonDecoder struct {
	in   bytes.Reader
	dec  *json.Decoder
	read int64 // bytes of the payloads before
}

const maxReused = 64 << 10 // bytes of payload

// Strict decoders can't be made lenient again.
var jsonDecoders, strictDecoders = decoderPool(false), decoderPool(true)

func decoderPool(strict bool) *sync.Pool {
	return &sync.Pool{New: func() any {
		d := new(jsonDecoder)
		d.dec = json.NewDecoder(&d.in)
		d.dec.UseNumber()
		if strict {
			d.dec.DisallowUnknownFields()
		}
		return d
	}}
}

var errTrailing = errors.New("task: data after the JSON value")

// Decode stores the JSON value in data in the value that v points to.
func (c JSON) Decode(data []byte, v any) error {
	pool := jsonDecoders
	if c.DisallowUnknownFields {
		pool = strictDecoders
	}
	// What one payload leaves unread would shift the offsets of the next.
	value := bytes.TrimRight(data, " \t\r\n")
	d := pool.Get().(*jsonDecoder)
	d.in.Reset(value)
	if err := d.dec.Decode(v); err != nil {
		return cmp.Or(syntaxError(data), err)
	}
	if d.dec.InputOffset()-d.read < int64(len(value)) {
		return errTrailing
	}
	if len(value) <= maxReused {
		d.in.Reset(nil) // let go of data
		d.read += int64(len(value))
		pool.Put(d)
	}
	return nil
}

// syntaxError returns what is wrong with data as JSON, counted from its own
// beginning instead of from that of a stream.
func syntaxError(data []byte) error {
	return json.NewDecoder(bytes.NewReader(data)).Decode(new(json.RawMessage))
}
