package mysql

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/pawlq/pawl"
	clean "github.com/pawlq/pawl/internal/text"
)

// inlineLimit is the size up to which bytes are written into a statement's text.
// Larger ones are sent as arguments: in the text they would take twice their
// size.
const inlineLimit = 64 << 10

// text is a statement that is being written. Values are literals in it, so that
// a statement takes one round trip whether the driver interpolates arguments or
// not, and has as many rows as a call needs. All bytes are hexadecimal: how
// strings are quoted depends on the server's sql_mode, and how they are read on
// the connection's character set.
type text struct {
	prefix string
	buf    []byte
	args   []any
}

// add appends SQL, in which "pawl_" stands for the prefix.
func (t *text) add(sql string) *text {
	if t.prefix != DefaultPrefix {
		sql = strings.ReplaceAll(sql, DefaultPrefix, t.prefix)
	}
	t.buf = append(t.buf, sql...)
	return t
}

func (t *text) num(n int64) *text {
	t.buf = strconv.AppendInt(t.buf, n, 10)
	return t
}

// name appends a name, which can be read in the statement. What is none, as from a
// cursor that somebody has made up, is appended as bytes.
func (t *text) name(s string) *text {
	if !clean.IsName(s, len(s)) {
		return t.bytes([]byte(s))
	}
	t.buf = append(t.buf, '\'')
	t.buf = append(t.buf, s...)
	t.buf = append(t.buf, '\'')
	return t
}

// bytes appends bytes; nil is an empty string.
func (t *text) bytes(b []byte) *text {
	switch {
	case len(b) == 0:
		t.buf = append(t.buf, "''"...)
	case len(b) > inlineLimit:
		t.buf = append(t.buf, '?')
		t.args = append(t.args, b)
	default:
		t.buf = append(t.buf, "x'"...)
		t.buf = hex.AppendEncode(t.buf, b)
		t.buf = append(t.buf, '\'')
	}
	return t
}

// orNull is bytes, with NULL if there are none.
func (t *text) orNull(b []byte) *text {
	if len(b) == 0 {
		return t.add("NULL")
	}
	return t.bytes(b)
}

// timeOrNull is num, with NULL for 0.
func (t *text) timeOrNull(us int64) *text {
	if us == 0 {
		return t.add("NULL")
	}
	return t.num(us)
}

func (t *text) flag(b bool) *text {
	if b {
		return t.add("1")
	}
	return t.add("0")
}

// list appends a comma between elements.
func list[T any](t *text, all []T, element func(T)) *text {
	for i, v := range all {
		if i > 0 {
			t.buf = append(t.buf, ',')
		}
		element(v)
	}
	return t
}

// seqs appends the jobs with the numbers: a join that looks each up by its primary
// key, in the order given. A list in a WHERE would have the server read, and
// lock or wait for, all of a table that is not much longer than the list.
func (t *text) seqs(all []int64) *text {
	return t.add("JSON_TABLE('[").nums(all).add("]', '$[*]' COLUMNS (s BIGINT PATH '$')) AS v" +
		" STRAIGHT_JOIN pawl_job AS j FORCE INDEX (PRIMARY) ON j.seq = v.s")
}

// byID appends the rows of a table that have one of some IDs as seqs does.
func (t *text) byID(table, index string, ids []pawl.ID) *text {
	t.add("JSON_TABLE('[")
	list(t, ids, func(id pawl.ID) { t.hex(id[:]) })
	t.add("]', '$[*]' COLUMNS (h VARCHAR(32) CHARACTER SET ascii PATH '$')) AS v STRAIGHT_JOIN ").add(table)
	return t.add(" AS j FORCE INDEX (").add(index).add(") ON j.id = UNHEX(v.h)")
}

// byKey appends the rows of the unique keys as seqs does.
func (t *text) byKey(keys []string) *text {
	t.add("JSON_TABLE('[")
	list(t, keys, func(k string) { t.hex([]byte(k)) })
	return t.add("]', '$[*]' COLUMNS (h VARCHAR(1000) CHARACTER SET ascii PATH '$')) AS v" +
		" STRAIGHT_JOIN pawl_key AS j FORCE INDEX (PRIMARY) ON j.k = UNHEX(v.h)")
}

// hex appends bytes as a JSON text.
func (t *text) hex(b []byte) *text {
	t.buf = append(t.buf, '"')
	t.buf = hex.AppendEncode(t.buf, b)
	t.buf = append(t.buf, '"')
	return t
}

func (t *text) nums(all []int64) *text {
	return list(t, all, func(n int64) { t.num(n) })
}

func (t *text) ids(all []pawl.ID) *text {
	return list(t, all, func(id pawl.ID) { t.bytes(id[:]) })
}

// size is what the statement can take on its way to the server: a driver that
// interpolates arguments may write two bytes for one.
func (t *text) size() int {
	n := len(t.buf)
	for _, a := range t.args {
		n += 2 * len(a.([]byte))
	}
	return n
}

func (t *text) String() string { return string(t.buf) }
