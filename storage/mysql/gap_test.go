package mysql_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// TestTransactionHoldsNoPlaces sees that what a call has done in a transaction at
// REPEATABLE READ, the server's default, holds up nobody who enqueues something
// else while the transaction is open.
func TestTransactionHoldsNoPlaces(t *testing.T) {
	big := make([]byte, 2000)
	for _, c := range []struct {
		name string
		do   func(t *testing.T, s pawl.Storage, w pawl.Writer, j *pawl.Job, look func())
	}{
		{"a lost settle", func(t *testing.T, s pawl.Storage, w pawl.Writer, j *pawl.Job, _ func()) {
			settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
			lost, err := w.Settle(t.Context(), []pawl.Outcome{{Ref: j.Ref, Verb: pawl.Nack}})
			if err != nil || len(lost) != 1 {
				t.Errorf("lost %v, error %v", lost, err)
			}
		}},
		{"an ack", func(t *testing.T, s pawl.Storage, w pawl.Writer, j *pawl.Job, _ func()) {
			settle(t, w, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
		}},
		{"an ack after an old snapshot", func(t *testing.T, s pawl.Storage, w pawl.Writer, _ *pawl.Job, look func()) {
			look()
			enqueue(t, s, pawl.Request{})
			settle(t, w, pawl.Outcome{Ref: claim(t, s, 1)[0].Ref, Verb: pawl.Ack})
		}},
		{"a nack", func(t *testing.T, s pawl.Storage, w pawl.Writer, j *pawl.Job, _ func()) {
			settle(t, w, pawl.Outcome{Ref: j.Ref, Verb: pawl.Nack, Delay: time.Hour})
		}},
		{"a keyed enqueue", func(t *testing.T, s pawl.Storage, w pawl.Writer, _ *pawl.Job, _ func()) {
			enqueue(t, w, pawl.Request{UniqueKey: "a"})
		}},
		{"a duplicate after an old snapshot", func(t *testing.T, s pawl.Storage, w pawl.Writer, _ *pawl.Job, look func()) {
			look()
			enqueue(t, s, pawl.Request{UniqueKey: "a"})
			if got := enqueue(t, w, pawl.Request{UniqueKey: "a"}); got.Status != pawl.Duplicate {
				t.Errorf("receipt %+v", got)
			}
		}},
		{"a replacement", func(t *testing.T, s pawl.Storage, w pawl.Writer, _ *pawl.Job, _ func()) {
			enqueue(t, s, pawl.Request{UniqueKey: "a"})
			if got := enqueue(t, w, pawl.Request{UniqueKey: "a", OnDuplicate: pawl.Replace}); got.Status != pawl.Replaced {
				t.Errorf("receipt %+v", got)
			}
		}},
		{"a drop", func(t *testing.T, s pawl.Storage, w pawl.Writer, _ *pawl.Job, _ func()) {
			enqueue(t, s, pawl.Request{})
			enqueue(t, w, pawl.Request{MaxDepth: 1, WhenFull: pawl.DropOldest})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := fresh(t, nil)
			enqueue(t, s, pawl.Request{Queue: "other"})
			enqueue(t, s, pawl.Request{Retention: pawl.DeleteNow, Payload: big})
			j := claim(t, s, 1)[0]
			tx := beginTx(t, s.DB(), sql.LevelRepeatableRead)
			look := func() { run(t, tx, "SELECT COUNT(*) INTO @n FROM pawl_job") }
			c.do(t, s, s.Tx(tx), j, look)
			for _, r := range []pawl.Request{
				{}, {Delay: time.Hour}, {UniqueKey: "b"}, {Queue: "zz"}, {Payload: big}, {Queue: "zz", UniqueKey: "a"},
			} {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // less than the server waits
				if _, err := s.Enqueue(ctx, []*pawl.Request{request(r)}); err != nil {
					t.Errorf("an enqueue of %+v: %v", r, err)
				}
				cancel()
			}
			sweep(t, s, pawl.SweepSpec{})
			c, err := s.Claim(t.Context(), spec(10))
			if err != nil || len(c.Jobs) < 3 {
				t.Errorf("claimed %d jobs, error %v", len(c.Jobs), err)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
