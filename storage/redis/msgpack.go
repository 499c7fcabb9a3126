package redis

import (
	"encoding/binary"
	"errors"
	"math"
)

// Scripts and the Store exchange MessagePack, the only binary format that the
// server's Lua can read and write. This is the part of it that they use.

// A message is MessagePack under construction.
type message []byte

func (m *message) int(v int64) {
	switch {
	case v >= 0 && v < 128:
		*m = append(*m, byte(v))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		*m = binary.BigEndian.AppendUint32(append(*m, 0xd2), uint32(v))
	default:
		*m = binary.BigEndian.AppendUint64(append(*m, 0xd3), uint64(v))
	}
}

func (m *message) float(v float64) {
	*m = binary.BigEndian.AppendUint64(append(*m, 0xcb), math.Float64bits(v))
}

func (m *message) bool(v bool) {
	if v {
		*m = append(*m, 0xc3)
		return
	}
	*m = append(*m, 0xc2)
}

func (m *message) flag(v bool) {
	if v {
		m.int(1)
		return
	}
	m.int(0)
}

func appendBytes[T string | []byte](m *message, v T) {
	m.bytesHeader(len(v))
	*m = append(*m, v...)
}

// bytesHeader announces n bytes, which the caller appends.
func (m *message) bytesHeader(n int) {
	switch {
	case n < 32:
		*m = append(*m, 0xa0|byte(n))
	case n < 1<<16:
		*m = binary.BigEndian.AppendUint16(append(*m, 0xda), uint16(n))
	default:
		*m = binary.BigEndian.AppendUint32(append(*m, 0xdb), uint32(n))
	}
}

func (m *message) string(v string) { appendBytes(m, v) }
func (m *message) bytes(v []byte)  { appendBytes(m, v) }

func (m *message) array(n int) {
	if n < 16 {
		*m = append(*m, 0x90|byte(n))
		return
	}
	*m = binary.BigEndian.AppendUint32(append(*m, 0xdd), uint32(n))
}

func (m *message) object(n int) {
	if n < 16 {
		*m = append(*m, 0x80|byte(n))
		return
	}
	*m = binary.BigEndian.AppendUint32(append(*m, 0xdf), uint32(n))
}

// errDamaged means that something stored is not what a Store writes.
var errDamaged = errors.New("pawl/redis: a stored record is damaged")

// A reader reads MessagePack. After an error everything is zero.
type reader struct {
	data []byte
	err  error
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.data) {
		r.err = errDamaged
		return nil
	}
	b := r.data[:n:n]
	r.data = r.data[n:]
	return b
}

// uint reads a big-endian number of n bytes.
func (r *reader) uint(n int) uint64 {
	var v uint64
	for _, b := range r.take(n) {
		v = v<<8 | uint64(b)
	}
	return v
}

// array reads how many values an array has.
func (r *reader) array() int {
	switch tag := byte(r.uint(1)); {
	case tag>>4 == 0x9:
		return int(tag & 0xf)
	case tag == 0xdc:
		return int(r.uint(2))
	case tag == 0xdd:
		return int(r.uint(4))
	}
	r.err = errDamaged
	return 0
}

// A value is a number or a string. The two are told apart by what is expected:
// a string that is not set is the number 0.
type value struct {
	n int64
	s []byte
}

func (r *reader) value() value {
	switch tag := byte(r.uint(1)); {
	case tag < 0x80:
		return value{n: int64(tag)}
	case tag >= 0xe0:
		return value{n: int64(int8(tag))}
	case tag>>5 == 0x5:
		return value{s: r.take(int(tag & 0x1f))}
	case tag >= 0xc4 && tag <= 0xc6: // bytes
		return value{s: r.take(int(r.uint(1 << (tag - 0xc4))))}
	case tag >= 0xd9 && tag <= 0xdb: // string
		return value{s: r.take(int(r.uint(1 << (tag - 0xd9))))}
	case tag >= 0xcc && tag <= 0xcf: // unsigned
		return value{n: int64(r.uint(1 << (tag - 0xcc)))}
	case tag >= 0xd0 && tag <= 0xd3: // signed
		return value{n: signed(r.uint(1<<(tag-0xd0)), 8<<(tag-0xd0))}
	case tag == 0xcb:
		return value{n: int64(math.Float64frombits(r.uint(8)))}
	}
	r.err = errDamaged
	return value{}
}

func signed(v uint64, bits int) int64 { return int64(v<<(64-bits)) >> (64 - bits) }
