package testserver

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A Fault is what a [Proxy] does to a request that commits.
type Fault int

const (
	CutBefore Fault = iota + 1 // the request does not reach the server
	CutDuring                  // it does, and then both are cut off at once
	CutAfter                   // the server answers, and none of that arrives
	CutTorn                    // all of the answer arrives but that it is complete
)

// Faults returns all faults.
func Faults() []Fault { return []Fault{CutBefore, CutDuring, CutAfter, CutTorn} }

func (f Fault) String() string {
	return [...]string{"none", "cut before", "cut during", "cut after", "torn"}[f]
}

// A Proxy stands between clients and a PostgreSQL server, knows where their
// transactions are committed, and can hinder them.
type Proxy struct {
	dir, server string
	listener    net.Listener
	wg          sync.WaitGroup

	mu     sync.Mutex
	decide func(sql string) Fault
	delay  time.Duration
	open   chan struct{} // closed unless nothing passes
	conns  map[*session]struct{}
	ended  bool
}

// NewProxy starts a proxy for one test.
func NewProxy(t testing.TB, server *PostgresServer) *Proxy {
	t.Helper()
	p := &Proxy{server: filepath.Join(server.Dir(), socketName), open: make(chan struct{}), conns: map[*session]struct{}{}}
	close(p.open)
	var err error
	if p.dir, err = folder("pawl-proxy-*", nil); err != nil {
		t.Fatal(err)
	}
	if p.listener, err = net.Listen("unix", filepath.Join(p.dir, socketName)); err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(p.dir)))
	}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

const socketName = ".s.PGSQL.5432"

// DSN connects to the named database through the proxy; empty means "postgres".
func (p *Proxy) DSN(database string) string { return dsn(p.dir, 5432, database) }

// Decide makes the proxy ask f about each request that will commit: those of
// their own, and the ends of transactions. f gets the request's statements, and
// returns 0 to let it pass. nil asks no one.
func (p *Proxy) Decide(f func(sql string) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide = f
}

// Slow makes each request take d longer.
func (p *Proxy) Slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Hold makes the proxy a black hole: connections stay, and nothing passes until
// Release.
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

// Strand makes a black hole of the connections of now alone: new ones pass.
func (p *Proxy) Strand() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.conns {
		s.stranded = true
	}
}

// Cut cuts all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.conns {
		s.cut()
	}
}

func (p *Proxy) stop() error {
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
			return // stopped
		}
		server, err := net.Dial("unix", p.server)
		if err != nil {
			client.Close() // as a server that is down does
			continue
		}
		p.begin(&session{p: p, client: client, server: server, gone: make(chan struct{}), statements: map[string]string{}})
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
		var wg sync.WaitGroup
		wg.Go(s.requests)
		wg.Go(s.answers)
		wg.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, s)
	})
}

// passes waits while nothing passes, and reports false if s is cut.
func (p *Proxy) passes(s *session) bool {
	p.mu.Lock()
	open := p.open
	if s.stranded {
		open = nil
	}
	p.mu.Unlock()
	select {
	case <-open:
		return true
	case <-s.gone:
		return false
	}
}

// pass is passes for a request, which may be delayed.
func (p *Proxy) pass(s *session) bool {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay == 0 {
		return p.passes(s)
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return p.passes(s)
	case <-s.gone:
		return false
	}
}

func (p *Proxy) fault(sql []string) Fault {
	p.mu.Lock()
	decide := p.decide
	p.mu.Unlock()
	if decide == nil {
		return 0
	}
	return decide(strings.Join(sql, ";\n"))
}
