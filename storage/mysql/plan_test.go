package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/excess"
)

// explaining has each statement explained before it is run.
type explaining struct {
	*sql.Tx
	t *testing.T
}

func (e explaining) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	e.explain(ctx, query, args)
	return e.Tx.ExecContext(ctx, query, args...)
}

func (e explaining) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	e.explain(ctx, query, args)
	return e.Tx.QueryContext(ctx, query, args...)
}

// explain holds a statement to the indexes: none may read a whole table, or a
// whole index, or sort.
func (e explaining) explain(ctx context.Context, query string, args []any) {
	e.t.Helper()
	query = strings.TrimPrefix(query, shortWait)
	if word, _, _ := strings.Cut(query, " "); !slices.Contains([]string{"SELECT", "UPDATE", "DELETE"}, word) {
		return
	}
	rows, err := e.Tx.QueryContext(ctx, "EXPLAIN "+query, args...)
	if err != nil {
		e.t.Errorf("EXPLAIN %.200s: %v", query, err)
		return
	}
	defer rows.Close()
	for rows.Next() {
		var table, access, extra sql.NullString
		var other [7]sql.RawBytes
		err := rows.Scan(&other[0], &other[1], &table, &access, &other[2], &other[3], &other[4], &other[5], &other[6], &extra)
		if err != nil {
			e.t.Error(err)
			return
		}
		derived := strings.HasPrefix(table.String, "<") || table.String == "v"
		if !derived && table.String != "" && (access.String == "ALL" || access.String == "index" && !first(query)) {
			e.t.Errorf("all of %s is read (%s) by %.400s", table.String, access.String, query)
		}
		if !derived && strings.Contains(extra.String, "filesort") && !strings.Contains(query, "token =") {
			e.t.Errorf("rows of %s are sorted by %.400s", table.String, query)
		}
	}
}

// first reports whether a statement reads an index from its beginning and ends
// with the first rows.
func first(query string) bool { return strings.Contains(query, "pawl_fence") }

// TestPlans runs the statements of all calls on tables with a little of all.
func TestPlans(t *testing.T) {
	db := ownDB(t)
	s, err := New(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	planJobs(t, s)
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, fast := range []bool{true, false} {
		b := s.newBatch(t.Context(), explaining{tx, t})
		b.fast = fast
		claimed := planClaim(t, b)
		planSettle(t, b, claimed)
		if !fast {
			planRest(t, b, claimed)
		}
	}
}

// planJobs fills a queue with jobs in all states.
func planJobs(t *testing.T, s *Store) {
	t.Helper()
	for i := range 6 {
		reqs := make([]*pawl.Request, 500)
		for k := range reqs {
			reqs[k] = &pawl.Request{
				ID: uuid.Must(uuid.NewV7()), Queue: []string{"a", "b"}[k%2], Kind: "k", MaxAttempts: 2, MaxRescues: 1,
				Retention: time.Hour, Priority: k % 3, MaxDepth: pawl.Unlimited, WhenFull: pawl.Reject,
			}
			switch {
			case i == 1:
				reqs[k].Delay = time.Hour
			case k%10 == 1:
				reqs[k].UniqueKey = fmt.Sprint(i, k)
			case k%10 == 2:
				reqs[k].Payload = make([]byte, 2000)
			}
		}
		if _, err := s.Enqueue(t.Context(), reqs); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			continue
		}
		c, err := s.Claim(t.Context(), planSpec(400))
		if err != nil {
			t.Fatal(err)
		}
		var outcomes []pawl.Outcome
		for k, j := range c.Jobs {
			outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Verb(k%3) + 1, Delay: time.Hour})
		}
		if _, err := s.Settle(t.Context(), outcomes); err != nil {
			t.Fatal(err)
		}
	}
}

func planSpec(n int) pawl.ClaimSpec {
	return pawl.ClaimSpec{
		Queues: []pawl.QueueAsk{{Queue: "a", Max: n}, {Queue: "b", Max: n}}, Max: n, Lease: time.Minute, Worker: "w", Token: 7,
	}
}

func planClaim(t *testing.T, b *batch) []*pawl.Job {
	t.Helper()
	spec := planSpec(50)
	if b.fast {
		spec.Token++
	}
	c, err := b.claim(spec, nil)
	if err != nil || len(c.Jobs) != 50 {
		t.Fatalf("claimed %d jobs, error %v", len(c.Jobs), err)
	}
	spec.Repeat = true
	if again, err := b.claim(spec, nil); err != nil || len(again.Jobs) != 50 {
		t.Fatalf("claimed %d jobs again, error %v", len(again.Jobs), err)
	}
	b.now += 2 * time.Hour.Microseconds() // all that was put off is due
	for _, queue := range []string{"a", "b"} {
		if n, err := b.promote(queue, 100); n != 100 || err != nil {
			t.Fatalf("promoted %d, error %v", n, err)
		}
	}
	if _, err := b.expire(100); err != nil {
		t.Fatal(err)
	}
	return c.Jobs
}

func planSettle(t *testing.T, b *batch, jobs []*pawl.Job) {
	t.Helper()
	var outcomes []pawl.Outcome
	var renewals []pawl.Renewal
	for i, j := range jobs {
		ref := j.Ref
		if i%4 == 0 {
			ref.Locator = 0
		}
		o := pawl.Outcome{Ref: ref, Verb: pawl.Verb(i%6) + 1, Result: make([]byte, i%3*1000)}
		if i%2 == 0 {
			outcomes = append(outcomes, o)
		} else {
			renewals = append(renewals, pawl.Renewal{Ref: ref, Lease: time.Minute})
		}
	}
	if b.fast { // which is for acks alone
		outcomes = slices.DeleteFunc(outcomes, func(o pawl.Outcome) bool { return o.Ref.Locator&3 == ackSlow || o.Ref.Locator == 0 })
		for i := range outcomes {
			outcomes[i].Verb, outcomes[i].Result = pawl.Ack, nil
		}
	}
	st := newSettlement(outcomes)
	if err := st.run(b); err != nil || len(st.lost()) > 0 {
		t.Fatalf("lost %v, error %v", st.lost(), err)
	}
	gone := make([]bool, len(renewals))
	todo := make([]int, len(renewals))
	for i := range todo {
		todo[i] = i
	}
	if locked, err := b.extend(renewals, todo, gone); err != nil || len(locked) > 0 || slices.Contains(gone, true) {
		t.Fatalf("locked %v, gone %v, error %v", locked, gone, err)
	}
}

func planRest(t *testing.T, b *batch, jobs []*pawl.Job) {
	t.Helper()
	spec := pawl.SweepSpec{Limit: 20, BuriedRetention: time.Hour}
	var sw pawl.Swept
	for _, step := range []func(*batch, pawl.SweepSpec, *pawl.Swept) (bool, error){
		(*batch).sweepScheduled, (*batch).sweepLate, (*batch).sweepLeases, (*batch).sweepFences,
	} {
		if _, err := step(b, spec, &sw); err != nil {
			t.Fatal(err)
		}
	}
	bounds := []excess.Bound{{State: pawl.Completed, Most: 10}, {State: pawl.Buried, Most: 10}, {State: pawl.Canceled, Most: 10}}
	queue, cuts, _, err := b.lookForExcess("", bounds)
	if err != nil || queue != "a" || len(cuts) == 0 {
		t.Fatalf("%d states of queue %q have too many jobs, error %v", len(cuts), queue, err)
	}
	for _, c := range cuts {
		if p, err := b.nthExcess(c, excess.Hold); p != (place{}) || err != nil {
			t.Fatalf("a step ends at %v, error %v", p, err)
		}
		if n, err := b.purgeExcess(c, 5); n != 5 || err != nil {
			t.Fatalf("purged %d, error %v", n, err)
		}
	}
	if n, err := b.purgeOver(20); n == 0 || err != nil {
		t.Fatalf("purged %d, error %v", n, err)
	}
	if _, err := b.nextOfAll(spec); err != nil {
		t.Fatal(err)
	}
	ids := make([]pawl.ID, len(jobs))
	for i, j := range jobs {
		ids[i] = j.ID
	}
	for _, verb := range []pawl.ChangeVerb{pawl.Cancel, pawl.Kick, pawl.Reschedule, pawl.Delete} {
		if _, err := b.change(pawl.Change{Verb: verb, IDs: ids}); err != nil {
			t.Fatal(err)
		}
	}
	req := &pawl.Request{
		ID: uuid.Must(uuid.NewV7()), Queue: "a", Kind: "k", MaxAttempts: 2, MaxRescues: 1, Retention: time.Hour,
		UniqueKey: "0 21", OnDuplicate: pawl.Replace, MaxDepth: 3, WhenFull: pawl.DropOldest,
	}
	for range 2 {
		if err := newEnqueue([]*pawl.Request{req, {ID: uuid.Must(uuid.NewV7()), Queue: "a", Kind: "k", MaxDepth: 3,
			WhenFull: pawl.DropOldest, MaxAttempts: 1, MaxRescues: 1, Retention: 1}}).run(b); err != nil {
			t.Fatal(err)
		}
	}
	req.UniqueKey = "0 31"
	l, err := b.lookAtKeys(newEnqueue([]*pawl.Request{req}))
	if err != nil || len(l.rest) > 0 {
		t.Fatalf("%d keys are free, error %v", len(l.rest), err)
	}
	if _, err := b.whole(b.sql(wholeJob + " WHERE j.id IN (").ids(ids).add(")")); err != nil {
		t.Fatal(err)
	}
	list := &lister{b: b, spec: pawl.ListSpec{Limit: 1000, Payloads: true}, at: new(cursor)}
	if err := list.walk(); err != nil || len(list.page.Jobs) == 0 {
		t.Fatalf("listed %d jobs, error %v", len(list.page.Jobs), err)
	}
	if _, err := b.count(nil); err != nil {
		t.Fatal(err)
	}
}
