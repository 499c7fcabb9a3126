package redis

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"

	"github.com/pawlq/pawl"
)

// A position is how far a List has read. It need not be the place of a job.
type position struct {
	queue  string
	state  pawl.State
	after  bool // the entry below was read, else nothing of the state was
	score  int64
	member string
}

const (
	cursorVersion = 1
	cursorFixed   = 1 + 1 + 1 + 8 + 1 // version, state, after, score, length of member
	cursorSum     = 4                 // CRC-32 of the rest
	maxMember     = 29
	maxCursor     = cursorFixed + maxMember + pawl.MaxNameLen + cursorSum
)

// String returns p as a cursor, which is opaque to callers:
//
//	version, state, after, score, length of member, member, queue, checksum
//
// in big endian and base64. The checksum tells a damaged cursor from a good one.
// A forged one does no harm, because any position is a good one.
func (p position) String() string {
	b := make([]byte, 0, maxCursor)
	after := byte(0)
	if p.after {
		after = 1
	}
	b = append(b, cursorVersion, byte(p.state), after)
	b = binary.BigEndian.AppendUint64(b, uint64(p.score))
	b = append(append(b, byte(len(p.member))), p.member...)
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
	n := int(body[cursorFixed-1])
	if crc32.ChecksumIEEE(body) != binary.BigEndian.Uint32(sum) || n > len(body)-cursorFixed {
		return position{}, bad
	}
	p := position{
		state:  pawl.State(body[1]),
		after:  body[2] == 1,
		score:  int64(binary.BigEndian.Uint64(body[3:])),
		member: string(body[cursorFixed : cursorFixed+n]),
		queue:  string(body[cursorFixed+n:]),
	}
	if body[0] != cursorVersion || p.state < pawl.Scheduled || p.state > pawl.Canceled || p.String() != cursor {
		return position{}, bad
	}
	return p, nil
}
