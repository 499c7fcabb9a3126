package pawl_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
)

func open(t *testing.T, o *pawl.Options) *pawl.Queue {
	t.Helper()
	s := memory.New(nil)
	t.Cleanup(func() { s.Close() })
	return pawl.New(s, o)
}

func enqueue(t *testing.T, q *pawl.Queue, r *pawl.Request) pawl.ID {
	t.Helper()
	if r.Kind == "" {
		r.Kind = "test"
	}
	receipt, err := q.Enqueue(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return receipt.ID
}

func claim(t *testing.T, q *pawl.Queue) *pawl.Job {
	t.Helper()
	c, err := q.ClaimBatch(t.Context(), pawl.ClaimSpec{
		Queues: []pawl.QueueAsk{{Queue: pawl.DefaultQueue, Max: 1}}, Max: 1, Lease: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Jobs) == 0 {
		t.Fatal("nothing to claim")
	}
	return c.Jobs[0]
}

func get(t *testing.T, q *pawl.Queue, id pawl.ID) *pawl.Job {
	t.Helper()
	j, err := q.Get(t.Context(), pawl.DefaultQueue, id)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestDefaults(t *testing.T) {
	q := open(t, nil)
	r := &pawl.Request{Kind: "test", Payload: []byte("x")}
	receipt, err := q.Enqueue(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if receipt.Status != pawl.Stored || receipt.Queue != pawl.DefaultQueue || receipt.ID.Version() != 7 {
		t.Errorf("receipt %+v", receipt)
	}
	if diff := gocmp.Diff(&pawl.Request{Kind: "test", Payload: []byte("x")}, r); diff != "" {
		t.Errorf("Enqueue wrote into its argument:\n%s", diff)
	}
	j := get(t, q, receipt.ID)
	got := fmt.Sprint(j.MaxAttempts, j.MaxRescues, j.Retention, j.Timeout, j.Lease, j.State)
	if want := "25 5 24h0m0s 0s 0s ready"; got != want {
		t.Errorf("defaults %s, want %s", got, want)
	}
}

func TestOptionsAreDefaults(t *testing.T) {
	q := open(t, &pawl.Options{MaxAttempts: 3, MaxRescues: pawl.NoRescues, Retention: pawl.DeleteNow, WorkerID: "w1", Lease: time.Nanosecond})
	reqs, err := q.Prepare(&pawl.Request{Kind: "test"}, &pawl.Request{Kind: "test", MaxAttempts: 9, Retention: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(reqs[0].MaxAttempts, reqs[0].MaxRescues, reqs[0].Retention, reqs[1].MaxAttempts, reqs[1].Retention)
	if want := "3 -2 -2ns 9 1h0m0s"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if o := q.Options(); o.WorkerID != "w1" || o.Lease != pawl.MinLease {
		t.Errorf("WorkerID %q, Lease %v", o.WorkerID, o.Lease)
	}
}

func TestInvalidRequests(t *testing.T) {
	q := open(t, &pawl.Options{MaxPayload: 8})
	future := time.Now().Add(time.Hour)
	long := strings.Repeat("x", 300)
	for field, r := range map[string]pawl.Request{
		"Kind":          {},
		"Kind ":         {Kind: "a b"},
		"Kind  ":        {Kind: long},
		"Queue":         {Kind: "k", Queue: "a/b"},
		"Queue ":        {Kind: "k", Queue: long},
		"Payload":       {Kind: "k", Payload: []byte("123456789")},
		"Meta":          {Kind: "k", Meta: map[string]string{"a": strings.Repeat("x", 5000)}},
		"Meta ":         {Kind: "k", Meta: map[string]string{"a": "\xff"}},
		"Priority":      {Kind: "k", Priority: 1001},
		"Priority ":     {Kind: "k", Priority: -1001},
		"Delay":         {Kind: "k", Delay: -1},
		"Delay ":        {Kind: "k", Delay: pawl.MaxAhead + 1},
		"RunAt":         {Kind: "k", Delay: 1, RunAt: future},
		"RunAt  ":       {Kind: "k", RunAt: time.Unix(0, 0)},
		"StartBefore  ": {Kind: "k", StartBefore: time.Unix(-1, 0)},
		"RunAt ":        {Kind: "k", RunAt: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)},
		"StartBefore":   {Kind: "k", RunAt: future, StartBefore: future},
		"StartBefore ":  {Kind: "k", StartBefore: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)},
		"Lease":         {Kind: "k", Lease: time.Millisecond},
		"Lease ":        {Kind: "k", Lease: 25 * time.Hour},
		"Timeout":       {Kind: "k", Timeout: -2},
		"Timeout ":      {Kind: "k", Timeout: pawl.MaxAhead + 1},
		"MaxAttempts":   {Kind: "k", MaxAttempts: -2},
		"MaxRescues":    {Kind: "k", MaxRescues: pawl.Unlimited},
		"MaxDepth":      {Kind: "k", MaxDepth: -2},
		"WhenFull":      {Kind: "k", WhenFull: 9},
		"Retention":     {Kind: "k", Retention: pawl.NoTimeout},
		"Retention ":    {Kind: "k", Retention: pawl.MaxAhead + 1},
		"UniqueKey":     {Kind: "k", UniqueKey: long},
		"UniqueKey ":    {Kind: "k", UniqueKey: "a\x00"},
		"UniqueKey  ":   {Kind: "k", UniqueMode: pawl.UniqueUntilClaimed},
		"UniqueKey   ":  {Kind: "k", OnDuplicate: pawl.Replace},
		"UniqueMode":    {Kind: "k", UniqueKey: "u", UniqueMode: 7},
		"OnDuplicate":   {Kind: "k", UniqueKey: "u", OnDuplicate: 7},
		"UniqueWindow":  {Kind: "k", UniqueKey: "u", UniqueMode: pawl.UniqueUntilWindow},
		"UniqueWindow ": {Kind: "k", UniqueKey: "u", UniqueWindow: time.Hour},
	} {
		_, err := q.Enqueue(t.Context(), &r)
		var invalid *pawl.InvalidError
		if !errors.As(err, &invalid) || !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%s: error %v is not an InvalidError", field, err)
			continue
		}
		if invalid.Field != strings.TrimSpace(field) || invalid.Limit == "" {
			t.Errorf("%s: error is %v", field, err)
		}
	}
	if stats, err := q.Stats(t.Context()); err != nil || len(stats) != 0 {
		t.Errorf("invalid requests left %v, %v", stats, err)
	}
}

func TestInvalidBatches(t *testing.T) {
	q := open(t, nil)
	good := &pawl.Request{Kind: "test"}
	broken := errors.New("can't encode")
	for name, reqs := range map[string][]*pawl.Request{
		"one bad":  {good, {}},
		"nil":      {good, nil},
		"too many": slices.Repeat([]*pawl.Request{good}, pawl.MaxBatch+1),
	} {
		if _, err := q.EnqueueMany(t.Context(), reqs); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "test", Err: broken}); !errors.Is(err, broken) || !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("Request.Err came back as %v", err)
	}
	if receipts, err := q.EnqueueMany(t.Context(), nil); err != nil || len(receipts) != 0 {
		t.Errorf("empty batch: %v, %v", receipts, err)
	}
	if stats, _ := q.Stats(t.Context()); len(stats) != 0 {
		t.Errorf("something was stored: %v", stats)
	}
}

func TestTimesAreRoundedUp(t *testing.T) {
	q := open(t, nil)
	at := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	for _, c := range []struct{ given, want time.Time }{{at, at}, {at.Add(1), at.Add(time.Microsecond)}, {at.Add(999), at.Add(time.Microsecond)}} {
		reqs, err := q.Prepare(&pawl.Request{Kind: "test", RunAt: c.given})
		if err != nil {
			t.Fatal(err)
		}
		if got := reqs[0].RunAt; !got.Equal(c.want) || got.Location() != time.UTC {
			t.Errorf("%v became %v, want %v", c.given, got, c.want)
		}
	}
}

func TestMiddleware(t *testing.T) {
	var order []string
	layer := func(name string) pawl.EnqueueMiddleware {
		return func(next pawl.EnqueueFunc) pawl.EnqueueFunc {
			return func(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
				order = append(order, name)
				for _, r := range reqs {
					if r.ID == (pawl.ID{}) || r.Queue == "" {
						t.Error("middleware sees a request without ID or defaults")
					}
					r.Meta["by"] = name
				}
				return next(ctx, reqs)
			}
		}
	}
	q := open(t, &pawl.Options{Middleware: []pawl.EnqueueMiddleware{layer("outer"), layer("inner")}})
	r := &pawl.Request{Kind: "test", Meta: map[string]string{"by": "caller"}}
	id := enqueue(t, q, r)
	if got := get(t, q, id).Meta["by"]; got != "inner" {
		t.Errorf("stored by %q", got)
	}
	if _, err := q.WithTx(q.Storage()).Enqueue(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if want := []string{"outer", "inner", "outer", "inner"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if r.Meta["by"] != "caller" {
		t.Error("middleware reached the caller's request")
	}
}

func TestMiddlewareIsValidated(t *testing.T) {
	spoil := func(next pawl.EnqueueFunc) pawl.EnqueueFunc {
		return func(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
			reqs[0].Payload = make([]byte, 100)
			return next(ctx, reqs)
		}
	}
	q := open(t, &pawl.Options{MaxPayload: 99, Middleware: []pawl.EnqueueMiddleware{spoil}})
	receipt, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "test"})
	if !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("error %v", err)
	}
	if receipt.ID == (pawl.ID{}) || receipt.Status != 0 {
		t.Errorf("receipt of a failed enqueue %+v, want just the ID", receipt)
	}
}

func TestDepth(t *testing.T) {
	q := open(t, &pawl.Options{Depth: map[string]int{"small": 1, "": 2, "free": pawl.Unlimited}})
	for queue, limit := range map[string]int{"small": 1, "other": 2} {
		for range limit {
			enqueue(t, q, &pawl.Request{Queue: queue})
		}
		_, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "test", Queue: queue})
		var full *pawl.FullError
		if !errors.As(err, &full) || !errors.Is(err, pawl.ErrFull) || full.Queue != queue || full.Limit != limit {
			t.Errorf("%s: %v", queue, err)
		}
	}
	for range 5 {
		enqueue(t, q, &pawl.Request{Queue: "free"})
	}
	enqueue(t, q, &pawl.Request{Queue: "small", MaxDepth: 2})
	enqueue(t, q, &pawl.Request{Queue: "small", WhenFull: pawl.DropOldest})
}

func TestClaimWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{Poll: time.Hour})
		start := time.Now()
		got := make(chan *pawl.Job)
		go func() {
			j, err := q.Claim(t.Context(), nil)
			if err != nil {
				t.Error(err)
			}
			got <- j
		}()
		synctest.Wait()
		if stats, _ := q.Stats(t.Context(), pawl.DefaultQueue); len(stats) > 0 && stats[0].Waiting != 1 {
			t.Errorf("%d claimers wait, want 1", stats[0].Waiting)
		}
		id := enqueue(t, q, &pawl.Request{Delay: 10 * time.Minute})
		if j := <-got; j.ID != id {
			t.Errorf("claimed %v, want %v", j.ID, id)
		}
		if d := time.Since(start); d < 10*time.Minute || d > 10*time.Minute+100*time.Millisecond {
			t.Errorf("claimed after %v, want 10m", d)
		}
	})
}

func TestClaimEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := q.Claim(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

func TestManyClaimersGetAJobEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{Poll: time.Hour})
		got := make(chan pawl.ID)
		const n = 20
		for range n {
			go func() {
				j, err := q.Claim(t.Context(), nil)
				if err != nil {
					t.Error(err)
				}
				got <- j.ID
			}()
		}
		synctest.Wait()
		start := time.Now()
		reqs := slices.Repeat([]*pawl.Request{{Kind: "test"}}, n)
		if _, err := q.EnqueueMany(t.Context(), reqs); err != nil {
			t.Fatal(err)
		}
		seen := map[pawl.ID]bool{}
		for range n {
			seen[<-got] = true
		}
		if len(seen) != n || time.Since(start) > time.Second {
			t.Errorf("%d different jobs after %v", len(seen), time.Since(start))
		}
	})
}

func TestClaimInStrictOrder(t *testing.T) {
	q := open(t, nil)
	enqueue(t, q, &pawl.Request{Kind: "low", Queue: "low"})
	enqueue(t, q, &pawl.Request{Kind: "high", Queue: "high"})
	for _, want := range []string{"high", "low"} {
		j, err := q.Claim(t.Context(), &pawl.ClaimOptions{Queues: []string{"high", "low"}})
		if err != nil || j.Queue != want {
			t.Fatalf("claimed from %v (%v), want %s", j, err, want)
		}
	}
}

func TestClaimByKindHandsOthersBack(t *testing.T) {
	q := open(t, nil)
	other := enqueue(t, q, &pawl.Request{Kind: "other"})
	mine := enqueue(t, q, &pawl.Request{Kind: "mine"})
	j, err := q.Claim(t.Context(), &pawl.ClaimOptions{Kinds: []string{"mine"}})
	if err != nil || j.ID != mine {
		t.Fatalf("claimed %v, %v", j, err)
	}
	o := get(t, q, other)
	if o.State != pawl.Scheduled || o.Reason != pawl.ReasonSkip || o.Attempt != 0 || o.Counts.Skips != 1 {
		t.Errorf("the other kind is %v, %v, attempt %d, skips %d", o.State, o.Reason, o.Attempt, o.Counts.Skips)
	}
}

func TestClaimRefusesBadOptions(t *testing.T) {
	q := open(t, nil)
	for field, o := range map[string]pawl.ClaimOptions{
		"Queues":  {Queues: []string{"a b"}},
		"Queues ": {Queues: []string{"a", "a"}},
		"Kinds":   {Kinds: []string{""}},
		"Lease":   {Lease: 1},
	} {
		_, err := q.Claim(t.Context(), &o)
		var invalid *pawl.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != strings.TrimSpace(field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, spec := range []pawl.ClaimSpec{
		{}, {Max: 1001, Lease: time.Second}, {Max: 1},
		{Max: 1, Lease: time.Second, Queues: []pawl.QueueAsk{{Queue: "a"}}},
		{Max: 1, Lease: time.Second, Worker: "\x00"},
	} {
		if _, err := q.ClaimBatch(t.Context(), spec); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%+v: %v", spec, err)
		}
		if _, _, err := q.Cycle(t.Context(), nil, spec); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("Cycle %+v: %v", spec, err)
		}
	}
}

// A lossy storage claims but loses the reply of the first claim.
type lossy struct {
	pawl.Storage
	after func()
	lost  bool
}

func (l *lossy) Unwrap() pawl.Storage { return l.Storage }

func (l *lossy) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	c, err := l.Storage.Claim(ctx, spec)
	if err == nil && !l.lost {
		l.lost = true
		l.after()
		return pawl.Claimed{}, errors.New("connection lost")
	}
	return c, err
}

func TestClaimFindsWhatALostReplyClaimed(t *testing.T) {
	q := open(t, nil)
	first := enqueue(t, q, &pawl.Request{})
	enqueue(t, q, &pawl.Request{})
	l := pawl.New(&lossy{Storage: q.Storage(), after: func() {}}, nil)
	j, err := l.Claim(t.Context(), nil)
	if err != nil || j.ID != first || j.Attempt != 1 {
		t.Fatalf("claimed %+v, %v", j, err)
	}
}

func TestClaimHandsBackWhenItsCallerHasGone(t *testing.T) {
	q := open(t, nil)
	id := enqueue(t, q, &pawl.Request{})
	ctx, cancel := context.WithCancel(t.Context())
	l := pawl.New(&lossy{Storage: q.Storage(), after: cancel}, nil)
	if _, err := l.Claim(ctx, nil); err == nil {
		t.Fatal("claimed although the reply was lost and the caller had gone")
	}
	if j := get(t, q, id); j.State != pawl.Ready || j.Attempt != 0 || j.Counts.Releases != 1 {
		t.Errorf("job is %v, attempt %d, releases %d", j.State, j.Attempt, j.Counts.Releases)
	}
}

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

func TestBatchBytes(t *testing.T) {
	q := open(t, &pawl.Options{MaxPayload: 100 << 20})
	big := &pawl.Request{Kind: "test", Payload: make([]byte, 33<<20)}
	if _, err := q.EnqueueMany(t.Context(), []*pawl.Request{big, big}); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("error %v", err)
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

func TestPauseAndResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{Poll: time.Hour})
		ctx := t.Context()
		if err := q.Pause(ctx, pawl.DefaultQueue); err != nil {
			t.Fatal(err)
		}
		enqueue(t, q, &pawl.Request{})
		got := make(chan error)
		go func() {
			_, err := q.Claim(ctx, nil)
			got <- err
		}()
		synctest.Wait()
		select {
		case <-got:
			t.Fatal("claimed from a paused queue")
		default:
		}
		if names, err := q.Queues(ctx); err != nil || !slices.Equal(names, []string{"default"}) {
			t.Errorf("queues %v, %v", names, err)
		}
		start := time.Now()
		if err := q.Resume(ctx, pawl.DefaultQueue); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil || time.Since(start) > 0 {
			t.Errorf("claimed %v after Resume: %v", time.Since(start), err)
		}
		if err := q.Pause(ctx, "a b"); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("bad name: %v", err)
		}
	})
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
			time.Sleep(time.Minute)
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

func TestSweepByAWaitingClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, &pawl.Options{Poll: time.Second})
		id := enqueue(t, q, &pawl.Request{Lease: 10 * time.Second})
		claim(t, q) // by a worker that dies
		start := time.Now()
		j, err := q.Claim(t.Context(), nil)
		if err != nil || j.ID != id || j.Rescued != 1 {
			t.Fatalf("claimed %+v, %v", j, err)
		}
		if d := time.Since(start); d < 10*time.Second || d > 15*time.Second+100*time.Millisecond {
			t.Errorf("rescued after %v, want within lease + 5s", d)
		}
	})
}

func TestWatchUnsupported(t *testing.T) {
	q := pawl.New(struct{ pawl.Storage }{memory.New(nil)}, &pawl.Options{Logger: slog.New(slog.DiscardHandler)})
	if err := q.Watch(t.Context(), func(pawl.Event) {}); !errors.Is(err, pawl.ErrUnsupported) {
		t.Errorf("error %v", err)
	}
	// Without a Watcher and a Cycler, claims poll and cycles take two calls.
	enqueue(t, q, &pawl.Request{})
	enqueue(t, q, &pawl.Request{})
	j, err := q.Claim(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: pawl.DefaultQueue, Max: 9}}, Max: 9, Lease: time.Minute}
	lost, c, err := q.Cycle(t.Context(), []pawl.Outcome{{Ref: j.Ref, Verb: pawl.Ack}}, spec)
	if err != nil || len(lost) != 0 || len(c.Jobs) != 1 {
		t.Errorf("Cycle: lost %v, %d jobs, %v", lost, len(c.Jobs), err)
	}
}

func TestFindUnwraps(t *testing.T) {
	s := memory.New(nil)
	if w, ok := pawl.Find[pawl.Watcher](&lossy{Storage: s}); !ok || w != pawl.Watcher(s) {
		t.Error("the Watcher below was not found")
	}
	if _, ok := pawl.Find[pawl.Watcher](struct{ pawl.Storage }{s}); ok {
		t.Error("a Watcher was found that can't be seen")
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
