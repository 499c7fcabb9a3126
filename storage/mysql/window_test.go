package mysql_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// A claim that finds its candidates taken goes on to those behind them: a pool that
// gets less than it asked for takes the queue to be empty and rests, while those who
// were faster go on.
func TestClaimGoesOnAfterLoss(t *testing.T) {
	s := fresh(t, nil)
	for range 60 {
		enqueue(t, s, pawl.Request{})
	}
	const taken = 10
	for _, n := range []int{20, 5} { // some of the candidates are lost, then all of them
		other := beginTx(t, s.DB(), sql.LevelReadCommitted)
		run(t, other, fmt.Sprintf("UPDATE pawl_job SET state = 3, urgency = 0, fence = -1 WHERE state = 2 ORDER BY seq LIMIT %d", taken))
		type result struct {
			c   pawl.Claimed
			err error
		}
		claimed := make(chan result, 1)
		go func() {
			c, err := s.Claim(t.Context(), spec(n))
			claimed <- result{c, err}
		}()
		awaitTaking(t, s.DB())
		if err := other.Commit(); err != nil {
			t.Fatal(err)
		}
		r := <-claimed
		if r.err != nil || len(r.c.Jobs) != n {
			t.Fatalf("claimed %d jobs, error %v; want %d", len(r.c.Jobs), r.err, n)
		}
		for i, j := range r.c.Jobs[1:] {
			if j.RunAt.Before(r.c.Jobs[i].RunAt) {
				t.Error("the jobs are not in claim order")
			}
		}
	}
}

// awaitTaking waits until a claim in the database has read its candidates.
func awaitTaking(t *testing.T, db *sql.DB) {
	t.Helper()
	const taking = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'SET STATEMENT%UPDATE%'"
	for end := time.Now().Add(20 * time.Second); number(t, db, taking) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no claim takes its candidates")
		}
	}
}
