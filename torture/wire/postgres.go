package wire

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"sync"
)

// Postgres is the protocol of PostgreSQL, version 3.
func Postgres() codec { return &postgres{statements: map[string]string{}} }

type postgres struct {
	started    bool
	statements map[string]string // prepared, by name
	sql        []string          // of the request that is being read

	mu   sync.Mutex
	inTx bool // what the last answer said
}

// Types of messages.
const (
	pgQuery        = 'Q' // also ends a request
	pgParse        = 'P'
	pgBind         = 'B'
	pgSync         = 'S' // ends a request
	pgReady        = 'Z' // ends an answer
	pgNotification = 'A'
)

func (p *postgres) wakes(m []byte) bool { return m[0] == pgNotification }

func (p *postgres) greets() int { return 0 }

func (p *postgres) request(r *bufio.Reader) (m []byte, asks, commits bool, err error) {
	if !p.started {
		p.started = true
		head := make([]byte, 4)
		if _, err := io.ReadFull(r, head); err != nil {
			return nil, false, false, err
		}
		m, err := sized(r, head, bigEndian(head)-4)
		return m, true, false, err // the answer ends when the server is ready
	}
	kind, m, err := pgMessage(r)
	if err != nil {
		return nil, false, false, err
	}
	p.note(kind, m[5:])
	if kind != pgQuery && kind != pgSync {
		return m, false, false, nil
	}
	commits = p.commits()
	p.sql = p.sql[:0]
	return m, true, commits, nil
}

// note keeps the text of statements.
func (p *postgres) note(kind byte, body []byte) {
	switch kind {
	case pgQuery:
		p.sql = append(p.sql, cText(body))
	case pgParse:
		name := cText(body)
		p.statements[name] = cText(body[len(name)+1:])
	case pgBind:
		portal := cText(body)
		p.sql = append(p.sql, p.statements[cText(body[len(portal)+1:])])
	}
}

// commits predicts whether the request commits something.
func (p *postgres) commits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sql) == 0 {
		return false
	}
	for _, sql := range p.sql {
		if word(sql) == "COMMIT" {
			return true
		}
	}
	first := word(p.sql[0])
	return !p.inTx && first != "BEGIN" && first != "ROLLBACK"
}

func (p *postgres) reply(r *bufio.Reader) (m []byte, whole bool, err error) {
	kind, m, err := pgMessage(r)
	if err != nil || kind != pgReady {
		return m, false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inTx = len(m) > 5 && m[5] != 'I'
	return m, true, nil
}

func pgMessage(r *bufio.Reader) (kind byte, m []byte, err error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	m, err = sized(r, head, bigEndian(head[1:])-4)
	return head[0], m, err
}

// cText is what comes before the first zero.
func cText(b []byte) string {
	before, _, _ := bytes.Cut(b, []byte{0})
	return string(before)
}

// word is the first word of a statement.
func word(sql string) string {
	sql = strings.TrimLeft(sql, " \t\r\n(")
	if i := strings.IndexAny(sql, " \t\r\n;("); i >= 0 {
		sql = sql[:i]
	}
	return strings.ToUpper(sql)
}
