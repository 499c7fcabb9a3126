package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
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

// TestSweepLimits: a sweep keeps what the Options say; negative ones are none, and
// those that are too great, which is logged.
func TestSweepLimits(t *testing.T) {
	s := &sweeps{Storage: memory.New(nil)}
	for _, c := range []struct {
		o    pawl.Options
		want pawl.SweepSpec
	}{
		{pawl.Options{}, pawl.SweepSpec{Limit: pawl.MaxStep}},
		{pawl.Options{BuriedRetention: time.Hour, MaxCompleted: 3, MaxBuried: 2, MaxCanceled: 1},
			pawl.SweepSpec{Limit: pawl.MaxStep, BuriedRetention: time.Hour, MaxCompleted: 3, MaxBuried: 2, MaxCanceled: 1}},
		{pawl.Options{BuriedRetention: -1, MaxCompleted: -1, MaxBuried: -1, MaxCanceled: -1}, pawl.SweepSpec{Limit: pawl.MaxStep}},
		{pawl.Options{MaxCompleted: pawl.MaxKept + 1, MaxBuried: pawl.MaxKept}, pawl.SweepSpec{Limit: pawl.MaxStep, MaxBuried: pawl.MaxKept}},
	} {
		var log strings.Builder
		c.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		if _, err := pawl.New(s, &c.o).Sweep(t.Context()); err != nil || s.last != c.want {
			t.Errorf("sweep %+v, want %+v, error %v", s.last, c.want, err)
		}
		if warned := strings.Contains(log.String(), "level=WARN"); warned != (c.o.MaxCompleted > pawl.MaxKept) {
			t.Errorf("%+v: logged %q", c.want, log.String())
		}
	}
}

// sweeps keeps what the last Sweep was given.
type sweeps struct {
	pawl.Storage
	last pawl.SweepSpec
}

func (s *sweeps) Sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	s.last = spec
	return s.Storage.Sweep(ctx, spec)
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
	if _, err := q.Prepare(good, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("Prepare of nil: %v", err)
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

func TestBatchBytes(t *testing.T) {
	q := open(t, &pawl.Options{MaxPayload: 100 << 20})
	big := &pawl.Request{Kind: "test", Payload: make([]byte, 33<<20)}
	if _, err := q.EnqueueMany(t.Context(), []*pawl.Request{big, big}); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("error %v", err)
	}
}
