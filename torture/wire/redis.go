package wire

import (
	"bufio"
	"bytes"
	"crypto/sha1" // #nosec G505 -- it is how Redis names scripts
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"sync"
)

// Redis is the protocol of Redis. What commits are scripts, in which all of pawl's
// changes are made, but for those that say that they write nothing.
func Redis() codec { return redis{} }

type redis struct{}

func (redis) wakes(m []byte) bool { return bytes.HasPrefix(m, []byte(">3\r\n$7\r\nmessage\r\n")) }

func (redis) greets() int { return 0 }

func (redis) request(r *bufio.Reader) (m []byte, asks, commits bool, err error) {
	m, err = value(r, nil)
	if err != nil {
		return nil, false, false, err
	}
	return m, true, writesScript(m), nil
}

// readers are scripts that write nothing, by the names that Redis gives them.
var readers sync.Map

// writesScript reports whether a request runs a script that may write. It learns from those that bring
// scripts which ones may not.
func writesScript(m []byte) bool {
	lines := bytes.SplitN(m, []byte("\r\n"), 8) // *n, $n, name, $n, first argument, $n, second argument, rest
	if len(lines) < 6 {
		return false
	}
	switch name := strings.ToUpper(string(lines[2])); {
	case name == "SCRIPT" && len(lines) > 6:
		learn(lines[6])
	case name == "EVAL":
		return !learn(lines[4])
	case name == "EVALSHA":
		_, reads := readers.Load(string(lines[4]))
		return !reads
	}
	return false
}

// learn reports whether a script says that it writes nothing.
func learn(script []byte) bool {
	head, _, _ := bytes.Cut(script, []byte("\n"))
	if !bytes.HasPrefix(head, []byte("#!lua")) || !bytes.Contains(head, []byte("no-writes")) {
		return false
	}
	sum := sha1.Sum(script) // #nosec G401
	readers.Store(hex.EncodeToString(sum[:]), true)
	return true
}

func (redis) reply(r *bufio.Reader) (m []byte, whole bool, err error) {
	m, err = value(r, nil)
	return m, err == nil && m[0] != '>', err // what is pushed answers nothing
}

var errProtocol = errors.New("wire: not the protocol of Redis")

// value appends one value to m, with all that it holds.
func value(r *bufio.Reader, m []byte) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 {
		return nil, errProtocol
	}
	m = append(m, line...)
	switch line[0] {
	case '$', '=', '!':
		return bulk(r, m, line)
	case '*', '~', '>', '%', '|':
		return several(r, m, line)
	default:
		return m, nil
	}
}

func bulk(r *bufio.Reader, m, line []byte) ([]byte, error) {
	n, err := number(line)
	if err != nil || n < 0 {
		return m, err
	}
	return sized(r, m, n+2)
}

func several(r *bufio.Reader, m, line []byte) ([]byte, error) {
	n, err := number(line)
	if err != nil {
		return nil, err
	}
	if line[0] == '%' || line[0] == '|' {
		n *= 2
	}
	if line[0] == '|' {
		n++ // attributes come before what they are of
	}
	for range n {
		if m, err = value(r, m); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func number(line []byte) (int, error) {
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil {
		return 0, errors.Join(errProtocol, err)
	}
	return n, nil
}
