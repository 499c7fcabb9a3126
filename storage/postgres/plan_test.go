package postgres

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
)

// indexes are what each statement must use. Statements that are not named here
// have a table without an index to speak of, or none.
var indexes = map[string][]string{
	"holder": {"job_key"}, "tryHolder": {"job_key"}, "releaseKey": {"job_pkey"}, "replace": {"job_pkey"}, "exists": {"job_pkey"},
	"waiting": {"head_pkey", "job_fresh", "job_ready", "job_scheduled"}, "oldestFresh": {"head_pkey", "job_fresh"}, "leastUrgent": {"job_ready"}, "nextScheduled": {"job_scheduled"},
	"drop": {"job_pkey"}, "promote": {"job_scheduled"}, "expire": {"job_expiry"}, "claim": {"head_pkey", "job_fresh", "job_ready", "job_scheduled"},
	"claimFresh": {"head_pkey", "job_fresh", "job_ready", "job_scheduled"},
	"readFresh":  {"claim_mark"}, "findFresh": {"claim_mark", "job_fresh"}, "claimedPlaced": {"claim_mark", "job_pkey", "lease_pkey"},
	"claimedBy": {"job_running", "claim_queue", "job_fresh"}, "nextDue": {"job_scheduled"},
	"claimable": {"head_pkey", "job_fresh", "job_ready", "job_scheduled"}, "dropClaims": {"claim_pkey"},
	"expiredFresh": {"claim_until", "job_fresh", "lease_pkey", "job_pkey"}, "tidyClaims": {"claim_until", "job_fresh", "lease_pkey"},
	"settle": {"job_pkey", "claim_pkey"}, "settleTx": {"job_pkey", "claim_pkey"}, "extend": {"job_pkey", "claim_pkey"},
	"rowsByID": {"job_pkey", "lease_pkey", "claim_queue"},
	"byID":     {"job_pkey", "lease_pkey", "claim_queue"}, "lockByID": {"job_pkey", "lease_pkey", "claim_queue"},
	"tryLockByID": {"job_pkey", "lease_pkey", "claim_queue"},
	"save":        {"job_pkey"}, "remove": {"job_pkey"}, "forgetLeases": {"lease_pkey"}, "forgetProgress": {"lease_pkey"},
	"forgetProgressOf": {"job_pkey", "lease_pkey"}, "promoteAll": {"job_due"}, "endLeases": {"lease_until", "job_pkey"},
	"dropLeases": {"job_pkey", "lease_pkey"}, "expiredClaims": {"job_lease", "lease_pkey"},
	"expiredLeases": {"lease_until", "job_pkey"}, "purge": {"job_purge"}, "buriedQueues": {"job_final"},
	"oldBuried": {"job_final"}, "excessBuried": {"job_final"},
	"nextOfAll":        {"job_due", "job_lease", "lease_until", "claim_until", "job_expiry", "job_purge"},
	"nextOldestBuried": {"job_final"},
	"counts":           {"head_pkey", "job_fresh", "job_ready", "job_scheduled", "job_running", "job_final"},
	"nextQueue":        {"job_fresh", "job_ready", "job_scheduled", "job_running", "job_final"},
	"dropEvents":       {"event_pkey"}, "lastEvent": {"event_pkey"}, "eventsAfter": {"event_pkey"},
	"suspects": {"head_pkey", "job_fresh"}, "unstrand": {"claim_queue", "head_pkey", "job_fresh"}, "dropHead": {"head_pkey", "job_fresh"},
	"pageReady":     {"job_ready", "lease_pkey"},
	"pageScheduled": {"job_scheduled", "lease_pkey"},
	"pageRunning":   {"job_running", "lease_pkey"},
	"pageFinal":     {"job_final", "lease_pkey"},
	"pageFresh":     {"head_pkey", "job_fresh", "lease_pkey"},
	"pageClaimed":   {"claim_queue", "job_fresh", "lease_pkey"},
}

// noPlan are statements that touch no table of jobs.
var noPlan = map[string]bool{"waitShort": true, "pinCommitted": true, "waitLong": true, "system": true, "knownSystem": true, "noteSystem": true, "freeze": true, "noClaims": true, "noHeads": true,
	"thawReady": true, "thawClaimed": true, "begin": true, "commit": true, "locks": true, "tryLock": true, "pin": true, "lock": true, "notify": true, "notifyAlone": true, "beginEvents": true, "xid": true, "ended": true, "now": true}

// scanned finds a scan of a whole table of jobs, by way of an index or not, that
// does not end with the first row.
func scanned(plan string) bool {
	lines := strings.Split(plan, "\n")
	for i, line := range lines {
		switch {
		case strings.Contains(line, "Seq Scan on pawl_job"), strings.Contains(line, "Seq Scan on pawl_lease"),
			strings.Contains(line, "Seq Scan on pawl_claim"), strings.Contains(line, "Seq Scan on pawl_head"),
			strings.Contains(line, "Bitmap Heap Scan"):
			return true
		case strings.Contains(line, " using pawl_job"), strings.Contains(line, " using pawl_lease"),
			strings.Contains(line, " using pawl_claim"), strings.Contains(line, " using pawl_head"):
			if !strings.Contains(lines[i+1], "Index Cond") && !strings.Contains(parent(lines, i), "Limit") {
				return true
			}
		}
	}
	return false
}

// parent is the node of a plan that a line belongs to.
func parent(lines []string, i int) string {
	indent := func(s string) int { return len(s) - len(strings.TrimLeft(s, " ")) }
	for k := i - 1; k >= 0; k-- {
		if indent(lines[k]) < indent(lines[i]) {
			return lines[k]
		}
	}
	return ""
}

// TestPlans holds the planner to the indexes, whatever it knows of the tables.
func TestPlans(t *testing.T) {
	pool := planPool(t)
	s, err := New(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for _, state := range []struct{ name, sql string }{
		{"fresh", "SELECT 1"},
		{"analyzed while empty", "VACUUM ANALYZE"},
		{"full", fillPlans},
		{"analyzed", "ANALYZE"},
		{"deleted", "DELETE FROM pawl_job"},
		{"analyzed after delete", "ANALYZE"},
	} {
		for _, sql := range strings.Split(state.sql, ";") {
			if _, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
		}
		v := reflect.ValueOf(s.q).Elem()
		for i := range v.NumField() {
			name, sql := v.Type().Field(i).Name, v.Field(i).String()
			if noPlan[name] {
				continue
			}
			checkPlan(t, pool, s, state.name+": "+name, sql, indexes[name])
		}
	}
}

// fillPlans makes a table on which a wrong plan shows.
const fillPlans = `INSERT INTO pawl_job (id, run_at, created_at, claimed_at, lease_until, finished_at, purge_at, retention, fence,
		max_attempts, max_rescues, state, priority, queue, kind, xid)
	SELECT gen_random_uuid(), n, n, n, n, n, CASE WHEN n % 7 >= 3 THEN n END, 1, n, 1, 1, n % 7, 0, 'q' || n % 3, 'k', n::text::xid8
	FROM generate_series(1, 20000) n;
	INSERT INTO pawl_head (queue, gen, xid, seq, pend, pendseq) SELECT 'q' || n, 0, '0', 0, '{}', '{}' FROM generate_series(1, 2000) n;
	INSERT INTO pawl_claim (fence, token, mark, claimed_at, lease, until, lo, hi, queue, worker, seqs, xids, ids)
	SELECT n, n, n, n, n, n, n, n, 'q' || n % 3, 'w', ARRAY[n], ARRAY[n::text::xid8], '{}' FROM generate_series(1, 2000) n;
	INSERT INTO pawl_lease (seq, id, fence, until, extends) SELECT seq, id, fence, lease_until, 1 FROM pawl_job WHERE state = 3`

func checkPlan(t *testing.T, pool *pgxpool.Pool, s *Store, name, sql string, want []string) {
	t.Helper()
	plan := explainGeneric(t, pool, s, sql)
	if scanned(plan) {
		t.Errorf("%s: a scan of a whole table:\n%s", name, plan)
	}
	for _, index := range want {
		if !strings.Contains(plan, "pawl_"+index+" ") && !strings.Contains(plan, "pawl_"+index+"\n") {
			t.Errorf("%s: %s is not used:\n%s", name, index, plan)
		}
	}
}

// explainGeneric explains a statement as the Store runs it.
func explainGeneric(t *testing.T, pool *pgxpool.Pool, s *Store, sql string) string {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	for _, sql := range []string{s.q.pin, "DEALLOCATE ALL", "PREPARE p AS " + sql} {
		if _, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%v: %s", err, sql)
		}
	}
	execute := "EXPLAIN EXECUTE p"
	if n := countParams(sql); n > 0 {
		execute += "(" + strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ") + ")"
	}
	rows, err := tx.Query(t.Context(), execute, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatalf("%v: %s", err, sql)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n") + "\n"
}

func countParams(sql string) (n int) {
	for strings.Contains(sql, fmt.Sprintf("$%d", n+1)) {
		n++
	}
	return n
}

func planPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	server := testserver.NewPostgres(t, &testserver.PostgresOptions{MaxConnections: 20})
	pool, err := pgxpool.New(t.Context(), server.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// TestPlansInCallersTransaction looks at statements that run without the
// settings that the Store makes in its own transactions.
func TestPlansInCallersTransaction(t *testing.T) {
	pool := planPool(t)
	s, err := New(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for _, sql := range []string{"ANALYZE", fillPlans} { // the planner believes the table to be empty
		if _, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	outcomes := make([]pawl.Outcome, 100)
	reqs := make([]*pawl.Request, 100)
	for i := range outcomes {
		id := uuid.Must(uuid.NewV7())
		outcomes[i] = pawl.Outcome{Ref: pawl.Ref{Queue: "q1", ID: id, Fence: 1}, Verb: pawl.Ack}
		reqs[i] = &pawl.Request{ID: id, Queue: "q1", Kind: "k", UniqueKey: id.String()}
	}
	st := s.newSettlement(outcomes)
	for _, c := range []struct {
		name, sql string
		args      []any
	}{
		{"settleTx", s.q.settleTx, st.args(st.rounds[0])},
		{"insertOne", s.q.insertOne, requestArgs(nil, reqs[:1], oneRow)},
		{"insertAlike", s.q.insertAlike, requestArgs(nil, reqs, alikeRows)},
		{"insertAny", s.q.insertAny, requestArgs(nil, reqs, anyRows)},
		{"replace", s.q.replace, append(requestArgs(nil, reqs[:1], oneRow), reqs[0].ID.String())},
		{"exists", s.q.exists, []any{reqs[0].ID.String()}},
		{"holder", s.q.holder, []any{nil, "q1", "key"}},
		{"drop", s.q.drop, []any{nil, reqs[0].ID.String()}},
	} {
		rows, err := pool.Query(t.Context(), "EXPLAIN "+c.sql, append([]any{pgx.QueryExecModeCacheDescribe}, c.args...)...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if plan := strings.Join(lines, "\n") + "\n"; scanned(plan) {
			t.Errorf("%s: a scan of a whole table:\n%s", c.name, plan)
		}
	}
}
