package wire

import (
	"bufio"
	"encoding/binary"
	"io"
	"strings"
	"sync"
)

// MySQL is the protocol of MySQL and MariaDB, without compression and TLS.
func MySQL() codec { return &mysql{prepared: map[uint32]bool{}} }

type mysql struct {
	greeted bool // the client has

	mu      sync.Mutex
	phase   phase     // of the answer that is being read
	inTx    bool      // what the last answer said
	lastEOF bool      // answers have one EOF, not two
	pending []request // that are not answered

	prepared map[uint32]bool // statements by number: whether they write
	wrote    bool            // something, in the transaction
}

// A request is one to be answered.
type request struct{ prepares, writes bool }

// phase is where in an answer a message is.
type phase int

const (
	first phase = iota
	columns
	rows
)

// Commands of the client.
const (
	comQuit      = 0x01
	comQuery     = 0x03
	comPrepare   = 0x16
	comExecute   = 0x17
	comLongData  = 0x18
	comCloseStmt = 0x19
)

const (
	capDeprecateEOF = 1 << 24
	statusInTx      = 1
	statusMore      = 8
	eofPacket       = 0xfe
	maxPacket       = 1<<24 - 1
)

// greets: the handshake comes unasked; what follows it is the answer to the
// client's.
func (c *mysql) wakes([]byte) bool { return false }

func (c *mysql) greets() int { return 1 }

func (c *mysql) request(r *bufio.Reader) (m []byte, asks, commits bool, err error) {
	m, body, err := mysqlPacket(r)
	if err != nil {
		return nil, false, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.greeted {
		c.greeted = true
		c.lastEOF = len(body) >= 4 && binary.LittleEndian.Uint32(body)&capDeprecateEOF != 0
		c.pending = append(c.pending, request{})
		return m, true, false, nil
	}
	if len(body) == 0 || m[3] != 0 { // goes on with a request, or with a handshake
		return m, false, false, nil
	}
	switch body[0] {
	case comQuit, comLongData, comCloseStmt:
		return m, false, false, nil
	}
	c.pending = append(c.pending, request{body[0] == comPrepare, body[0] == comPrepare && writes(body[1:])})
	return m, true, c.commits(body), nil
}

// commits predicts whether a command commits something.
func (c *mysql) commits(body []byte) bool {
	changes := false
	switch {
	case body[0] == comExecute && len(body) >= 5:
		changes = c.prepared[binary.LittleEndian.Uint32(body[1:])]
	case body[0] == comQuery:
		switch word(string(body[1:min(len(body), 40)])) {
		case "COMMIT":
			changes = c.wrote
			c.wrote = false
			return changes
		case "BEGIN", "START":
			c.wrote = false
		default:
			changes = writes(body[1:])
		}
	}
	c.wrote = c.wrote || changes && c.inTx
	return changes && !c.inTx
}

// writes reports whether a statement writes, or would if it found something. One may follow
// settings that are made for it alone.
func writes(sql []byte) bool {
	text := string(sql[:min(len(sql), 200)])
	if word(text) == "SET" {
		_, text, _ = strings.Cut(text, " FOR ")
	}
	switch word(text) {
	case "INSERT", "UPDATE", "DELETE", "REPLACE":
		return true
	case "WITH":
		return read(string(sql)).writes
	}
	return false
}

func (c *mysql) reply(r *bufio.Reader) (m []byte, whole bool, err error) {
	m, body, err := mysqlPacket(r)
	if err != nil {
		return nil, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		return m, true, nil // the server's handshake, or its last words
	}
	whole = c.ends(body)
	if whole {
		c.phase = first
		c.pending = c.pending[1:]
	}
	return m, whole, nil
}

// ends follows an answer and reports whether body is its last packet.
func (c *mysql) ends(body []byte) bool {
	kind := byte(0)
	if len(body) > 0 {
		kind = body[0]
	}
	isEOF := kind == eofPacket && (len(body) < 9 || c.lastEOF && len(body) < maxPacket)
	switch {
	case c.pending[0].prepares:
		if kind == 0 && len(body) >= 5 {
			c.prepared[binary.LittleEndian.Uint32(body[1:])] = c.pending[0].writes
		}
		// The answer to a prepare is of several packets. It commits nothing, and the
		// client waits for all of it, so it may be taken for whole at once.
		return true
	case c.phase == first && kind == 0x00:
		return !c.status(okStatus(body))
	case kind == 0xff && c.phase != columns:
		return true
	case c.phase == first:
		if isEOF { // a change of the way to log in
			return true
		}
		c.phase = columns
		if c.lastEOF {
			c.phase = rows
		}
		return false
	case !isEOF:
		return false
	case c.phase == columns:
		c.phase = rows
		return false
	}
	status := 0
	if c.lastEOF {
		status = okStatus(body)
	} else if len(body) >= 5 {
		status = int(binary.LittleEndian.Uint16(body[3:]))
	}
	return !c.status(status)
}

// status takes in what a packet says of the session and reports whether another
// result follows.
func (c *mysql) status(flags int) (more bool) {
	c.inTx = flags&statusInTx != 0
	c.phase = first
	return flags&statusMore != 0
}

// okStatus reads the flags of an OK packet.
func okStatus(body []byte) int {
	b := body[1:]
	for range 2 { // rows that were changed, last ID
		n := lengthOf(b)
		if n > len(b) {
			return 0
		}
		b = b[n:]
	}
	if len(b) < 2 {
		return 0
	}
	return int(binary.LittleEndian.Uint16(b))
}

// lengthOf is how many bytes a number takes.
func lengthOf(b []byte) int {
	if len(b) == 0 {
		return 1
	}
	switch b[0] {
	case 0xfc:
		return 3
	case 0xfd:
		return 4
	case 0xfe:
		return 9
	default:
		return 1
	}
}

func mysqlPacket(r *bufio.Reader) (m, body []byte, err error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, nil, err
	}
	size := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	m, err = sized(r, head, size)
	if err != nil {
		return nil, nil, err
	}
	return m, m[4:], nil
}
