package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pawlq/pawl"
)

// maxExamined bounds the rows of a queue that are examined in each state: more
// than one call of a Claim or Sweep can touch.
const maxExamined = maxPromoted + pawl.MaxStep

// errDamaged says that a row holds what no program of ours has written, as it
// does in a file that lost its checks or was edited without them.
var errDamaged = errors.New("pawl/sqlite: a row is damaged")

// isDamage reports whether a call failed for what a row holds.
func isDamage(err error) bool {
	switch extendedCode(err) {
	case codeCheck, codeDataType, codeMismatch:
		return true
	}
	return errors.Is(err, errDamaged)
}

// mending runs f, which makes one request to the writer. As long as that fails
// because of damaged rows, they are buried and it is run again, so that one bad
// row never stops a queue. A sound file pays nothing for it.
func (s *Store) mending(ctx context.Context, f func() error) error {
	for {
		err := f()
		if !isDamage(err) {
			return err
		}
		n, mendErr := s.mend(ctx)
		if mendErr != nil {
			return errors.Join(err, mendErr)
		}
		if n == 0 {
			return err
		}
	}
}

// mend buries the damaged jobs of all queues that could be claimed, promoted or
// rescued next, and says how many it found.
func (s *Store) mend(ctx context.Context) (n int, err error) {
	for after := ""; ; {
		err := s.read(ctx, func(run reader) (err error) {
			after, err = nextQueue(ctx, run, s.q, after)
			return err
		})
		if err != nil || after == "" {
			return n, err
		}
		found, err := s.mendQueue(ctx, after)
		if err != nil {
			return n, err
		}
		n += len(found)
	}
}

// damage is what is wrong with a row: the first column that can't be.
type damage struct {
	seq    int64
	column string
}

func (s *Store) mendQueue(ctx context.Context, queue string) (found []damage, err error) {
	err = s.writer.do(&request{ctx: ctx, class: classChange, run: func(b *batch) (err error) {
		found, err = b.mend(queue)
		return err
	}})
	if err != nil {
		return nil, err
	}
	for _, d := range found {
		s.o.Logger.ErrorContext(ctx, "pawl/sqlite: buried a job whose row is damaged",
			"queue", queue, "seq", d.seq, "column", d.column, "file", s.file)
	}
	return found, nil
}

func (b *batch) mend(queue string) (found []damage, err error) {
	for _, state := range []pawl.State{pawl.Scheduled, pawl.Ready, pawl.Running} {
		more, err := b.damaged(state, queue)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	for _, d := range found {
		if err := b.buryDamaged(d); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (b *batch) damaged(state pawl.State, queue string) (found []damage, err error) {
	rows, err := b.run.query(b.ctx, b.q.damaged, int(state), queue, maxExamined)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var d damage
		if err := rows.Scan(&d.seq, &d.column); err != nil {
			return nil, err
		}
		found = append(found, d)
	}
	return found, rows.Err()
}

// buryDamaged makes a row readable again, with a default for each column that
// is not, and buries it.
func (b *batch) buryDamaged(d damage) error {
	n, err := b.number(b.q.lastFailure, d.seq)
	if err != nil {
		return err
	}
	r := &record{seq: d.seq, failures: int(n)}
	r.fail(b.now, fmt.Sprintf("the row was damaged: column %s", d.column), "")
	if err := b.saveFailure(r, r.newFailure); err != nil {
		return err
	}
	_, err = b.run.exec(b.ctx, b.q.mend, d.seq, b.now, r.failures)
	return err
}

// soundness is what a column may hold in a row that can be read and moved.
type soundness struct{ column, sound, otherwise string }

// soundColumns lists the columns but those that mend sets, and queue and state,
// by which rows are found.
func soundColumns() []soundness {
	all := []soundness{
		{"id", "typeof(id) = 'blob' AND length(id) = 16", "randomblob(16)"},
		{"last_verb", "typeof(last_verb) = 'integer' AND last_verb BETWEEN 0 AND 255", "0"},
		{"umode", "typeof(umode) = 'integer' AND umode BETWEEN 0 AND 2", "0"},
		{"attempt", "typeof(attempt) = 'integer' AND abs(attempt / 2) < 4e18", "0"},
	}
	for _, c := range strings.Fields("lease timeout retention uwindow run_at") {
		all = append(all, soundness{c, fmt.Sprintf("typeof(%s) = 'integer' AND abs(%[1]s / 2) < 2e18", c), "0"})
	}
	for _, c := range strings.Fields("priority last_fence rescued max_attempts max_rescues created_at started_at " +
		"claimed_at start_before token extends apart") {
		all = append(all, soundness{c, fmt.Sprintf("typeof(%s) = 'integer'", c), "0"})
	}
	for _, c := range strings.Fields("kind worker ukey") {
		all = append(all, soundness{c, fmt.Sprintf("typeof(%s) = 'text'", c), "''"})
	}
	for _, c := range strings.Fields("counts meta progress") {
		all = append(all, soundness{c, fmt.Sprintf("typeof(%s) IN ('text', 'null')", c), "NULL"})
	}
	for _, c := range strings.Fields("payload result") {
		all = append(all, soundness{c, fmt.Sprintf("typeof(%s) IN ('blob', 'null')", c), "NULL"})
	}
	return all
}

// damage makes the statements that find and bury damaged rows.
func (q *statements) damage() {
	var wrong, set strings.Builder
	for _, c := range soundColumns() {
		fmt.Fprintf(&wrong, " WHEN NOT (%s) THEN '%s'", c.sound, c.column)
		fmt.Fprintf(&set, ",\n\t\t\t%[1]s = CASE WHEN %[2]s THEN %[1]s ELSE %[3]s END", c.column, c.sound, c.otherwise)
	}
	const place = "typeof(%s) = 'integer' AND abs(%[1]s / 2) < 2e18"
	for _, c := range []string{"at", "rank"} {
		fmt.Fprintf(&wrong, " WHEN NOT ("+place+") THEN '%[1]s'", c)
	}
	for _, c := range []string{"fence", "failures", "purge_at"} {
		fmt.Fprintf(&wrong, " WHEN typeof(%s) <> 'integer' THEN '%[1]s'", c)
	}
	q.damaged = q.add(`-- pawl_job_place
		SELECT seq, wrong FROM (
			SELECT seq, CASE` + wrong.String() + `
				WHEN typeof(reason) <> 'text' THEN 'reason' WHEN held NOT IN (0, 1) THEN 'held' END AS wrong
			FROM pawl_job INDEXED BY pawl_job_place
			WHERE state = ?1 AND queue = ?2 ORDER BY rank, at, seq LIMIT ?3)
		WHERE wrong IS NOT NULL`)
	q.mend = q.add(`-- rowid
		UPDATE pawl_job SET state = 5, rank = 0, at = ?2, fence = 0, reason = 'bury', held = 0, purge_at = 0,
			failures = ?3` + set.String() + `
		WHERE seq = ?1`)
	q.lastFailure = q.add(`-- PRIMARY KEY
		SELECT max(n) FROM pawl_failure WHERE seq = ?1`)
}
