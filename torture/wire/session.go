package wire

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"
)

// A session is one connection through a Proxy.
type session struct {
	p              *Proxy
	codec          codec
	client, server net.Conn
	once           sync.Once
	gone           chan struct{}

	mu    sync.Mutex
	asked []Cut // one for each request that is not answered
}

// cut ends both connections.
func (s *session) cut() {
	s.once.Do(func() {
		close(s.gone)
		s.client.Close()
		s.server.Close()
	})
}

func (s *session) run() {
	for range s.codec.greets() {
		s.expect(0)
	}
	var wg sync.WaitGroup
	wg.Go(s.requests)
	wg.Go(s.replies)
	wg.Wait()
}

// requests passes on what the client sends.
func (s *session) requests() {
	defer s.cut()
	in, out := bufio.NewReader(s.client), bufio.NewWriter(s.server)
	for {
		m, asks, commits, err := s.codec.request(in)
		if err != nil || !s.pass(asks) {
			return
		}
		fault := s.fault(commits)
		if fault == Before {
			return
		}
		if asks {
			s.expect(fault)
		}
		if _, err := out.Write(m); err != nil {
			return
		}
		if in.Buffered() > 0 && fault != During {
			continue
		}
		if out.Flush() != nil || fault == During {
			return
		}
	}
}

// fault asks what is to become of a request.
func (s *session) fault(commits bool) Cut {
	if !commits {
		return 0
	}
	_, _, decide := s.p.state()
	if decide == nil {
		return 0
	}
	return decide()
}

// replies passes on what the server sends.
func (s *session) replies() {
	defer s.cut()
	in, out := bufio.NewReader(s.server), bufio.NewWriter(s.client)
	for {
		m, whole, err := s.codec.reply(in)
		if err != nil {
			return
		}
		fault := s.answered(whole)
		switch {
		case fault == During, fault == After && whole:
			return
		case fault == After:
			continue
		}
		if !s.pass(false) {
			return
		}
		for range s.copies(m) {
			if _, err := out.Write(m); err != nil {
				return
			}
		}
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

// copies is how often a message of the server is passed on.
func (s *session) copies(m []byte) int {
	if !s.codec.wakes(m) {
		return 1
	}
	s.p.mu.Lock()
	f := s.p.wakes
	s.p.mu.Unlock()
	if f == nil {
		return 1
	}
	return f()
}

// pass waits while nothing passes, a request also as long as it is delayed, and
// reports false if the session was cut.
func (s *session) pass(delayed bool) bool {
	open, delay, _ := s.p.state()
	if delayed && delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.gone:
			return false
		}
	}
	select {
	case <-open:
		return true
	case <-s.gone:
		return false
	}
}

func (s *session) expect(c Cut) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, c)
}

// answered returns the fault of the request that a message answers.
func (s *session) answered(whole bool) Cut {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.asked) == 0 {
		return 0 // sent unasked
	}
	c := s.asked[0]
	if whole {
		s.asked = s.asked[1:]
	}
	return c
}

// maxMessage is more than any run sends.
const maxMessage = 256 << 20

// sized reads a message: head is what was read, of which size tells how much is to
// follow.
func sized(r io.Reader, head []byte, size int) ([]byte, error) {
	if size < 0 || size > maxMessage {
		return nil, io.ErrUnexpectedEOF
	}
	m := append(head, make([]byte, size)...)
	_, err := io.ReadFull(r, m[len(head):])
	return m, err
}

func bigEndian(b []byte) int { return int(binary.BigEndian.Uint32(b)) }
