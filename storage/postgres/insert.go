package postgres

import (
	"strconv"
	"strings"
	"time"

	"github.com/pawlq/pawl"
)

// shape is what an insert takes as parameters: to unnest columns costs the server
// more than the rows that come of them.
type shape int

const (
	oneRow    shape = iota // one value each, for a single request
	alikeRows              // columns of what is each request's own, one value for the rest
	anyRows                // columns of all
	shapes
)

// shapeOf is the cheapest shape for some requests.
func shapeOf(reqs []*pawl.Request) shape {
	if len(reqs) == 1 {
		return oneRow
	}
	first := settingsOf(reqs[0])
	for _, r := range reqs[1:] {
		if settingsOf(r) != first {
			return anyRows
		}
	}
	return alikeRows
}

// isNew reports whether IDs were made a moment ago, so that hardly any can be there.
func isNew(reqs []*pawl.Request, now time.Time) bool {
	for _, r := range reqs {
		if r.ID.Version() != 7 || now.Sub(time.Unix(r.ID.Time().UnixTime())).Abs() > time.Second {
			return false
		}
	}
	return true
}

// requestColumns are the parameters $2 to $19 of inserts.
var requestColumns = []struct {
	name, typ string
	own       bool // of a request, when others are alike
	of        func(reqs []*pawl.Request, column bool) any
}{
	{"id", "uuid", true, of(func(r *pawl.Request) string { return r.ID.String() })},
	{"queue", "text", true, of(func(r *pawl.Request) string { return r.Queue })},
	{"kind", "text", true, of(func(r *pawl.Request) string { return r.Kind })},
	{"ukey", "text", true, of(func(r *pawl.Request) string { return r.UniqueKey })},
	{"meta", "text", true, of(func(r *pawl.Request) string { return metaJSON(r.Meta) })},
	{"payload", "bytea", true, of(payloadOf)},
	{"priority", "smallint", false, of(func(r *pawl.Request) int16 { return settingsOf(r).priority })},
	{"run_at", "bigint", false, of(func(r *pawl.Request) int64 { return settingsOf(r).runAt })},
	{"delay", "bigint", false, of(func(r *pawl.Request) int64 { return settingsOf(r).delay })},
	{"start_before", "bigint", false, of(func(r *pawl.Request) int64 { return settingsOf(r).startBefore })},
	{"lease", "bigint", false, of(func(r *pawl.Request) int64 { return settingsOf(r).lease })},
	{"timeout", "bigint", false, of(func(r *pawl.Request) int64 { return settingsOf(r).timeout })},
	{"retention", "bigint", false, of(func(r *pawl.Request) int64 { return settingsOf(r).retention })},
	{"max_attempts", "integer", false, of(func(r *pawl.Request) int32 { return settingsOf(r).maxAttempts })},
	{"max_rescues", "integer", false, of(func(r *pawl.Request) int32 { return settingsOf(r).maxRescues })},
	{"umode", "smallint", false, of(func(r *pawl.Request) int16 { return settingsOf(r).umode })},
	{"uwindow", "bigint", false, of(func(r *pawl.Request) int64 { return settingsOf(r).uwindow })},
	{"placed", "smallint", false, of(func(r *pawl.Request) int16 { return settingsOf(r).placed })},
}

// of makes a parameter of what f tells of the first request, or of each.
func of[T any](f func(*pawl.Request) T) func(reqs []*pawl.Request, column bool) any {
	return func(reqs []*pawl.Request, column bool) any {
		if !column {
			return f(reqs[0])
		}
		all := make([]T, len(reqs))
		for i, r := range reqs {
			all[i] = f(r)
		}
		return all
	}
}

func payloadOf(r *pawl.Request) []byte {
	if len(r.Payload) == 0 {
		return nil
	}
	return r.Payload
}

// settings are what requests that are alike have in common.
type settings struct {
	runAt, delay, startBefore, lease, timeout, retention, uwindow int64
	maxAttempts, maxRescues                                       int32
	priority, umode, placed                                       int16
}

func settingsOf(r *pawl.Request) settings {
	s := settings{
		runAt: micros(r.RunAt), delay: microseconds(r.Delay), startBefore: micros(r.StartBefore),
		lease: microseconds(r.Lease), timeout: microseconds(r.Timeout), retention: microseconds(r.Retention),
		uwindow: microseconds(r.UniqueWindow), maxAttempts: int32(r.MaxAttempts), maxRescues: int32(r.MaxRescues),
		priority: int16(r.Priority), umode: int16(r.UniqueMode),
	}
	if r.MaxDepth > 0 && r.WhenFull == pawl.DropOldest {
		s.placed = 1 // to drop it takes no lock of its queue
	}
	return s
}

// requestArgs are the arguments of an insert.
func requestArgs(clock *int64, reqs []*pawl.Request, s shape) []any {
	args := make([]any, 0, len(requestColumns)+2)
	args = append(args, clock)
	for _, c := range requestColumns {
		args = append(args, c.of(reqs, s.isColumn(c.own)))
	}
	return args
}

func (s shape) isColumn(own bool) bool { return s == anyRows || s == alikeRows && own }

// ref says how the statement of a shape speaks of a column.
func (s shape) ref(name string) string {
	for k, c := range requestColumns {
		switch {
		case c.name != name:
			continue
		case s.isColumn(c.own):
			return "i." + name
		}
		return parameter(k+2, c.typ, "")
	}
	panic("pawl/postgres: no column " + name)
}

// parameter is a parameter as a value, or as an array. IDs are sent as text, which
// every driver can do.
func parameter(k int, typ, array string) string {
	p := "$" + strconv.Itoa(k)
	if typ == "uuid" {
		p += "::text" + array
	}
	return p + "::" + typ + array
}

// unnested are the columns of a shape as rows i.
func (s shape) unnested() string {
	var columns, names []string
	for k, c := range requestColumns {
		if s.isColumn(c.own) {
			columns, names = append(columns, parameter(k+2, c.typ, "[]")), append(names, c.name)
		}
	}
	return "unnest(" + strings.Join(columns, ", ") + ") AS i(" + strings.Join(names, ", ") + ")"
}

// timeOnce is the time in a row of its own, to which $20 may be added: how long
// the statement waits for a lock, if it is a transaction.
func timeOnce(shortly bool) string {
	now := `SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now`
	if shortly {
		now += `, set_config('lock_timeout', $20::text, true)`
	}
	return now
}

// insert is the statement of a shape. That for one row returns a row if it was
// stored, the others the places from 1 of the requests that were not. They give
// seqs in the order of the array, which is all that they read from.
func (s shape) insert(shortly bool) string {
	const free = ` ON CONFLICT DO NOTHING RETURNING `
	if s == oneRow {
		return s.insertInto("t.now", "("+timeOnce(shortly)+" OFFSET 0) t") + free + `1`
	}
	return `WITH t AS MATERIALIZED (` + timeOnce(shortly) + `),
	stored AS (` + s.insertInto("(SELECT now FROM t)", s.unnested()) + free + `id)
	SELECT i.ord FROM unnest($2::text[]::uuid[]) WITH ORDINALITY AS i(id, ord)
	WHERE (SELECT count(*) FROM stored) < cardinality($2::text[]) AND i.id NOT IN (SELECT id FROM stored) ORDER BY i.ord`
}

// insertHopeful is the statement of a shape for requests without keys whose IDs are new.
func (s shape) insertHopeful() string {
	if s == oneRow {
		return s.insertInto("t.now", "("+timeOnce(true)+" OFFSET 0) t")
	}
	return `WITH t AS MATERIALIZED (` + timeOnce(true) + `) ` + s.insertInto("(SELECT now FROM t)", s.unnested())
}

func (s shape) insertInto(now, from string) string {
	due := s.due(now)
	fresh := s.ref("priority") + ` = 0 AND ` + s.ref("ukey") + ` = '' AND ` + s.ref("start_before") + ` = 0 AND ` + s.ref("placed") + ` = 0`
	values := []string{s.ref("id"), s.ref("queue"), s.ref("kind"),
		`CASE WHEN ` + due + ` > ` + now + ` THEN 1 WHEN ` + fresh + ` THEN 0 ELSE 2 END`,
		s.ref("priority"), `greatest(` + due + `, ` + now + `)`, s.orNull("start_before", "0"), now,
		s.orNull("lease", "0"), s.orNull("timeout", "0"), s.ref("retention"), s.ref("max_attempts"), s.ref("max_rescues"),
		s.orNull("ukey", "''"), s.orNull("umode", "0"), s.orNull("uwindow", "0"), `CASE WHEN ` + s.ref("ukey") + ` <> '' THEN true END`,
		s.orNull("meta", "''") + `::json`, s.ref("payload"),
		`CASE WHEN ` + due + ` <= ` + now + ` AND ` + fresh + ` THEN pg_current_xact_id() END`}
	return `INSERT INTO public.pawl_job (id, queue, kind, state, priority, run_at, start_before, created_at, lease, timeout,
		retention, max_attempts, max_rescues, ukey, umode, uwindow, held, meta, payload, xid)
		SELECT ` + strings.Join(values, ", ") + ` FROM ` + from
}

// due is when a request asks to run.
func (s shape) due(now string) string {
	return `(` + s.ref("run_at") + ` + CASE WHEN ` + s.ref("delay") + ` > 0 THEN ` + now + ` + ` + s.ref("delay") + ` ELSE 0 END)`
}

func (s shape) orNull(name, none string) string { return `nullif(` + s.ref(name) + `, ` + none + `)` }
