package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/pawlq/pawl"
)

func TestPeek(t *testing.T) {
	q := open(t, nil)
	ctx := t.Context()
	if _, err := q.Peek(ctx, pawl.DefaultQueue, pawl.Ready); !errors.Is(err, pawl.ErrNotFound) {
		t.Errorf("empty queue: %v", err)
	}
	enqueue(t, q, &pawl.Request{Priority: 5})
	next := enqueue(t, q, &pawl.Request{Priority: -5, Payload: []byte("p")})
	later := enqueue(t, q, &pawl.Request{Delay: time.Hour})
	enqueue(t, q, &pawl.Request{Delay: 2 * time.Hour})
	if j, err := q.Peek(ctx, pawl.DefaultQueue, pawl.Ready); err != nil || j.ID != next || string(j.Payload) != "p" {
		t.Errorf("ready: %v, %v", j, err)
	}
	if j, err := q.Peek(ctx, pawl.DefaultQueue, pawl.Scheduled); err != nil || j.ID != later {
		t.Errorf("scheduled: %v, %v", j, err)
	}
}

func TestJobsRangesOverPages(t *testing.T) {
	q := open(t, nil)
	const n = 2500
	if _, err := q.EnqueueMany(t.Context(), slices.Repeat([]*pawl.Request{{Kind: "test"}}, n)); err != nil {
		t.Fatal(err)
	}
	seen := map[pawl.ID]bool{}
	for j, err := range q.Jobs(t.Context(), pawl.Filter{Kind: "test"}) {
		if err != nil {
			t.Fatal(err)
		}
		seen[j.ID] = true
	}
	if len(seen) != n {
		t.Errorf("saw %d jobs, want %d", len(seen), n)
	}
	for range q.Jobs(t.Context(), pawl.Filter{}) {
		break
	}
	for _, err := range q.Jobs(t.Context(), pawl.Filter{States: []pawl.State{99}}) {
		if !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("unknown state: %v", err)
		}
	}
	if _, err := q.List(t.Context(), pawl.ListSpec{Limit: 1001}); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("limit: %v", err)
	}
}

// A name that no queue can have does not reach the storage.
func TestQueueNamesOfQuestions(t *testing.T) {
	q := open(t, nil)
	id := enqueue(t, q, &pawl.Request{})
	ctx := t.Context()
	for _, name := range []string{"x' OR queue='default", "default ", "default#0", "a}b", strings.Repeat("a", 201)} {
		_, list := q.List(ctx, pawl.ListSpec{Filter: pawl.Filter{Queue: name}})
		_, stats := q.Stats(ctx, "default", name)
		_, get := q.Get(ctx, name, id)
		_, peek := q.Peek(ctx, name, pawl.Ready)
		_, all := q.DeleteAll(ctx, pawl.Filter{Queue: name}, 0)
		_, wait := q.Wait(ctx, name, id)
		for what, err := range map[string]error{
			"list": list, "stats": stats, "get": get, "peek": peek, "delete all": all, "wait": wait, "cancel": q.Cancel(ctx, name, id),
		} {
			var invalid *pawl.InvalidError
			if !errors.As(err, &invalid) || !strings.EqualFold(invalid.Field[:5], "queue") {
				t.Errorf("%s of queue %.30q: error %v, want an InvalidError that names the queue", what, name, err)
			}
		}
	}
}

func TestChangesByHand(t *testing.T) {
	q := open(t, nil)
	ctx := t.Context()
	id := enqueue(t, q, &pawl.Request{Delay: time.Hour})
	if err := q.Kick(ctx, "", id); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), "scheduled") {
		t.Errorf("kicking a scheduled job: %v", err)
	}
	if err := q.Edit(ctx, "", id, pawl.EditFields{Priority: new(3), StartBefore: new(time.Now().Add(time.Hour))}); err != nil {
		t.Error(err)
	}
	if err := q.Edit(ctx, "", id, pawl.EditFields{Priority: new(3000)}); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("bad edit: %v", err)
	}
	at := time.Now().Add(2 * time.Hour)
	if err := q.Reschedule(ctx, "", id, at); err != nil {
		t.Error(err)
	}
	if j := get(t, q, id); j.Priority != 3 || j.RunAt.Before(at) {
		t.Errorf("priority %d, due %v", j.Priority, j.RunAt)
	}
	if err := q.Reschedule(ctx, "", id, time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("bad time: %v", err)
	}
	if err := q.RunNow(ctx, "", id); err != nil {
		t.Error(err)
	}
	if j := get(t, q, id); j.State != pawl.Ready {
		t.Errorf("job is %v", j.State)
	}
	if err := q.Cancel(ctx, "", id); err != nil {
		t.Error(err)
	}
	if err := q.Kick(ctx, "", id); err != nil {
		t.Error(err)
	}
	if err := q.Delete(ctx, "", id); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"get": second(q.Get(ctx, "", id)), "kick": q.Kick(ctx, "", id), "delete": q.Delete(ctx, "", id),
	} {
		if !errors.Is(err, pawl.ErrNotFound) {
			t.Errorf("%s of a deleted job: %v", name, err)
		}
	}
}

func TestKickConflictNamesTheHolder(t *testing.T) {
	q := open(t, nil)
	ctx := t.Context()
	first := enqueue(t, q, &pawl.Request{UniqueKey: "u"})
	if err := q.Cancel(ctx, "", first); err != nil {
		t.Fatal(err)
	}
	holder := enqueue(t, q, &pawl.Request{UniqueKey: "u"})
	err := q.Kick(ctx, "", first)
	var conflict *pawl.ConflictError
	if !errors.As(err, &conflict) || !errors.Is(err, pawl.ErrConflict) || conflict.ID != holder {
		t.Errorf("error %v", err)
	}
	if n, err := q.KickAll(ctx, pawl.Filter{}, 0); n != 0 || err != nil {
		t.Errorf("KickAll: %d, %v", n, err)
	}
}

func TestChangeAll(t *testing.T) {
	q := open(t, nil)
	ctx := t.Context()
	const n = 1500
	reqs := append(slices.Repeat([]*pawl.Request{{Kind: "a"}}, n), slices.Repeat([]*pawl.Request{{Kind: "b", Queue: "other"}}, 10)...)
	if _, err := q.EnqueueMany(ctx, reqs); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		do   func(context.Context, pawl.Filter, int) (int, error)
		f    pawl.Filter
		n    int
		want int
	}{
		{"cancel some", q.CancelAll, pawl.Filter{}, 1200, 1200},
		{"cancel a kind", q.CancelAll, pawl.Filter{Kind: "b"}, 0, 10},
		{"cancel the rest", q.CancelAll, pawl.Filter{}, 0, 300},
		{"kick some", q.KickAll, pawl.Filter{Queue: "other"}, 3, 3},
		{"kick in a state that can't be", q.KickAll, pawl.Filter{States: []pawl.State{pawl.Ready}}, 0, 0},
		{"kick all", q.KickAll, pawl.Filter{}, 0, n + 7},
		{"delete all", q.DeleteAll, pawl.Filter{}, 0, n + 10},
	} {
		if got, err := step.do(ctx, step.f, step.n); err != nil || got != step.want {
			t.Errorf("%s: %d, %v; want %d", step.name, got, err, step.want)
		}
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{Poll: time.Hour})
		ctx := t.Context()
		a, b := enqueue(t, q, &pawl.Request{}), enqueue(t, q, &pawl.Request{})
		done := make(chan []*pawl.Job)
		go func() {
			jobs, err := q.Wait(ctx, "", a, b)
			if err != nil {
				t.Error(err)
			}
			done <- jobs
		}()
		synctest.Wait()
		start := time.Now()
		if err := q.Ack(ctx, claim(t, q), []byte("result")); err != nil {
			t.Fatal(err)
		}
		if err := q.Cancel(ctx, "", b); err != nil {
			t.Fatal(err)
		}
		jobs := <-done
		if len(jobs) != 2 || string(jobs[0].Result) != "result" || jobs[1].State != pawl.Canceled {
			t.Errorf("waited for %+v", jobs)
		}
		if d := time.Since(start); d > 0 {
			t.Errorf("Wait saw the end after %v", d)
		}
	})
}

func TestWaitSeesWhatOthersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, nil)
		other := pawl.New(q.Storage(), nil)
		id := enqueue(t, q, &pawl.Request{})
		go func() {
			time.Sleep(time.Minute) // of the bubble's time
			if err := other.Ack(t.Context(), claim(t, other), nil); err != nil {
				t.Error(err)
			}
		}()
		start := time.Now()
		if _, err := q.Wait(t.Context(), "", id); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > time.Minute+time.Second {
			t.Errorf("Wait returned after %v", d)
		}
	})
}

func TestWaitErrors(t *testing.T) {
	q := open(t, nil)
	id := enqueue(t, q, &pawl.Request{Retention: pawl.DeleteNow})
	if _, err := q.Wait(t.Context(), "", id); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("DeleteNow: %v", err)
	}
	if _, err := q.Wait(t.Context(), "", uuid.New()); !errors.Is(err, pawl.ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	kept := enqueue(t, q, &pawl.Request{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := q.Wait(ctx, "", kept); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestStateText(t *testing.T) {
	for _, s := range pawl.States() {
		text, _ := s.MarshalText()
		var back pawl.State
		if err := back.UnmarshalText(text); err != nil || back != s {
			t.Errorf("%v became %q and then %v, %v", s, text, back, err)
		}
		if s.Waiting() == (s == pawl.Running || s.Final()) {
			t.Errorf("%v is both or neither of waiting and not", s)
		}
	}
	if err := new(pawl.State).UnmarshalText([]byte("none")); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("unknown name: %v", err)
	}
}

func TestNames(t *testing.T) {
	got := fmt.Sprint(pawl.Stored, pawl.Replaced, pawl.Scheduled, pawl.State(0), pawl.Ack, pawl.Skip, pawl.Verb(77), pawl.Kick, pawl.Edit, pawl.Done, pawl.Conflict)
	if want := "stored replaced scheduled invalid(0) ack skip invalid(77) kick edit done conflict"; got != want {
		t.Errorf("names are %s", got)
	}
	for err, want := range map[error]string{
		&pawl.InvalidError{Field: "Kind", Limit: "set"}: "pawl: Kind must be set",
		&pawl.FullError{Queue: "q", Limit: 3}:           `pawl: queue is full: "q" holds 3 waiting jobs`,
		&pawl.SchemaError{Have: 1, Want: 2}:             "pawl: schema version does not fit: version 1, need 2: run the migrations",
		&pawl.SchemaError{Have: 3, Want: 2}:             "pawl: schema version does not fit: version 3, need 2: this program is older than its database",
		&pawl.BusyError{Refs: make([]pawl.Ref, 2)}:      "pawl: 2 jobs are held by open transactions",
		pawl.Snooze(time.Second):                        "pawl: snooze for 1s",
	} {
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
	if !errors.Is(&pawl.SchemaError{}, pawl.ErrSchema) {
		t.Error("a SchemaError is not ErrSchema")
	}
}
