package memory

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/pawlq/pawl"
)

// A position is how far a List has read: all before it in the order of queue,
// state and place. It need not be the place of a record.
type position struct {
	queue string
	state pawl.State
	after key // the last place read
}

// beginning is before all places.
var beginning = key{math.MinInt64, math.MinInt64, math.MinInt64}

// next returns the least place after k.
func (k key) next() key {
	if k != beginning {
		k.seq++ // fewer than 2⁶³ jobs are ever stored
	}
	return k
}

const (
	cursorVersion = 1
	cursorFixed   = 1 + 1 + 3*8 // version, state, place
	cursorSum     = 4           // CRC-32 of the rest
	maxCursor     = cursorFixed + pawl.MaxNameLen + cursorSum
)

// String returns p as a cursor, which is opaque to callers:
//
//	version, state, rank, at, seq, queue, checksum
//
// in big endian and base64. The checksum is there to tell a damaged cursor from
// a good one; a forged one does no harm, because any position is a good one.
func (p position) String() string {
	b := make([]byte, 0, maxCursor)
	b = append(b, cursorVersion, byte(p.state))
	b = binary.BigEndian.AppendUint64(b, uint64(p.after.rank))
	b = binary.BigEndian.AppendUint64(b, uint64(p.after.at))
	b = binary.BigEndian.AppendUint64(b, uint64(p.after.seq))
	b = append(b, p.queue...)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseCursor is the inverse of String.
func parseCursor(cursor string) (position, error) {
	bad := &pawl.InvalidError{Field: "Cursor", Limit: "the Next of a page of this storage"}
	if len(cursor) > base64.RawURLEncoding.EncodedLen(maxCursor) {
		return position{}, bad
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) < cursorFixed+cursorSum {
		return position{}, bad
	}
	body, sum := b[:len(b)-cursorSum], b[len(b)-cursorSum:]
	p := position{
		state: pawl.State(body[1]),
		after: key{
			rank: int64(binary.BigEndian.Uint64(body[2:])),
			at:   int64(binary.BigEndian.Uint64(body[10:])),
			seq:  int64(binary.BigEndian.Uint64(body[18:])),
		},
		queue: string(body[cursorFixed:]),
	}
	if crc32.ChecksumIEEE(body) != binary.BigEndian.Uint32(sum) ||
		body[0] != cursorVersion || p.state < pawl.Scheduled || p.state > pawl.Canceled ||
		p.after.seq == math.MaxInt64 ||
		p.String() != cursor { // base64 can say the same in several ways
		return position{}, bad
	}
	return p, nil
}
