package task

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"reflect"
	"sync"
)

// Gzip is a codec that compresses what another makes, if that makes it smaller.
//
//	func (Report) Codec() task.Codec { return task.Gzip{} }
//
// It also decodes what the other codec made alone, unless that begins like gzip,
// so a kind that has jobs waiting can begin to use it once all its workers do.
type Gzip struct {
	Codec Codec // what is compressed; nil means JSON

	// MaxSize bounds the plain form, in bytes. What claims to be larger is
	// refused before memory is set aside for it, and what proves to be larger as
	// well. 0 means 16 MiB.
	MaxSize int
}

const (
	gzipMagic   = "\x1f\x8b"
	gzipTrailer = 8    // bytes: checksum and size
	maxRatio    = 1032 // of deflate; a payload can't hold more times its size
)

// Compressors are large.
var (
	gzipWriters = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}
	gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}
)

// Encode returns what the other codec makes of v, compressed if that is smaller.
func (c Gzip) Encode(v any) ([]byte, error) {
	plain, err := orJSON(c.Codec).Encode(v)
	if err != nil {
		return nil, err
	}
	if err := c.checkSize(int64(len(plain))); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := gzipWriters.Get().(*gzip.Writer)
	defer func() {
		w.Reset(nil) // w is kept, b is not
		gzipWriters.Put(w)
	}()
	w.Reset(&b)
	_, _ = w.Write(plain) // a buffer refuses nothing
	_ = w.Close()
	if b.Len() < len(plain) || bytes.HasPrefix(plain, []byte(gzipMagic)) {
		return b.Bytes(), nil
	}
	return plain, nil
}

// Decode lets the other codec decode data, uncompressed.
func (c Gzip) Decode(data []byte, v any) error {
	plain, err := c.plain(data)
	if err != nil {
		return err
	}
	return orJSON(c.Codec).Decode(plain, v)
}

func (c Gzip) plain(data []byte) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte(gzipMagic)) {
		return data, c.checkSize(int64(len(data)))
	}
	if len(data) <= gzipTrailer {
		return nil, io.ErrUnexpectedEOF
	}
	size := int64(binary.LittleEndian.Uint32(data[len(data)-4:]))
	if err := c.checkSize(size); err != nil {
		return nil, err
	}
	if size > maxRatio*int64(len(data)) {
		return nil, errGzip
	}
	return gunzip(data, int(size))
}

var errGzip = &typeError{"damaged gzip data"}

// gunzip returns the size bytes that data holds.
func gunzip(data []byte, size int) ([]byte, error) {
	r := gzipReaders.Get().(*gzip.Reader)
	in := bytes.NewReader(data)
	defer func() {
		in.Reset(nil) // r is kept, data is not
		gzipReaders.Put(r)
	}()
	if err := r.Reset(in); err != nil {
		return nil, errGzip
	}
	r.Multistream(false)
	plain := make([]byte, size)
	if _, err := io.ReadFull(r, plain); err != nil {
		return nil, errGzip
	}
	// The end proves the checksum.
	if n, err := r.Read(make([]byte, 1)); n > 0 || err != io.EOF || in.Len() > 0 {
		return nil, errGzip
	}
	return plain, nil
}

func (c Gzip) checkSize(n int64) error {
	if limit := cmp.Or(c.MaxSize, 16<<20); n > int64(limit) {
		return &typeError{fmt.Sprintf("%d bytes uncompressed, at most %d are allowed", n, limit)}
	}
	return nil
}

// unique is the plain form: what gzip makes of it may differ from one version of
// Go to the next.
func (c Gzip) unique(v any) ([]byte, error) { return uniqueForm(orJSON(c.Codec), v) }

func (c Gzip) check(t reflect.Type) error { return checkCodec(c.Codec, t) }

func (c Gzip) inner() Codec { return c.Codec }
