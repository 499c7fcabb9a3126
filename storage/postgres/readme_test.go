package postgres_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
)

// TestReadme runs the SQL of the page for operators, on jobs in some states.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, openPool(t, testserver.NewPostgres(t, nil), 4), nil)
	enqueue(t, s, pawl.Request{Kind: "invoice", Payload: []byte(`{"order": 7}`)})
	enqueue(t, s, pawl.Request{Payload: []byte("\xff"), Priority: 1})
	claimed := claim(t, s, 1)
	settle(t, s, pawl.Outcome{Ref: claimed[0].Ref, Verb: pawl.Bury, Error: "no paper"})
	claim(t, s, 1)
	seen := map[string]bool{}
	for _, block := range strings.Split(string(page), "```sql\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for _, sql := range strings.Split(block, ";\n") {
			if strings.TrimSpace(sql) != "" {
				look(t, s, sql, seen)
			}
		}
	}
	for _, want := range []string{"running", "buried", "no paper", "w", "map[order:7]", "pawl_job"} {
		if !seen[want] {
			t.Errorf("no query finds %s", want)
		}
	}
}

// look runs a query and notes what it finds.
func look(t *testing.T, s *postgres.Store, sql string, seen map[string]bool) {
	t.Helper()
	rows, err := s.Pool().Query(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatalf("%v:\n%s", err, sql)
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			t.Errorf("%v:\n%s", err, sql)
		}
		for _, v := range values {
			seen[fmt.Sprint(v)] = true
		}
	}
	if rows.Err() != nil {
		t.Errorf("%v:\n%s", rows.Err(), sql)
	}
}
