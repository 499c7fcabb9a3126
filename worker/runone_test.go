package worker_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/worker"
)

// A handler that acks its job in the transaction of its own writes is tested
// with a job that is stored.
func ExampleRunOne() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "pawl")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := sqlite.Open(ctx, filepath.Join(dir, "app.db"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	if _, err := store.DB().ExecContext(ctx, "CREATE TABLE paid (account TEXT)"); err != nil {
		fmt.Println(err)
		return
	}
	q := pawl.New(store, nil)
	pay := worker.Func(func(ctx context.Context, j *pawl.Job) error {
		return store.InTx(ctx, func(tx *sql.Tx, w pawl.Writer) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO paid VALUES (?)", string(j.Payload)); err != nil {
				return err
			}
			return q.WithTx(w).Ack(ctx, j, nil)
		})
	})

	ran, err := worker.RunOne(ctx, q, pay, &pawl.Request{Kind: "pay", Payload: []byte("ada")})
	fmt.Println(ran.Verb, ran.Err, err)
	job, err := q.Get(ctx, ran.Job.Queue, ran.Job.ID)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(job.State)
	// Output:
	// ack <nil> <nil>
	// completed
}

func TestRunOne(t *testing.T) {
	failure := errors.New("failed")
	cases := []struct {
		name   string
		r      pawl.Request
		run    func(ctx context.Context, f *fixture, j *pawl.Job) error
		verb   pawl.Verb
		err    error
		state  pawl.State
		reason pawl.Reason
	}{
		{name: "ack", verb: pawl.Ack, state: pawl.Completed},
		{name: "scheduled", r: pawl.Request{Delay: time.Hour}, verb: pawl.Ack, state: pawl.Completed},
		{name: "other queue", r: pawl.Request{Queue: "other"}, verb: pawl.Ack, state: pawl.Completed},
		{name: "failure", verb: pawl.Nack, err: failure, state: pawl.Scheduled, reason: pawl.ReasonRetry,
			run: func(context.Context, *fixture, *pawl.Job) error { return failure }},
		{name: "last failure", r: pawl.Request{MaxAttempts: 1}, verb: pawl.Nack, err: failure, state: pawl.Buried, reason: pawl.ReasonAttempts,
			run: func(context.Context, *fixture, *pawl.Job) error { return failure }},
		{name: "committed", verb: pawl.Ack, state: pawl.Completed, run: func(ctx context.Context, f *fixture, j *pawl.Job) error {
			return f.q.WithTx(write{f.storage, false}).Ack(ctx, j, nil)
		}},
		{name: "rolled back", verb: pawl.Nack, err: pawl.ErrNotCommitted, state: pawl.Scheduled, reason: pawl.ReasonRetry,
			run: func(ctx context.Context, f *fixture, j *pawl.Job) error {
				return f.q.WithTx(write{f.storage, true}).Ack(ctx, j, nil)
			}},
		{name: "progress", verb: pawl.Ack, state: pawl.Completed, run: func(ctx context.Context, _ *fixture, _ *pawl.Job) error {
			return worker.Progress(ctx, &pawl.Progress{Percent: 50})
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, cycling)
				var before []pawl.ID // more than one claim gives
				for range pawl.MaxStep + 5 {
					before = append(before, f.enqueue(&pawl.Request{Kind: "other"}))
				}
				runs := 0
				h := kinds{{Name: "k", Run: func(ctx context.Context, j *pawl.Job) ([]byte, error) {
					runs++
					if c.run == nil {
						return nil, nil
					}
					return nil, c.run(ctx, f, j)
				}}}
				c.r.Kind = "k"
				ran, err := worker.RunOne(t.Context(), f.q, h, &c.r)
				if err != nil || ran.Err != c.err || ran.Verb != c.verb || runs != 1 {
					t.Fatalf("RunOne: %v %v, %v after %d runs", ran.Verb, ran.Err, err, runs)
				}
				j := f.wantState(ran.Job.ID, c.state, c.reason)
				if (j.Progress != nil) != (c.name == "progress") {
					t.Errorf("progress %v", j.Progress)
				}
				for _, id := range before {
					if j := f.get(id); j.State != pawl.Ready || j.Attempt != 0 {
						t.Fatalf("a job that was there is %v, attempt %d", j.State, j.Attempt)
					}
				}
			})
		})
	}
}

func TestRunOneReturnsErrors(t *testing.T) {
	cases := []struct {
		name string
		h    worker.Handlers
		r    pawl.Request
		fail string // an operation
		want string
	}{
		{name: "no handlers", h: kinds{}, want: "no handlers registered"},
		{name: "no handler", h: kinds{{Name: "other", Run: returning(nil).Kinds()[0].Run}}, want: `no handler of kind "k"`},
		{name: "invalid", r: pawl.Request{Priority: 5000}, want: "Priority"},
		{name: "duplicate", r: pawl.Request{UniqueKey: "held"}, want: "duplicate"},
		{name: "paused", r: pawl.Request{Queue: "paused"}, want: "could not be claimed"},
		{name: "get", fail: "get", want: errStorage.Error()},
		{name: "claim", fail: "claim", want: errStorage.Error()},
		{name: "settle", fail: "settle", want: errStorage.Error()},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := prepare(t, bare)
				f.enqueue(&pawl.Request{UniqueKey: "held"})
				if err := f.q.Pause(t.Context(), "paused"); err != nil {
					t.Fatal(err)
				}
				if c.fail != "" {
					f.storage.fail(false, c.fail)
				}
				if c.h == nil {
					c.h = returning(nil)
				}
				c.r.Kind = "k"
				if _, err := worker.RunOne(t.Context(), f.q, c.h, &c.r); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("RunOne: %v, want %s", err, c.want)
				}
			})
		})
	}
}

func TestRunOneOfNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		if _, err := worker.RunOne(t.Context(), prepare(t, bare).q, returning(nil), nil); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("RunOne: %v", err)
		}
	})
}
