package pawl_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

func TestSettleByHand(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		settle func(*pawl.Queue, *pawl.Job) error
		want   string // state, reason, attempt
	}{
		"ack":         {func(q *pawl.Queue, j *pawl.Job) error { return q.Ack(t.Context(), j, []byte("r")) }, "completed  1"},
		"nack":        {func(q *pawl.Queue, j *pawl.Job) error { return q.Nack(t.Context(), j, broken) }, "scheduled retry 1"},
		"permanent":   {func(q *pawl.Queue, j *pawl.Job) error { return q.Nack(t.Context(), j, pawl.Permanent(broken)) }, "buried bury 1"},
		"retry after": {func(q *pawl.Queue, j *pawl.Job) error { return q.Nack(t.Context(), j, pawl.RetryAfter(0, broken)) }, "ready retry 1"},
		"snooze":      {func(q *pawl.Queue, j *pawl.Job) error { return q.Nack(t.Context(), j, pawl.Snooze(time.Hour)) }, "scheduled snooze 0"},
		"bury":        {func(q *pawl.Queue, j *pawl.Job) error { return q.Bury(t.Context(), j, broken) }, "buried bury 1"},
		"bury nil":    {func(q *pawl.Queue, j *pawl.Job) error { return q.Bury(t.Context(), j, nil) }, "buried bury 1"},
		"release":     {func(q *pawl.Queue, j *pawl.Job) error { return q.Release(t.Context(), j, nil) }, "ready release 0"},
		"release later": {func(q *pawl.Queue, j *pawl.Job) error {
			return q.Release(t.Context(), j, &pawl.ReleaseOptions{Delay: time.Hour, Priority: new(7)})
		}, "scheduled release 0"},
	} {
		t.Run(name, func(t *testing.T) {
			q := open(t, nil)
			id := enqueue(t, q, &pawl.Request{})
			j := claim(t, q)
			if err := c.settle(q, j); err != nil {
				t.Fatal(err)
			}
			if got := get(t, q, id); fmt.Sprint(got.State, " ", got.Reason, " ", got.Attempt) != c.want {
				t.Errorf("job is %v %v %d, want %s", got.State, got.Reason, got.Attempt, c.want)
			}
			if err := c.settle(q, j); err != nil {
				t.Errorf("the same again: %v", err)
			}
			if err := q.Extend(t.Context(), j, nil); !errors.Is(err, pawl.ErrLost) {
				t.Errorf("extending an ended claim: %v", err)
			}
		})
	}
}

func TestAckAgainAfterALostReply(t *testing.T) {
	q := open(t, &pawl.Options{Retention: pawl.DeleteNow})
	enqueue(t, q, &pawl.Request{})
	j := claim(t, q)
	l := pawl.New(&forgetful{Storage: q.Storage()}, nil)
	if err := l.Ack(t.Context(), j, nil); err == nil || errors.Is(err, pawl.ErrLost) {
		t.Fatalf("the reply was not lost: %v", err)
	}
	if err := l.Nack(t.Context(), j, errors.New("x")); !errors.Is(err, pawl.ErrLost) {
		t.Errorf("another verb: %v", err)
	}
	if err := l.Ack(t.Context(), j, nil); err != nil {
		t.Errorf("the same again: %v", err)
	}
}

func TestAckOfALostClaimStaysLost(t *testing.T) {
	q := open(t, nil)
	id := enqueue(t, q, &pawl.Request{})
	j := claim(t, q)
	if err := q.Delete(t.Context(), "", id); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := q.Ack(t.Context(), j, nil); !errors.Is(err, pawl.ErrLost) {
			t.Errorf("error %v", err)
		}
	}
}

// A forgetful storage settles but loses the reply of the first settle.
type forgetful struct {
	pawl.Storage
	lost bool
}

func (f *forgetful) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	lost, err := f.Storage.Settle(ctx, outcomes)
	if err == nil && !f.lost {
		f.lost = true
		return nil, errors.New("connection lost")
	}
	return lost, err
}

// A busy storage leaves the first outcome of each call.
type busy struct{ pawl.Storage }

func (b busy) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	lost, err := b.Storage.Settle(ctx, outcomes[1:])
	return lost, cmp.Or[error](err, &pawl.BusyError{Refs: []pawl.Ref{outcomes[0].Ref}})
}

func TestBusyClaimsHinderNoOthers(t *testing.T) {
	q := open(t, nil)
	const n = 1500
	if _, err := q.EnqueueMany(t.Context(), slices.Repeat([]*pawl.Request{{Kind: "test"}}, n+1)); err != nil {
		t.Fatal(err)
	}
	outcomes := make([]pawl.Outcome, n)
	for i := range outcomes {
		outcomes[i] = pawl.Outcome{Ref: claim(t, q).Ref, Verb: pawl.Ack}
	}
	b := pawl.New(busy{q.Storage()}, nil)
	spec := pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: pawl.DefaultQueue, Max: 1}}, Max: 1, Lease: time.Minute}
	lost, c, err := b.Cycle(t.Context(), outcomes, spec)
	var left *pawl.BusyError
	if !errors.As(err, &left) || len(left.Refs) != 2 || len(lost) != 0 {
		t.Fatalf("lost %v, error %v", lost, err)
	}
	if left.Refs[0] != outcomes[0].Ref || left.Refs[1] != outcomes[1000].Ref {
		t.Errorf("busy %v", left.Refs)
	}
	if len(c.Jobs) != 1 {
		t.Errorf("claimed %d jobs, want 1", len(c.Jobs))
	}
	if stats, _ := q.Stats(t.Context()); stats[0].Completed != n-2 {
		t.Errorf("%d completed, want %d", stats[0].Completed, n-2)
	}
}

func TestExtendKeepsTheLengthOfTheClaim(t *testing.T) {
	q := open(t, nil)
	id := enqueue(t, q, &pawl.Request{})
	j, err := q.Claim(t.Context(), &pawl.ClaimOptions{Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Extend(t.Context(), j, nil); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(get(t, q, id).LeaseUntil); left < 59*time.Minute {
		t.Errorf("%v of the lease left, want an hour", left)
	}
}

func TestInvalidOutcomes(t *testing.T) {
	q := open(t, &pawl.Options{MaxPayload: 8})
	id := enqueue(t, q, &pawl.Request{})
	j := claim(t, q)
	for field, err := range map[string]error{
		"Result":            q.Ack(t.Context(), j, make([]byte, 9)),
		"cause":             q.Nack(t.Context(), j, nil),
		"Priority":          q.Release(t.Context(), j, &pawl.ReleaseOptions{Priority: new(2000)}),
		"Verb":              second(q.Settle(t.Context(), []pawl.Outcome{{Ref: j.Ref}})),
		"Lease":             q.Extend(t.Context(), j, &pawl.ExtendOptions{Lease: 1}),
		"Progress.Percent":  q.Extend(t.Context(), j, &pawl.ExtendOptions{Progress: &pawl.Progress{Percent: 101}}),
		"Progress.Stage":    q.Extend(t.Context(), j, &pawl.ExtendOptions{Progress: &pawl.Progress{Stage: "a\nb"}}),
		"Progress.Message":  q.Extend(t.Context(), j, &pawl.ExtendOptions{Progress: &pawl.Progress{Message: strings.Repeat("m", 1001)}}),
		"Progress.Counters": q.Extend(t.Context(), j, &pawl.ExtendOptions{Progress: &pawl.Progress{Counters: map[string]int64{"": 1}}}),
		"cause ":            q.WithTx(q.Storage()).Nack(t.Context(), j, nil),
		"Result ":           q.WithTx(q.Storage()).Ack(t.Context(), j, make([]byte, 9)),
	} {
		var invalid *pawl.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != strings.TrimSpace(field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if got := get(t, q, id); got.State != pawl.Running || got.Counts.Extends != 0 {
		t.Errorf("job is %v after invalid calls", got.State)
	}
	if err := q.Ack(t.Context(), j, nil); err != nil {
		t.Error(err)
	}
}

func second[A, B any](_ A, b B) B { return b }

func TestErrorTextsAreCleaned(t *testing.T) {
	q := open(t, nil)
	id := enqueue(t, q, &pawl.Request{})
	if err := q.Nack(t.Context(), claim(t, q), errors.New("a\x00\xff"+strings.Repeat("é", 2000))); err != nil {
		t.Fatal(err)
	}
	f := get(t, q, id).Failures
	if len(f) != 1 || len(f[0].Error) > pawl.MaxErrorText || !strings.HasPrefix(f[0].Error, "a\uFFFD\uFFFDé") {
		t.Errorf("failures %+v", f)
	}
}

func TestExtendReportsProgress(t *testing.T) {
	q := open(t, nil)
	id := enqueue(t, q, &pawl.Request{})
	j := claim(t, q)
	p := &pawl.Progress{Percent: 40, Stage: "resize", Message: "2 of 5", Counters: map[string]int64{"done": 2}}
	if err := q.Extend(t.Context(), j, &pawl.ExtendOptions{Lease: time.Hour, Progress: p}); err != nil {
		t.Fatal(err)
	}
	got := get(t, q, id)
	if got.Progress == nil || got.Progress.Percent != 40 || got.Progress.Counters["done"] != 2 || got.Progress.At.IsZero() {
		t.Errorf("progress %+v", got.Progress)
	}
	if left := got.LeaseUntil.Sub(got.ClaimedAt); left < time.Hour {
		t.Errorf("lease of %v", left)
	}
}

func TestTxMarksTheJob(t *testing.T) {
	q := open(t, nil)
	enqueue(t, q, &pawl.Request{})
	j := claim(t, q)
	if _, ok := j.SettledInTx(); ok {
		t.Error("marked before")
	}
	tx := q.WithTx(q.Storage())
	if err := tx.Ack(t.Context(), j, nil); err != nil {
		t.Fatal(err)
	}
	if v, ok := j.SettledInTx(); !ok || v != pawl.Ack {
		t.Errorf("marked %v, %v", v, ok)
	}
	if err := tx.Bury(t.Context(), j, errors.New("x")); !errors.Is(err, pawl.ErrLost) {
		t.Errorf("second settle: %v", err)
	}
	if err := tx.Nack(t.Context(), j, errors.New("x")); !errors.Is(err, pawl.ErrLost) {
		t.Errorf("third settle: %v", err)
	}
}

func TestOutcomeOf(t *testing.T) {
	j := &pawl.Job{Attempt: 2}
	broken := errors.New("broken")
	backoff := pawl.Schedule{time.Second, time.Minute}
	for _, c := range []struct {
		err  error
		verb pawl.Verb
		wait time.Duration
		text string
	}{
		{nil, pawl.Ack, 0, ""},
		{broken, pawl.Nack, time.Minute, "broken"},
		{fmt.Errorf("wrapped: %w", pawl.Permanent(broken)), pawl.Bury, 0, "wrapped: broken"},
		{fmt.Errorf("wrapped: %w", pawl.RetryAfter(time.Hour, broken)), pawl.Nack, time.Hour, "wrapped: broken"},
		{pawl.RetryAfter(-1, broken), pawl.Nack, 0, "broken"},
		{pawl.Snooze(time.Hour), pawl.SnoozeFor, time.Hour, ""},
		{pawl.Permanent(nil), pawl.Ack, 0, ""},
		{pawl.RetryAfter(time.Hour, nil), pawl.Ack, 0, ""},
	} {
		o := pawl.OutcomeOf(j, c.err, backoff)
		if o.Verb != c.verb || o.Delay != c.wait || o.Error != c.text {
			t.Errorf("%v: %v after %v with %q", c.err, o.Verb, o.Delay, o.Error)
		}
	}
	if !errors.Is(pawl.Permanent(broken), broken) || !errors.Is(pawl.RetryAfter(1, broken), broken) {
		t.Error("the cause can't be reached")
	}
}
