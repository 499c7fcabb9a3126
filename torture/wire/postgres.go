package wire

import (
	"bufio"
	"bytes"
	"io"
	"regexp"
	"strings"
	"sync"
)

// Postgres is the protocol of PostgreSQL, version 3.
func Postgres() codec { return &postgres{statements: map[string]statement{}} }

type postgres struct {
	started    bool
	statements map[string]statement // prepared, by name
	asked      []statement          // of the request that is being read
	wrote      bool                 // something, in the transaction

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
	p.asked = p.asked[:0]
	return m, true, commits, nil
}

// note keeps statements.
func (p *postgres) note(kind byte, body []byte) {
	switch kind {
	case pgQuery:
		p.asked = append(p.asked, read(cText(body)))
	case pgParse:
		name := cText(body)
		p.statements[name] = read(cText(body[len(name)+1:]))
	case pgBind:
		portal := cText(body)
		p.asked = append(p.asked, p.statements[cText(body[len(portal)+1:])])
	}
}

// commits predicts whether the request commits something.
func (p *postgres) commits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	inTx, ends := p.inTx, false
	p.wrote = p.wrote && inTx // else it was rolled back
	for _, s := range p.asked {
		switch s.word {
		case "BEGIN":
			p.wrote, inTx = false, true
		case "COMMIT":
			ends = true
		}
		p.wrote = p.wrote || s.writes
	}
	if inTx && !ends {
		return false
	}
	commits := p.wrote
	p.wrote = false
	return commits
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

// A statement is what is known of one of SQL.
type statement struct {
	word   string // the first
	writes bool   // or would, if it found something
}

var (
	locking = regexp.MustCompile(`(?i)\bFOR\s+(NO\s+KEY\s+)?UPDATE\b`)
	writing = regexp.MustCompile(`(?i)\b(INSERT|UPDATE|DELETE|MERGE)\b`)
)

func read(sql string) statement {
	return statement{word(sql), writing.MatchString(locking.ReplaceAllString(sql, ""))}
}

// word is the first word of a statement.
func word(sql string) string {
	sql = strings.TrimLeft(sql, " \t\r\n(")
	if i := strings.IndexAny(sql, " \t\r\n;("); i >= 0 {
		sql = sql[:i]
	}
	return strings.ToUpper(sql)
}
