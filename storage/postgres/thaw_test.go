package postgres_test

import (
	"testing"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
)

// TestRestore: when transaction ids begin anew, no job is lost or claimed twice,
// and claims stay good.
func TestRestore(t *testing.T) {
	for _, c := range []struct{ name, sql string }{
		{"another system", "UPDATE pawl_meta SET system = 1"},
		{"a head of the future", "UPDATE pawl_head SET xid = '9000000000000000'"},
		{"jobs of the future", "UPDATE pawl_job SET xid = '9000000000000000' WHERE state = 0; DELETE FROM pawl_head; DELETE FROM pawl_claim"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := fresh(t, postgres.Options{})
			k := newTaken(t, s)
			old := enqueue(t, s, pawl.Request{}).ID
			ref := claim(t, s, 1)[0].Ref
			k.enqueue(s, true)
			k.enqueue(s, true)
			if c.name == "jobs of the future" {
				settle(t, s, pawl.Outcome{Ref: ref, Verb: pawl.Ack})
			}
			inSchema(t, s, c.sql)
			k.s = beside(t, s, postgres.Options{})
			k.claim(1) // may find nothing yet
			k.enqueue(s, true)
			k.account()
			if c.name != "jobs of the future" {
				settle(t, s, pawl.Outcome{Ref: ref, Verb: pawl.Ack})
			}
			if got := state(t, s, old); got != pawl.Completed {
				t.Errorf("the job of the old claim is %v", got)
			}
		})
	}
}

// inSchema runs SQL with the tables of s.
func inSchema(t testing.TB, s *postgres.Store, sql string) {
	t.Helper()
	conn, err := s.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Conn().PgConn().Exec(t.Context(), "BEGIN; SET LOCAL search_path = "+s.Schema()+"; "+sql+"; COMMIT").ReadAll(); err != nil {
		t.Fatal(err)
	}
}
