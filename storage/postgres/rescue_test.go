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

func waitsForLock(t *testing.T, s *postgres.Store) (waits bool) {
	t.Helper()
	err := s.Pool().QueryRow(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)`).Scan(&waits)
	if err != nil {
		t.Fatal(err)
	}
	return waits
}
