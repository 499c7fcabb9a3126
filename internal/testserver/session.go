package testserver

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
)

// A session is one connection through a [Proxy]. It reads as much of the
// protocol as it needs to know where a request ends and whether it commits.
type session struct {
	p              *Proxy
	client, server net.Conn
	once           sync.Once
	gone           chan struct{}
	stranded       bool // under the proxy's lock

	// Of requests alone.
	statements map[string]string // prepared, by name
	sql        []string          // of the request being read

	mu    sync.Mutex
	inTx  bool    // what the last answer said
	asked []Fault // one for each request that is not answered
}

// cut ends both connections.
func (s *session) cut() {
	s.once.Do(func() {
		close(s.gone)
		s.client.Close()
		s.server.Close()
	})
}

// Types of messages.
const (
	msgQuery = 'Q' // also ends a request
	msgParse = 'P'
	msgBind  = 'B'
	msgSync  = 'S' // ends a request
	msgReady = 'Z' // ends an answer
)

// requests passes on what the client sends.
func (s *session) requests() {
	defer s.cut()
	in := bufio.NewReader(s.client)
	first, err := startup(in)
	s.expect(0) // the answer to the start is complete when the server is ready
	if err != nil || !s.p.pass(s) || !write(s.server, first) {
		return
	}
	var request []byte
	for {
		kind, m, err := message(in)
		if err != nil {
			return
		}
		s.note(kind, m[5:])
		request = append(request, m...)
		if kind != msgQuery && kind != msgSync {
			if in.Buffered() == 0 { // it may want an answer to a half
				if !write(s.server, request) {
					return
				}
				request = nil
			}
			continue
		}
		if !s.send(request) {
			return
		}
		request, s.sql = nil, nil
	}
}

// send passes on the end of a request.
func (s *session) send(request []byte) bool {
	if !s.p.pass(s) {
		return false
	}
	var fault Fault
	if s.commits() {
		fault = s.p.fault(s.sql)
	}
	if fault == CutBefore {
		return false
	}
	s.expect(fault)
	if !write(s.server, request) {
		return false
	}
	return fault != CutDuring
}

// commits predicts whether the request will commit something.
func (s *session) commits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.sql) == 0:
		return false
	case slices.ContainsFunc(s.sql, func(sql string) bool { return begins(sql, "commit") }):
		return true
	}
	return !s.inTx && !begins(s.sql[0], "begin", "rollback")
}

func begins(sql string, words ...string) bool {
	word, _, _ := strings.Cut(strings.TrimSpace(sql), " ")
	for _, w := range words {
		if strings.EqualFold(strings.TrimSuffix(word, ";"), w) {
			return true
		}
	}
	return false
}

// note keeps the text of statements.
func (s *session) note(kind byte, body []byte) {
	switch kind {
	case msgQuery:
		s.sql = append(s.sql, text(body))
	case msgParse:
		name := text(body)
		s.statements[name] = text(body[len(name)+1:])
	case msgBind:
		portal := text(body)
		s.sql = append(s.sql, s.statements[text(body[len(portal)+1:])])
	}
}

// text is what comes before the first zero.
func text(b []byte) string {
	before, _, _ := bytes.Cut(b, []byte{0})
	return string(before)
}

func (s *session) expect(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, f)
}

// answers passes on what the server sends.
func (s *session) answers() {
	defer s.cut()
	in := bufio.NewReader(s.server)
	for {
		kind, m, err := message(in)
		if err != nil {
			return
		}
		fault := s.answered(kind, m[5:])
		if fault == CutAfter && kind != msgReady {
			continue
		}
		// An answer may be faster than the cut of its request.
		if fault == CutDuring || fault == CutAfter || fault == CutTorn && kind == msgReady {
			return
		}
		if !s.p.passes(s) || !write(s.client, m) {
			return
		}
	}
}

// answered returns the fault of the request that a message answers.
func (s *session) answered(kind byte, body []byte) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.asked) == 0 {
		return 0
	}
	fault := s.asked[0]
	if kind == msgReady {
		s.asked = s.asked[1:]
		s.inTx = len(body) > 0 && body[0] != 'I'
	}
	return fault
}

// startup reads the message that begins a connection, which has no type.
func startup(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	return rest(r, size[:])
}

// message reads one message, its type and length included.
func message(r *bufio.Reader) (kind byte, m []byte, err error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	m, err = rest(r, head)
	return head[0], m, err
}

// maxMessage is more than any test sends, and than the protocol's garbage.
const maxMessage = 256 << 20

// rest reads a message whose head ends with its length.
func rest(r io.Reader, head []byte) ([]byte, error) {
	n := int(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
	if n < 0 || n > maxMessage {
		return nil, io.ErrUnexpectedEOF
	}
	m := append(head, make([]byte, n)...)
	_, err := io.ReadFull(r, m[len(head):])
	return m, err
}

func write(w io.Writer, b []byte) bool {
	_, err := w.Write(b)
	return err == nil
}
