package sqlite

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each statement begins with a comment that says which indexes it uses, and
// the query planner is held to it, in a file without statistics as in one with.
func TestPlans(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "jobs.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, analyzed := range []bool{false, true} {
		for _, st := range s.q.all {
			comment, text, _ := strings.Cut(st.text, "\n")
			want := indexesOf(comment)
			if diff := cmp.Diff(want, plan(t, s.db, text)); diff != "" {
				t.Errorf("analyzed %v: plan differs (-says +is):\n%s\n%s", analyzed, diff, text)
			}
		}
		if _, err := s.db.ExecContext(t.Context(), "ANALYZE"); err != nil {
			t.Fatal(err)
		}
	}
}

// indexesOf reads the comment of a statement: names of indexes, "rowid" or
// "PRIMARY KEY", or "no search" with an explanation.
func indexesOf(comment string) []string {
	comment = strings.TrimPrefix(comment, "-- ")
	if strings.HasPrefix(comment, "no search") {
		return nil
	}
	names := strings.Split(comment, ", ")
	slices.Sort(names)
	return names
}

var (
	indexUsed = regexp.MustCompile(`USING (?:COVERING )?INDEX (\w+)|USING (INTEGER PRIMARY KEY)|USING (PRIMARY KEY)`)
	fullScan  = regexp.MustCompile(`SCAN (?:pawl_(?:job|payload|result|failure)|j)$`)
)

// plan lists the indexes that a statement uses, and "scan" if it reads a whole
// table or sorts what only an index should order.
func plan(t *testing.T, db *sql.DB, text string) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+text, make([]any, parameters(text))...)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	defer rows.Close()
	var used []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		for _, m := range indexUsed.FindAllStringSubmatch(detail, -1) {
			switch {
			case m[1] != "":
				used = append(used, m[1])
			case m[2] != "":
				used = append(used, "rowid")
			default:
				used = append(used, m[3])
			}
		}
		if fullScan.MatchString(detail) {
			used = append(used, "scan")
		}
		if strings.Contains(detail, "USE TEMP B-TREE FOR ORDER BY") {
			used = append(used, "sort")
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(used)
	return slices.Compact(used)
}

// parameters is the highest number of a parameter in the text.
func parameters(text string) int {
	n := 0
	for n < 400 && strings.Contains(text, fmt.Sprintf("?%d", n+1)) {
		n++
	}
	return n
}
