package wire

import (
	"bufio"
	"bytes"
	"errors"
	"strconv"
)

// Redis is the protocol of Redis. What commits are scripts, in which all of pawl's
// changes are made.
func Redis() codec { return redis{} }

type redis struct{}

func (redis) wakes(m []byte) bool { return bytes.HasPrefix(m, []byte(">3\r\n$7\r\nmessage\r\n")) }

func (redis) greets() int { return 0 }

func (redis) request(r *bufio.Reader) (m []byte, asks, commits bool, err error) {
	m, err = value(r, nil)
	if err != nil {
		return nil, false, false, err
	}
	name := bytes.ToUpper(command(m))
	return m, true, bytes.HasPrefix(name, []byte("EVAL")) || bytes.HasPrefix(name, []byte("FCALL")), nil
}

// command is the first of the strings that a request is made of.
func command(m []byte) []byte {
	lines := bytes.SplitN(m, []byte("\r\n"), 4) // *n, $n, name, rest
	if len(lines) < 3 {
		return nil
	}
	return lines[2]
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
