package mysql_test

import (
	"database/sql"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/mysql"
)

// Extend waits for what a rescue makes of a job, as it does not for other transactions.
func TestExtendWaitsForRescue(t *testing.T) {
	start, looks := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), make(chan struct{})
	var ahead atomic.Int64
	s := fresh(t, &mysql.Options{Clock: func() time.Time {
		select {
		case looks <- struct{}{}:
		default:
		}
		return start.Add(time.Duration(ahead.Load()))
	}})
	enqueue(t, s, pawl.Request{})
	ref := claim(t, s, 1)[0].Ref
	ahead.Store(int64(time.Hour))

	tx := beginTx(t, s.DB(), sql.LevelReadCommitted)
	run(t, tx, "SELECT one INTO @one FROM pawl_meta LOCK IN SHARE MODE")
	run(t, tx, "UPDATE pawl_job SET state = 2")
	type answer struct {
		lost []pawl.Ref
		err  error
	}
	extended := make(chan answer, 1)
	go func() {
		lost, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: ref, Lease: time.Minute}})
		extended <- answer{lost, err}
	}()
	for range 6 { // more looks than it takes to see that the job is locked
		select {
		case a := <-extended:
			t.Fatalf("before the rescue is committed Extend says that %v is lost, error %v", a.lost, a.err)
		case <-looks:
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if a := <-extended; a.err != nil || len(a.lost) != 1 || a.lost[0] != ref {
		t.Errorf("after a rescue Extend says that %v is lost, error %v", a.lost, a.err)
	}
}
