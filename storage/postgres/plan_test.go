package postgres

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
)

// indexes are what each statement must use; an entry with a space is a part of the
// plan. Inserts look for nothing.
var indexes = map[string][]string{
	"holder": {"job_key"}, "tryHolder": {"job_key"}, "releaseKey": {"job_pkey"}, "replace": {"job_pkey"}, "exists": {"job_pkey"},
	"waiting": {"head_pkey", "job_fresh", "job_ready", "job_scheduled"}, "oldestFresh": {"head_pkey", "job_fresh"}, "leastUrgent": {"job_ready"}, "nextScheduled": {"job_scheduled"},
	"drop": {"job_pkey"}, "promote": {"job_scheduled"}, "expire": {"job_expiry"}, "claim": {"head_pkey", "job_fresh", "job_ready", "job_scheduled"},
	"claimFresh": {"head_pkey", "job_fresh", "job_ready", "job_scheduled"},
	"readFresh":  {"claim_mark", "Tid Scan on pawl_job", "(hashed SubPlan"}, "findFresh": {"claim_mark", "job_fresh"}, "claimedPlaced": {"claim_mark", "job_pkey", "lease_pkey"},
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
	"oldBuried": {"job_final"}, "nextFinal": {"job_final"}, "lookForExcess": {"job_final"}, "nthExcess": {"job_final"},
	"excess": {"job_final"}, "excessNow": {"job_final"}, "nextBuried": {"job_final"},
	"nextOfAll":  {"job_due", "job_lease", "lease_until", "claim_until", "job_expiry", "job_purge"},
	"counts":     {"head_pkey", "job_fresh", "job_ready", "job_scheduled", "job_running", "job_final"},
	"nextQueue":  {"job_fresh", "job_ready", "job_scheduled", "job_running", "job_final"},
	"dropEvents": {"event_pkey"}, "lastEvent": {"event_pkey"}, "eventsAfter": {"event_pkey"},
	"suspects": {"head_pkey", "job_fresh"}, "unstrand": {"claim_queue", "head_pkey", "job_fresh"}, "dropHead": {"head_pkey", "job_fresh"},
	"insert": {}, "insertShortly": {}, "insertHopeful": {},
	"addEvents": {}, "ackGone": {"claim_pkey", "Tid Scan on pawl_job j", "Hash Join"}, "ackKept": {"claim_pkey", "Tid Scan on pawl_job j", "Hash Join"},
	"thawReady": {"job_fresh"}, "thawClaimed": {"job_fresh"},
	"pageReady":     {"job_ready", "lease_pkey"},
	"pageScheduled": {"job_scheduled", "lease_pkey"},
	"pageRunning":   {"job_running", "lease_pkey"},
	"pageFinal":     {"job_final", "lease_pkey"},
	"pageFresh":     {"head_pkey", "job_fresh", "lease_pkey"},
	"pageClaimed":   {"claim_queue", "job_fresh", "lease_pkey"},
}

// whole are those that do something to all rows of a sort.
var whole = map[string]bool{"thawReady": true, "thawClaimed": true}

// noPlan are statements that touch no table of jobs.
var noPlan = []string{
	"pin", "pinCommitted", "pinned", "unpin", "share", "beginAcks", "endAcks", "begin", "commit", "lock", "locks", "tryLock", // settings and locks
	"freeze", "noClaims", "noHeads", // all rows, without a condition
	"notify", "notifyAlone", "beginEvents", "xid", "ended", "now", "system", // no table
	"knownSystem", "noteSystem", // one row
	"pause", "resume", "paused", // a row for each queue that is paused
}

// scanned finds a scan of a whole table of jobs, by way of an index or not, that
// does not end with the first row.
func scanned(plan string) bool {
	lines := strings.Split(plan, "\n")
	for i, line := range lines {
		switch {
		case strings.Contains(line, "Seq Scan on pawl_job"), strings.Contains(line, "Seq Scan on pawl_lease"),
			strings.Contains(line, "Seq Scan on pawl_claim"), strings.Contains(line, "Seq Scan on pawl_head"),
			strings.Contains(line, "Bitmap Heap Scan") && !byKey(lines[i:]):
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

// byKey reports whether the index of the first bitmap is a primary key, of which a
// statement looks for one value.
func byKey(lines []string) bool {
	for _, line := range lines {
		if _, index, ok := strings.Cut(line, "Bitmap Index Scan on "); ok {
			return slices.Contains([]string{"pawl_job_pkey", "pawl_lease_pkey", "pawl_claim_pkey"}, strings.Fields(index)[0])
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

// TestStatementsHavePlans: each statement is in one of the lists above, and all
// that the package runs on its tables are statements.
func TestStatementsHavePlans(t *testing.T) {
	listed := map[string]int{}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(indexes)), noPlan) {
		listed[name]++
	}
	for field := range reflect.TypeFor[statements]().Fields() {
		if listed[field.Name] != 1 {
			t.Errorf("statement %s is listed %d times", field.Name, listed[field.Name])
		}
		delete(listed, field.Name)
	}
	for name := range listed {
		t.Errorf("%s is no statement", name)
	}
	// Those that make and look for the tables have other text than statements.
	others := []string{"within", "apart", "Steps", "schemaVersion"}
	for _, f := range parsed(t) {
		for _, decl := range f.Decls {
			fun, ok := decl.(*ast.FuncDecl)
			if !ok || fun.Recv != nil && receiver(fun) == "statements" || slices.Contains(others, fun.Name.Name) {
				continue
			}
			ast.Inspect(fun, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "named" {
						t.Errorf("%s makes a statement that is not a field of statements", fun.Name.Name)
					}
				}
				return true
			})
		}
	}
}

// parsed are the files of the package without its tests.
func parsed(t *testing.T) (files []*ast.File) {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

func receiver(f *ast.FuncDecl) string {
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	id, _ := typ.(*ast.Ident)
	return id.Name
}

// TestNoSetInPipelines: until a minor version of 2025 servers warn, in their log, that
// SET LOCAL in a pipeline is in no transaction block.
func TestNoSetInPipelines(t *testing.T) {
	for field, v := range reflect.ValueOf(newStatements(&Options{})).Elem().Fields() {
		for _, sql := range sqlOf(v) {
			if strings.HasPrefix(sql, "SET ") {
				t.Errorf("%s: %s", field.Name, sql)
			}
		}
	}
}

// planRows is how many jobs the largest table of TestPlans has.
const planRows = 1_000_000

// TestPlans holds the planner to the indexes, whatever it knows of the tables.
func TestPlans(t *testing.T) {
	t.Parallel() // with what mostly waits
	pool := planPool(t)
	s, err := New(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for i, state := range []struct{ name, sql string }{
		{"fresh", "SELECT 1"},
		{"analyzed while empty", "VACUUM ANALYZE"},
		{"full", fillPlans(20_000, "n % 7", "'q' || n % 3")},
		{"analyzed", "ANALYZE"},
		{"deleted", "DELETE FROM pawl_job"},
		{"analyzed after delete", "ANALYZE"},
		// Nearly all jobs have ended, and nearly all are of one queue.
		{"huge", emptyPlans + fillPlans(planRows, "CASE WHEN n % 10 = 0 THEN n / 10 % 7 ELSE 4 END", "CASE WHEN n % 100 = 0 THEN 'q2' ELSE 'q1' END")},
		{"huge and analyzed", "ANALYZE"},
		{"huge and vacuumed", "VACUUM ANALYZE"},
		{"huge and deleted", "DELETE FROM pawl_job"},
		{"analyzed after huge", "ANALYZE"},
	} {
		begun := time.Now()
		for _, sql := range strings.Split(state.sql, ";") {
			if _, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%s: made in %v", state.name, time.Since(begun).Round(time.Millisecond))
		for field, v := range reflect.ValueOf(s.q).Elem().Fields() {
			want, ok := indexes[field.Name]
			if !ok {
				continue
			}
			settings := []string{s.q.pin}
			if strings.HasPrefix(field.Name, "ack") {
				settings = append(settings, s.q.beginAcks)
			}
			for _, sql := range sqlOf(v) {
				checkPlan(t, state.name+": "+field.Name, explainGeneric(t, pool, sql, settings...), want, whole[field.Name])
			}
		}
		if i > 1 {
			checkCallers(t, pool, s, state.name)
		}
	}
}

// emptyPlans leaves nothing of the tables before.
const emptyPlans = "TRUNCATE pawl_job, pawl_head, pawl_claim, pawl_lease;"

// fillPlans makes tables on which a wrong plan shows, with n jobs. Their IDs are
// in the order of time, as real ones are.
func fillPlans(n int, state, queue string) string {
	return fmt.Sprintf(`ALTER TABLE pawl_job SET UNLOGGED; ALTER TABLE pawl_lease SET UNLOGGED;
		INSERT INTO pawl_job (id, run_at, created_at, claimed_at, lease_until, finished_at, purge_at, retention, fence,
			max_attempts, max_rescues, state, priority, queue, kind, xid)
		SELECT lpad(to_hex(n), 32, '0')::uuid, n, n, n, n, n, CASE WHEN state >= 3 THEN n END, 1, n, 1, 1, state, 0, %s, 'k', n::text::xid8
		FROM (SELECT n, %s AS state FROM generate_series(1, %d) n) x;
		INSERT INTO pawl_head (queue, gen, xid, seq, pend, pendseq) SELECT 'q' || n, 0, '0', 0, '{}', '{}' FROM generate_series(1, 2000) n;
		INSERT INTO pawl_claim (fence, token, mark, claimed_at, lease, until, lo, hi, queue, worker, seqs, xids, ids)
		SELECT n, n, n, n, n, n, n, n, 'q' || n %% 3, 'w', ARRAY[n], ARRAY[n::text::xid8], '{}' FROM generate_series(1, 2000) n;
		INSERT INTO pawl_lease (seq, id, fence, until, extends) SELECT seq, id, fence, lease_until, 1 FROM pawl_job WHERE state = 3`, queue, state, n)
}

func checkPlan(t *testing.T, name, plan string, want []string, all bool) {
	t.Helper()
	if !all && scanned(plan) {
		t.Errorf("%s: a scan of a whole table:\n%s", name, plan)
	}
	for _, index := range want {
		if strings.Contains(index, " ") {
			if !strings.Contains(plan, index) {
				t.Errorf("%s: there is no %s:\n%s", name, index, plan)
			}
		} else if !strings.Contains(plan, "pawl_"+index+" ") && !strings.Contains(plan, "pawl_"+index+"\n") {
			t.Errorf("%s: %s is not used:\n%s", name, index, plan)
		}
	}
}

// sqlOf is what a field of statements holds: one, or one by shape.
func sqlOf(v reflect.Value) (all []string) {
	if v.Kind() != reflect.Array {
		return []string{v.String()}
	}
	for i := range v.Len() {
		all = append(all, v.Index(i).String())
	}
	return all
}

// explainGeneric explains a statement for any arguments, after some settings.
func explainGeneric(t *testing.T, pool *pgxpool.Pool, sql string, settings ...string) string {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	for _, sql := range append(slices.Clone(settings), "DEALLOCATE ALL", "PREPARE p AS "+sql) {
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
	// What the planner knows must not depend on when the test gets the processor.
	settings := map[string]string{"autovacuum": "off"}
	server := testserver.NewPostgres(t, &testserver.PostgresOptions{MaxConnections: 20, Settings: settings})
	pool, err := pgxpool.New(t.Context(), server.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// checkCallers looks at statements that run in callers' transactions, without the
// settings that the Store makes in its own, on tables that are not empty.
func checkCallers(t *testing.T, pool *pgxpool.Pool, s *Store, state string) {
	t.Helper()
	outcomes := make([]pawl.Outcome, 100)
	reqs := make([]*pawl.Request, 100)
	for i := range outcomes {
		id := uuid.Must(uuid.NewV7())
		outcomes[i] = pawl.Outcome{Ref: pawl.Ref{Queue: "q1", ID: id, Fence: 1}, Verb: pawl.Ack}
		reqs[i] = &pawl.Request{ID: id, Queue: "q1", Kind: "k", UniqueKey: id.String()}
	}
	st, id := s.newSettlement(outcomes), reqs[0].ID.String()
	for _, c := range []struct {
		name, sql string
		args      []any
	}{
		{"settleTx", s.q.settleTx, st.args(st.rounds[0])},
		{"insert of one", s.q.insert[oneRow], requestArgs(nil, reqs[:1], oneRow)},
		{"insert of alike", s.q.insert[alikeRows], requestArgs(nil, reqs, alikeRows)},
		{"insert of any", s.q.insert[anyRows], requestArgs(nil, reqs, anyRows)},
		{"replace", s.q.replace, append(requestArgs(nil, reqs[:1], oneRow), id)},
		{"forgetProgressOf", s.q.forgetProgressOf, []any{id}},
		{"exists", s.q.exists, []any{id}},
		{"holder", s.q.holder, []any{nil, "q1", "key"}},
		{"releaseKey", s.q.releaseKey, []any{id}},
		{"drop", s.q.drop, []any{nil, id}},
		{"remove", s.q.remove, []any{st.args(st.rounds[0])[1]}},
	} {
		rows, err := pool.Query(t.Context(), "EXPLAIN "+c.sql, append([]any{pgx.QueryExecModeCacheDescribe}, c.args...)...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		checkPlan(t, state+": in a caller's transaction: "+c.name, strings.Join(lines, "\n")+"\n", nil, false)
		generic := explainGeneric(t, pool, c.sql, "SET LOCAL plan_cache_mode = force_generic_plan")
		checkPlan(t, state+": in a caller's transaction, for any arguments: "+c.name, generic, nil, false)
	}
}
