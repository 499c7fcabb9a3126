package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
)

// old is a program that knows versions 1 and 2 of the schema, where all jobs are
// placed and each claim writes their rows.
type old struct {
	t      *testing.T
	pool   *pgxpool.Pool
	schema string
}

// newOld makes tables of an older version.
func newOld(t *testing.T, version int) *old {
	pool := openPool(t, testserver.Postgres(t), 12)
	o := &old{t: t, pool: pool, schema: newSchema(t, pool)}
	o.upgrade(0, version)
	return o
}

func (o *old) options() *postgres.Options { return &postgres.Options{Schema: o.schema} }

// upgrade runs the steps from one version to another as another tool would.
func (o *old) upgrade(from, to int) {
	o.t.Helper()
	steps, err := postgres.Steps(o.options())
	if err != nil {
		o.t.Fatal(err)
	}
	for _, step := range steps[from:to] {
		if _, err := o.pool.Exec(o.t.Context(), step.SQL, pgx.QueryExecModeSimpleProtocol); err != nil {
			o.t.Fatal(step.Name, err)
		}
	}
}

func (o *old) sql(text string) string { return strings.ReplaceAll(text, "public.", o.schema+".") }

// enqueue stores a job with values of some columns.
func (o *old) enqueue(columns, values string) (pawl.ID, error) {
	id := pawl.ID(uuid.New())
	_, err := o.pool.Exec(o.t.Context(), o.sql(`INSERT INTO public.pawl_job
		(id, queue, kind, run_at, created_at, retention, max_attempts, max_rescues, priority, `+columns+`)
		SELECT '`+id.String()+`', 'default', 'kind', now, now, 3600000000, 3, 3, 0, `+values+`
		FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) t`))
	return id, err
}

func (o *old) mustEnqueue(columns, values string) pawl.ID {
	o.t.Helper()
	id, err := o.enqueue(columns, values)
	if err != nil {
		o.t.Fatal(err)
	}
	return id
}

// claim claims up to n jobs.
func (o *old) claim(n int) (refs []pawl.Ref, err error) {
	rows, err := o.pool.Query(o.t.Context(), o.sql(`WITH t AS MATERIALIZED (
			SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now),
		f AS MATERIALIZED (SELECT nextval('public.pawl_fence') AS fence),
		c AS MATERIALIZED (
			SELECT ctid AS tid FROM public.pawl_job WHERE state = 2 AND queue = 'default'
				AND (start_before IS NULL OR start_before > (SELECT now FROM t))
			ORDER BY priority, run_at, seq LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED)
		UPDATE public.pawl_job j SET state = 3, fence = (SELECT fence FROM f), token = 1, worker = 'old',
			claimed_at = t.now, started_at = coalesce(j.started_at, t.now), lease_until = t.now + 60000000,
			attempt = j.attempt + 1, reason = NULL
		FROM t, c WHERE j.ctid = c.tid RETURNING j.id, j.fence`), n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r pawl.Ref, err error) {
		r.Queue = "default"
		return r, row.Scan((*[16]byte)(&r.ID), &r.Fence)
	})
}

// ack completes a job.
func (o *old) ack(ref pawl.Ref) error {
	tag, err := o.pool.Exec(o.t.Context(), o.sql(`UPDATE public.pawl_job SET state = 4, last_fence = fence, last_verb = 1,
		finished_at = claimed_at, purge_at = claimed_at + retention, held = NULL
		WHERE id = $1 AND state = 3 AND fence = $2`), ref.ID.String(), ref.Fence)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("claim %d of job %v was lost", ref.Fence, ref.ID)
	}
	return err
}

// leaveInvalid leaves the index behind that a build which was cut off leaves.
func (o *old) leaveInvalid() {
	o.t.Helper()
	writer, err := o.pool.Begin(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	defer writer.Rollback(context.Background())
	for _, sql := range []string{"SELECT pg_current_xact_id()", "LOCK TABLE public.pawl_job IN ROW EXCLUSIVE MODE"} {
		if _, err := writer.Exec(o.t.Context(), o.sql(sql)); err != nil {
			o.t.Fatal(err)
		}
	}
	conn, err := o.pool.Acquire(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	defer conn.Release()
	exec := func(sql string) error { _, err := conn.Exec(o.t.Context(), o.sql(sql)); return err }
	if err := exec("SET statement_timeout = 50"); err != nil {
		o.t.Fatal(err)
	}
	if err := exec("CREATE INDEX CONCURRENTLY pawl_job_fresh ON public.pawl_job (queue, xid, seq) WHERE state = 0"); err == nil {
		o.t.Fatal("the index was built past a writer")
	}
	if err := exec("RESET statement_timeout"); err != nil {
		o.t.Fatal(err)
	}
	if valid, there := o.index(); valid || !there {
		o.t.Fatalf("the index is there: %v, valid: %v", there, valid)
	}
}

// index tells of the index that is built concurrently.
func (o *old) index() (valid, there bool) {
	o.t.Helper()
	err := o.pool.QueryRow(o.t.Context(), `SELECT coalesce(bool_and(indisvalid), false), count(*) > 0
		FROM pg_index WHERE indexrelid = to_regclass($1)`, o.schema+".pawl_job_fresh").Scan(&valid, &there)
	if err != nil {
		o.t.Fatal(err)
	}
	return valid, there
}

// TestUpgrade: jobs of older versions stay what they are, whichever way the
// tables are upgraded.
func TestUpgrade(t *testing.T) {
	atOnce := func(o *old) {
		errs := make([]error, 10)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { errs[i] = postgres.Migrate(o.t.Context(), o.pool, o.options()) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			o.t.Fatal(err)
		}
	}
	ways := map[string]func(o *old, version int){
		"ten at once": func(o *old, _ int) { atOnce(o) },
		"after a crash": func(o *old, version int) {
			o.upgrade(version, 3)
			o.leaveInvalid()
			atOnce(o)
		},
		"in a transaction": func(o *old, _ int) {
			err := pgx.BeginFunc(o.t.Context(), o.pool, func(tx pgx.Tx) error {
				return postgres.MigrateTx(o.t.Context(), tx, o.options())
			})
			if err != nil {
				o.t.Fatal(err)
			}
		},
	}
	for version := 1; version <= 3; version++ {
		for name, way := range ways {
			t.Run(fmt.Sprintf("from %d %s", version, name), func(t *testing.T) {
				o := newOld(t, version)
				upgraded(o, version, func() { way(o, version) })
			})
		}
	}
}

func upgraded(o *old, version int, upgrade func()) {
	t := o.t
	running := o.mustEnqueue("state", "2")
	refs, err := o.claim(1)
	if err != nil || len(refs) != 1 {
		t.Fatal(refs, err)
	}
	want := map[pawl.ID]pawl.State{
		running:                     pawl.Running,
		o.mustEnqueue("state", "2"): pawl.Ready,
		o.mustEnqueue("state", "2"): pawl.Ready,
		o.mustEnqueue("state, finished_at, purge_at", "4, now, now + 3600000000"): pawl.Completed,
		o.mustEnqueue("state, finished_at, reason", "5, now, 'bury'"):             pawl.Buried,
	}
	waiting := 4 // with the one that is added below
	if version >= 3 {
		waiting++
		want[o.mustEnqueue("state, xid", "0, pg_current_xact_id()")] = pawl.Ready
	}
	want[o.mustEnqueue("state, ukey, umode, held", "2, 'key', 0, true")] = pawl.Ready
	want[o.mustEnqueue("state, start_before", "1, now + 3600000000")] = pawl.Scheduled
	if _, err := o.pool.Exec(t.Context(), o.sql("UPDATE public.pawl_job SET run_at = start_before, start_before = NULL WHERE state = 1")); err != nil {
		t.Fatal(err)
	}
	upgrade()
	if valid, _ := o.index(); !valid {
		t.Error("the index is not valid")
	}
	s := open(t, o.pool, &postgres.Options{Schema: o.schema, NoMigrate: true})
	for id, st := range want {
		if got := state(t, s, id); got != st {
			t.Errorf("job %v is %v, want %v", id, got, st)
		}
	}
	settle(t, s, pawl.Outcome{Ref: refs[0], Verb: pawl.Ack})
	if r := enqueue(t, s, pawl.Request{UniqueKey: "key"}); r.Status != pawl.Duplicate {
		t.Errorf("the key is free: %v", r.Status)
	}
	added := enqueue(t, s, pawl.Request{}).ID
	jobs := claim(t, s, waiting)
	for _, j := range jobs {
		if want[j.ID] != pawl.Ready && j.ID != added {
			t.Errorf("claimed %v, which was %v", j.ID, want[j.ID])
		}
	}
	if jobs[waiting-1].ID != added {
		t.Error("the job that was enqueued last is not the last")
	}
	claim(t, s, 0)
}

// TestOldPrograms: programs of the version before go on enqueueing and working
// during the upgrade and beside new ones; every job is done once.
func TestOldPrograms(t *testing.T) {
	o := newOld(t, 2)
	const each = 150
	d := &done{n: map[pawl.ID]int{}, want: 4 * each, all: make(chan struct{})}
	var wg sync.WaitGroup
	stored := make(chan struct{})
	wg.Go(func() {
		defer close(stored)
		for range 2 * each {
			if _, err := o.enqueue("state", "2"); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 2 {
		wg.Go(func() { d.work(t, o.cycle) })
	}
	if err := postgres.Migrate(t.Context(), o.pool, o.options()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s := open(t, o.pool, o.options())
		wg.Go(func() {
			for range each {
				enqueue(t, s, pawl.Request{})
			}
		})
		wg.Go(func() { d.work(t, func() ([]pawl.Ref, error) { return cycleOnce(t.Context(), s) }) })
	}
	select {
	case <-d.all:
	case <-time.After(time.Minute):
		t.Error("not all jobs were done")
		d.end()
	}
	wg.Wait()
	<-stored
	for id, n := range d.n {
		if n != 1 {
			t.Errorf("job %v was done %d times", id, n)
		}
	}
	if refs, err := o.claim(1); err != nil || len(refs) > 0 {
		t.Errorf("left over: %v, error %v", refs, err)
	}
	claim(t, open(t, o.pool, o.options()), 0)
}

// cycle claims some jobs and completes them.
func (o *old) cycle() ([]pawl.Ref, error) {
	refs, err := o.claim(3)
	for _, ref := range refs {
		err = errors.Join(err, o.ack(ref))
	}
	return refs, err
}

func cycleOnce(ctx context.Context, s *postgres.Store) (refs []pawl.Ref, err error) {
	c, err := s.Claim(ctx, spec(3))
	if err != nil {
		return nil, err
	}
	var outcomes []pawl.Outcome
	for _, j := range c.Jobs {
		refs = append(refs, j.Ref)
		outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
	}
	lost, err := s.Settle(ctx, outcomes)
	if len(lost) > 0 {
		err = errors.Join(err, fmt.Errorf("lost %v", lost))
	}
	return refs, err
}

// done counts how often each job was done, until all were.
type done struct {
	mu   sync.Mutex
	n    map[pawl.ID]int
	want int
	all  chan struct{}
	once sync.Once
}

func (d *done) end() { d.once.Do(func() { close(d.all) }) }

func (d *done) work(t *testing.T, cycle func() ([]pawl.Ref, error)) {
	for {
		select {
		case <-d.all:
			return
		default:
		}
		refs, err := cycle()
		if err != nil {
			t.Error(err)
			d.end()
			return
		}
		d.add(refs)
	}
}

func (d *done) add(refs []pawl.Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, ref := range refs {
		d.n[ref.ID]++
	}
	if len(d.n) >= d.want {
		d.end()
	}
}
