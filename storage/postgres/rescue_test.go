package postgres_test

import (
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/storage/storagetest"
)

// Extend waits for what a rescue makes of a job, as it does not for other transactions.
func TestExtendWaitsForRescue(t *testing.T) {
	server := testserver.Postgres(t)
	proxy, clock, pool := testserver.NewProxy(t, server), storagetest.NewClock(), openPool(t, server, 4)
	o := &postgres.Options{Schema: newSchema(t, pool), Clock: clock.Now, PollOnly: true}
	direct := open(t, pool, o)
	rescuer := open(t, dialPool(t, proxy.DSN(""), 2, pgx.QueryExecModeCacheStatement), o)
	id := enqueue(t, direct, pawl.Request{}).ID
	ref := claim(t, direct, 1)[0].Ref
	clock.Advance(time.Hour)

	reached, held := make(chan struct{}), make(chan struct{})
	commit := sync.OnceFunc(func() { close(held) })
	defer commit()
	proxy.Decide(func(sql string) testserver.Fault {
		if locked(t, direct, id) {
			close(reached)
			<-held
		}
		return 0
	})
	swept := make(chan pawl.Swept, 1)
	go func() {
		s, err := rescuer.Sweep(t.Context(), pawl.SweepSpec{Limit: 10})
		if err != nil {
			t.Error(err)
		}
		swept <- s
	}()
	<-reached
	proxy.Decide(nil)
	extended := make(chan []pawl.Ref, 1)
	go func() {
		lost, err := direct.Extend(t.Context(), []pawl.Renewal{{Ref: ref, Lease: time.Minute}})
		if err != nil {
			t.Error(err)
		}
		extended <- lost
	}()
	for !waitsForLock(t, direct) {
		select {
		case lost := <-extended:
			t.Fatalf("before the rescue is committed Extend says that %v is lost", lost)
		default:
		}
	}
	commit()
	if s := <-swept; len(s.Rescued) != 1 {
		t.Errorf("the sweep rescued %v", s.Rescued)
	}
	if lost := <-extended; len(lost) != 1 || lost[0] != ref {
		t.Errorf("after a rescue Extend says that %v is lost", lost)
	}
}

// locked reports whether a transaction holds the job.
func locked(t *testing.T, s *postgres.Store, id pawl.ID) (held bool) {
	t.Helper()
	err := s.Pool().QueryRow(t.Context(), `SELECT NOT EXISTS (SELECT 1 FROM `+pgx.Identifier{s.Schema(), "pawl_job"}.Sanitize()+`
		WHERE id = $1::text::uuid FOR UPDATE SKIP LOCKED)`, id.String()).Scan(&held)
	if err != nil {
		t.Error(err)
	}
	return held
}

// waitsForLock reports whether somebody waits for the rescues of s.
func waitsForLock(t *testing.T, s *postgres.Store) (waits bool) {
	t.Helper()
	err := s.Pool().QueryRow(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = $1)`, s.RescueLock()).Scan(&waits)
	if err != nil {
		t.Fatal(err)
	}
	return waits
}

// TestExtendTiresOfRescue: a rescue that does not end keeps heartbeats waiting for a while
// only; the claim that it holds counts as alive.
func TestExtendTiresOfRescue(t *testing.T) {
	s := fresh(t, postgres.Options{})
	id := enqueue(t, s, pawl.Request{}).ID
	ref := claim(t, s, 1)[0].Ref
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	job := pgx.Identifier{s.Schema(), "pawl_job"}.Sanitize()
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock_shared($1)`, s.RescueLock()); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM `+job+` WHERE id = $1::text::uuid FOR UPDATE`, id.String()); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	lost, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: ref, Lease: time.Minute}})
	if len(lost) > 0 || err != nil {
		t.Errorf("beside a rescue that does not end Extend says that %v is lost, error %v", lost, err)
	}
	if took := time.Since(begun); took < postgres.RescueWait {
		t.Errorf("Extend has waited for %v, want %v", took, postgres.RescueWait)
	}
}
