// Package wire stands between clients and a server and hinders them: it cuts
// connections at random or just where something is committed, lets nothing pass, or
// makes all of it slow. It reads as much of the protocols of PostgreSQL, MySQL and
// Redis as it needs to know where a request commits and where its answer ends.
package wire

import (
	"bufio"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// A Cut is what happens to a request that commits.
type Cut int

const (
	Before Cut = iota + 1 // it does not reach the server
	During                // it does, and both ends are cut off at once
	After                 // the server answers, and none of that arrives
)

// Cuts lists all of them.
func Cuts() []Cut { return []Cut{Before, During, After} }

func (c Cut) String() string { return [...]string{"none", "before", "during", "after"}[c] }

// A Protocol makes what reads one connection.
type Protocol func() codec

// codec reads the messages of one connection. request and reply are called from
// two goroutines; what they share is the codec's business.
type codec interface {
	// request reads one message of the client: whether the server will answer it,
	// and whether it commits something.
	request(r *bufio.Reader) (m []byte, asks, commits bool, err error)
	// reply reads one message of the server, and whether it completes an answer.
	reply(r *bufio.Reader) (m []byte, whole bool, err error)
	// wakes reports whether a message of the server only says that something has happened.
	wakes(m []byte) bool
	// greets is how many answers the server gives unasked at the start.
	greets() int
}

// A Proxy listens on a socket and passes on what it is sent.
type Proxy struct {
	dir, server string
	protocol    Protocol
	listener    net.Listener
	wg          sync.WaitGroup

	mu     sync.Mutex
	decide func() Cut
	wakes  func() int
	delay  time.Duration
	open   chan struct{} // closed unless nothing passes
	conns  map[*session]struct{}
	ended  bool
}

// Listen starts a proxy before the server at a socket. Its own socket has the name
// given, in a folder of its own.
func Listen(p Protocol, server, name string) (*Proxy, error) {
	dir, err := os.MkdirTemp("/tmp", "pawl-wire-*") // a socket's path is short
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	x := &Proxy{dir: dir, server: server, protocol: p, listener: l, open: make(chan struct{}), conns: map[*session]struct{}{}}
	close(x.open)
	x.wg.Go(x.accept)
	return x, nil
}

// Dir is the folder of the proxy's socket, Addr the socket.
func (p *Proxy) Dir() string  { return p.dir }
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Decide makes the proxy ask f about each request that commits; 0 lets it pass.
func (p *Proxy) Decide(f func() Cut) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide = f
}

// Wakes makes the proxy ask f how often each message is passed on that only says that
// something has happened, which may get lost and come twice.
func (p *Proxy) Wakes(f func() int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wakes = f
}

// Slow makes each request take d longer.
func (p *Proxy) Slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Hold lets nothing pass, and keeps connections, until Release.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = make(chan struct{})
}

// Release lets pass what was held.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.open)
}

// Cut cuts all connections and returns how many there were.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.conns {
		s.cut()
	}
	return len(p.conns)
}

// Close ends the proxy and all connections.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	err := p.listener.Close()
	p.Cut()
	p.wg.Wait()
	return errors.Join(err, os.RemoveAll(p.dir))
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("unix", p.server)
		if err != nil {
			client.Close() // as a server that is down does
			continue
		}
		p.begin(&session{p: p, codec: p.protocol(), client: client, server: server, gone: make(chan struct{})})
	}
}

func (p *Proxy) begin(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		s.cut()
		return
	}
	p.conns[s] = struct{}{}
	p.wg.Go(func() {
		s.run()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, s)
	})
}

// state is what applies to a message now.
func (p *Proxy) state() (open <-chan struct{}, delay time.Duration, decide func() Cut) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open, p.delay, p.decide
}
