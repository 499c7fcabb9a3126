package mysql_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// A transaction holds the jobs that it has settled, and no others, however small
// the table is and whatever its isolation level.
func TestTransactionHoldsItsJobs(t *testing.T) {
	for _, level := range levels {
		s := fresh(t, nil)
		for range 6 {
			enqueue(t, s, pawl.Request{Retention: pawl.DeleteNow, Payload: make([]byte, 2000)})
		}
		jobs := claim(t, s, 4)
		tx := beginTx(t, s.DB(), level)
		for _, group := range [][]*pawl.Job{jobs[:2], jobs[2:3]} {
			var outcomes []pawl.Outcome
			for i, j := range group {
				ref := j.Ref
				ref.Locator *= int64(i % 2) // by number and by ID
				outcomes = append(outcomes, pawl.Outcome{Ref: ref, Verb: pawl.Ack})
			}
			settle(t, s.Tx(tx), outcomes...)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // less than the server waits
		lost, err := s.Settle(ctx, []pawl.Outcome{{Ref: jobs[3].Ref, Verb: pawl.Ack}})
		cancel()
		if err != nil || len(lost) > 0 {
			t.Errorf("%v: a job beside those of an open transaction: lost %v, error %v", level, lost, err)
		}
		claim(t, s, 2)
		enqueue(t, s, pawl.Request{Payload: make([]byte, 2000)})
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// A claim passes by a job that an open transaction has rewritten.
func TestClaimPassesLockedJob(t *testing.T) {
	s := fresh(t, nil)
	first := enqueue(t, s, pawl.Request{UniqueKey: "k"})
	other := enqueue(t, s, pawl.Request{})
	tx := beginTx(t, s.DB(), sql.LevelRepeatableRead)
	got := enqueue(t, s.Tx(tx), pawl.Request{UniqueKey: "k", OnDuplicate: pawl.Replace})
	if got.Status != pawl.Replaced || got.ID != first.ID {
		t.Fatalf("receipt %+v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // less than the server waits
	defer cancel()
	c, err := s.Claim(ctx, spec(5))
	if err != nil || len(c.Jobs) != 1 || c.Jobs[0].ID != other.ID {
		t.Fatalf("claimed %d jobs, error %v; want the one that is free", len(c.Jobs), err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if j := claim(t, s, 1)[0]; j.ID != first.ID {
		t.Error("the wrong job was claimed")
	}
}
