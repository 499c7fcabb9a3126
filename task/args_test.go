package task_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/task"
)

type welcome struct{ UserID int64 }

func (welcome) Kind() string { return "welcome" }

// report has all its methods.
type report struct{ Month string }

func (report) Kind() string { return "report" }

func (r report) Defaults() pawl.Request {
	return pawl.Request{
		Kind: "ignored", Payload: []byte("ignored"),
		Queue: "slow", Priority: 10, MaxAttempts: 3, MaxRescues: pawl.NoRescues, Retention: pawl.DeleteNow,
		UniqueKey: task.UniqueByArgs(r), UniqueMode: pawl.UniqueUntilClaimed, OnDuplicate: pawl.Replace,
		Lease: time.Minute, Timeout: time.Hour, Meta: map[string]string{"month": r.Month},
	}
}

// pointed has its methods on the pointer, and is enqueued as one.
type pointed struct{ N int }

func (p *pointed) Kind() string           { return "pointed" }
func (p *pointed) Defaults() pawl.Request { return pawl.Request{Queue: "pointed", Priority: p.N} }

func TestNew(t *testing.T) {
	got := task.New(welcome{7})
	want := &pawl.Request{Kind: "welcome", Payload: []byte(`{"UserID":7}`)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNewStartsFromDefaults(t *testing.T) {
	args := report{"2026-02"}
	got, want := task.New(args), args.Defaults()
	want.Kind, want.Payload = "report", []byte(`{"Month":"2026-02"}`)
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Error(diff)
	}
	if got := task.New(&pointed{5}); got.Queue != "pointed" || got.Priority != 5 {
		t.Errorf("defaults of a pointer: got %+v", got)
	}
	if got := task.New[task.Args](args); got.Queue != "slow" {
		t.Errorf("defaults behind an interface: got %+v", got)
	}
}

func TestDefaultsMayFail(t *testing.T) {
	if got := task.New(refused{}); got.Err != errRefused {
		t.Errorf("got %v, want the error of Defaults", got.Err)
	}
}

var errRefused = errors.New("refused")

type refused struct{}

func (refused) Kind() string           { return "refused" }
func (refused) Defaults() pawl.Request { return pawl.Request{Err: errRefused} }

type hiddenDefaults struct{}

func (hiddenDefaults) Kind() string            { return "hidden" }
func (*hiddenDefaults) Defaults() pawl.Request { return pawl.Request{Queue: "lost"} }

type hiddenCodec struct{}

func (hiddenCodec) Kind() string       { return "hidden" }
func (*hiddenCodec) Codec() task.Codec { return task.Raw{} }

func TestNewReportsHiddenMethods(t *testing.T) {
	for want, r := range map[string]*pawl.Request{
		"task: method Defaults of task_test.hiddenDefaults needs a value receiver": task.New(hiddenDefaults{}),
		"task: method Codec of task_test.hiddenCodec needs a value receiver":       task.New(hiddenCodec{}),
	} {
		if r.Err == nil || r.Err.Error() != want {
			t.Errorf("got %v, want %s", r.Err, want)
		}
	}
}

func TestEnqueueReturnsEncodeError(t *testing.T) {
	q := pawl.New(memory.New(nil), nil)
	_, err := q.Enqueue(t.Context(), task.New(unfit{}))
	var e *task.EncodeError
	if !errors.As(err, &e) || !errors.Is(err, pawl.ErrInvalid) {
		t.Fatalf("got %v, want an EncodeError that is ErrInvalid", err)
	}
	if stats, err := q.Stats(t.Context()); err != nil || len(stats) != 0 {
		t.Errorf("got %v, %v, want nothing stored", stats, err)
	}
}

func TestUniqueByArgs(t *testing.T) {
	key := task.UniqueByArgs(welcome{7})
	// Jobs that wait must keep meeting the keys of the next version.
	if want := "welcome:ZK64SL7dYFgqdjcZRPdbnweeqAD3NL-OP0GhRCK6C2U"; key != want {
		t.Errorf("got %s, want %s", key, want)
	}
	if key != task.UniqueByArgs(&welcome{7}) {
		t.Error("a pointer to the same args has another key")
	}
	for _, other := range []task.Args{welcome{8}, report{}, everything{}, line("7")} {
		if key == task.UniqueByArgs(other) {
			t.Errorf("%T%v has the same key", other, other)
		}
	}
}

type longest struct{}

func (longest) Kind() string { return strings.Repeat("k", pawl.MaxNameLen) }

func TestUniqueByArgsFits(t *testing.T) {
	if n := len(task.UniqueByArgs(longest{})); n > pawl.MaxKeyLen {
		t.Errorf("a key of %d bytes", n)
	}
	if key := task.UniqueByArgs(unfit{}); !strings.HasPrefix(key, "unfit:") {
		t.Errorf("args that don't encode have key %q", key)
	}
}

// What panics when it is encoded is reported by New, also if Defaults asks for its
// key.
func TestUniqueByArgsOfWhatPanics(t *testing.T) {
	r := task.New(explosive{})
	var e *task.EncodeError
	if !errors.As(r.Err, &e) || !strings.HasPrefix(r.UniqueKey, "explosive:") {
		t.Errorf("got key %q, %v, want an EncodeError", r.UniqueKey, r.Err)
	}
}

type explosive struct{ V explodes }

func (explosive) Kind() string { return "explosive" }
func (e explosive) Defaults() pawl.Request {
	return pawl.Request{UniqueKey: task.UniqueByArgs(e)}
}

type explodes struct{}

func (explodes) MarshalJSON() ([]byte, error) { panic("boom") }

func TestUniqueByArgsKeepsOneJob(t *testing.T) {
	q := pawl.New(memory.New(nil), nil)
	enqueue := func(month string) pawl.Receipt {
		r, err := q.Enqueue(t.Context(), task.New(report{month}))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first, again, other := enqueue("2026-01"), enqueue("2026-01"), enqueue("2026-02")
	if again.Status != pawl.Replaced || again.ID != first.ID {
		t.Errorf("the same args again: got %v", again)
	}
	if other.Status != pawl.Stored {
		t.Errorf("other args: got %v", other)
	}
}
