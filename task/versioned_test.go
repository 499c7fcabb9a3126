package task_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

// Three versions of the args of one kind.
type (
	personV1 struct{ Name string }
	personV2 struct{ First, Last string }
	person   struct {
		First, Last string
		Greeting    string
	}
)

var errNameless = errors.New("nameless")

func split(old personV1) (personV2, error) {
	first, last, ok := strings.Cut(old.Name, " ")
	if !ok {
		return personV2{}, errNameless
	}
	return personV2{first, last}, nil
}

func address(old personV2) (person, error) {
	return person{First: old.First, Last: old.Last, Greeting: "Dear " + old.First}, nil
}

func (personV1) Kind() string { return "person" }

func (personV2) Kind() string { return "person" }
func (personV2) Codec() task.Codec {
	return task.Versioned{Upcasters: []task.Upcaster{task.Upcast(split)}}
}

func (person) Kind() string { return "person" }
func (person) Codec() task.Codec {
	return task.Versioned{Upcasters: []task.Upcaster{task.Upcast(split), task.Upcast(address)}}
}

func TestVersioned(t *testing.T) {
	v1, v2, v3 := task.New(personV1{"Ada Lovelace"}), task.New(personV2{"Ada", "Lovelace"}), task.New(person{First: "Ada"})
	for want, r := range map[string]*pawl.Request{
		`{"Name":"Ada Lovelace"}`:                    v1,
		`v2 {"First":"Ada","Last":"Lovelace"}`:       v2,
		`v3 {"First":"Ada","Last":"","Greeting":""}`: v3,
	} {
		if r.Err != nil || string(r.Payload) != want {
			t.Errorf("got %s, %v, want %s", r.Payload, r.Err, want)
		}
	}
	want := person{"Ada", "Lovelace", "Dear Ada"}
	for _, payload := range []string{string(v1.Payload), string(v2.Payload), `v1 {"Name":"Ada Lovelace"}`} {
		if got, err := open[person]([]byte(payload)); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", payload, got, err)
		}
		if got, err := open[*person]([]byte(payload)); err != nil || *got != want {
			t.Errorf("%s, through a pointer: got %+v, %v", payload, got, err)
		}
	}
	if got, err := open[person](v3.Payload); err != nil || got.First != "Ada" || got.Greeting != "" {
		t.Errorf("got %+v, %v", got, err)
	}
	if a, b := task.UniqueByArgs(personV1{"x"}), task.UniqueByArgs(versionedOnce{"x"}); a != b {
		t.Error("the unique key depends on Versioned")
	}
}

// versionedOnce is personV1 before there is a version 2.
type versionedOnce personV1

func (versionedOnce) Kind() string      { return "person" }
func (versionedOnce) Codec() task.Codec { return task.Versioned{} }

type rawOnce string

func (rawOnce) Kind() string      { return "raw" }
func (rawOnce) Codec() task.Codec { return task.Versioned{Codec: task.Raw{}} }

func TestVersionOne(t *testing.T) {
	if r := task.New(versionedOnce{"x"}); string(r.Payload) != `{"Name":"x"}` {
		t.Errorf("got %s, want no mark before there is a version 2", r.Payload)
	}
	for _, s := range []rawOnce{"", "v", "v2", "v2 and more", "v0 x", "v12345678901234567890 x", "vx y", "v1x y", "\x00pv2 x", "\x00pv"} {
		r := task.New(s)
		if got, err := open[rawOnce](r.Payload); err != nil || got != s {
			t.Errorf("%q became %q, then %q, %v", s, r.Payload, got, err)
		}
	}
}

// rawTwice is a kind whose first payloads were made by Raw alone.
type rawTwice string

func (rawTwice) Kind() string { return "raw" }
func (rawTwice) Codec() task.Codec {
	return task.Versioned{Codec: task.Raw{}, Upcasters: []task.Upcaster{
		task.Upcast(func(old string) (rawTwice, error) { return rawTwice(old + ", upcast"), nil }),
	}}
}

// zippedTwice is one whose payloads Gzip leaves as Raw makes them while they are short.
type zippedTwice string

func (zippedTwice) Kind() string { return "zipped" }
func (zippedTwice) Codec() task.Codec {
	return task.Versioned{Codec: &task.Gzip{Codec: task.Gzip{Codec: task.Raw{}}}, Upcasters: []task.Upcaster{
		task.Upcast(func(old string) (zippedTwice, error) { return zippedTwice(old + ", upcast"), nil }),
	}}
}

// TestVersionsOfText: no text is taken for one that has a version.
func TestVersionsOfText(t *testing.T) {
	t.Run("raw", versionsOfText[rawTwice])
	t.Run("gzip", versionsOfText[zippedTwice])
}

func versionsOfText[A interface {
	~string
	task.Args
}](t *testing.T) {
	for _, text := range []string{"hello", "v2 of the plan", "v3 of the plan"} {
		if got, err := open[A]([]byte(text)); err != nil || string(got) != text+", upcast" {
			t.Errorf("%q became %q, %v", text, got, err)
		}
		r := task.New(A(text))
		if got, err := open[A](r.Payload); err != nil || string(got) != text {
			t.Errorf("%q became %q, then %q, %v", text, r.Payload, got, err)
		}
	}
}

func TestVersionErrors(t *testing.T) {
	for payload, want := range map[string]string{
		`{"Name":"hunter2"}`:           "error of type *errors.errorString",
		`v1 {"Name":7}`:                `does not fit Go type string of field "Name"`,
		`v2 {"First":7}`:               `does not fit Go type string of field "First"`,
		`v3 {`:                         "it ends too early",
		`v4 {"Secret":"hunter2"}`:      "it is of version 4, and this program knows 3",
		`v99999999999999999999 {"x":}`: "not JSON",
	} {
		_, err := open[person]([]byte(payload))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %s", payload, err, want)
		}
	}
}

type broken struct{}

func (broken) Kind() string { return "broken" }
func (broken) Codec() task.Codec {
	return task.Gzip{Codec: task.Versioned{Upcasters: []task.Upcaster{task.Upcast(address), task.Upcast(split)}}}
}

type unmade struct{}

func (unmade) Kind() string      { return "unmade" }
func (unmade) Codec() task.Codec { return task.Versioned{Upcasters: make([]task.Upcaster, 1)} }

type nowhere struct{}

func (nowhere) Kind() string { return "nowhere" }
func (nowhere) Codec() task.Codec {
	return task.Versioned{Upcasters: []task.Upcaster{task.Upcast(func(personV1) (*nowhere, error) { return nil, nil })}}
}

func TestUpcastersMustFit(t *testing.T) {
	const want = "Upcaster from version 1 to 2 makes task_test.person, not task_test.personV1"
	expectPanic(t, want, func() { task.Register(task.NewMux(), nothing[broken]) })
	expectPanic(t, "was not made by Upcast", func() { task.Register(task.NewMux(), nothing[unmade]) })
	if r := task.New(broken{}); r.Err == nil || !strings.Contains(r.Err.Error(), want) {
		t.Errorf("got %v", r.Err)
	}
	if _, err := open[broken]([]byte("{}")); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
	if _, err := open[nowhere]([]byte("{}")); err == nil || !strings.Contains(err.Error(), "returned nil") {
		t.Errorf("got %v", err)
	}
	if r := task.New(versionedUnfit{}); r.Err == nil {
		t.Error("the error of the wrapped codec is lost")
	}
}

type sealedInside struct{}

func (sealedInside) Kind() string { return "sealed-inside" }
func (sealedInside) Codec() task.Codec {
	return task.Versioned{Codec: task.Gzip{Codec: task.Encrypted{Keys: paymentKeys}}}
}

type sealedByPointer struct{}

func (sealedByPointer) Kind() string { return "sealed-by-pointer" }
func (sealedByPointer) Codec() task.Codec {
	return &task.Versioned{Codec: &task.Gzip{Codec: &task.Encrypted{Keys: paymentKeys}}}
}

// TestVersionedAroundEncrypted: it would work until there is a version 2.
func TestVersionedAroundEncrypted(t *testing.T) {
	paymentKeys = keyring(t, newKey("2026"))
	expectPanic(t, "Versioned around Encrypted", func() { task.Register(task.NewMux(), nothing[sealedInside]) })
	expectPanic(t, "Versioned around Encrypted", func() { task.Register(task.NewMux(), nothing[sealedByPointer]) })
	if r := task.New(sealedInside{}); r.Err == nil {
		t.Error("a payload was made that no later version can read")
	}
}

// TestLastUpcasterFails: its error counts like that of others.
func TestLastUpcasterFails(t *testing.T) {
	if _, err := open[personV2]([]byte(`{"Name":"nameless"}`)); !errors.Is(err, errNameless) {
		t.Errorf("got %v", err)
	}
}

type versionedUnfit struct{ Func func() }

func (versionedUnfit) Kind() string      { return "unfit" }
func (versionedUnfit) Codec() task.Codec { return task.Versioned{} }

// TestUpcasterToPointer: the last Upcaster may make a pointer, and args be one.
func TestUpcasterToPointer(t *testing.T) {
	if got, err := open[pointedTo]([]byte(`{"Name":"Ada"}`)); err != nil || got.Name != "Dr. Ada" {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := open[*pointedTo]([]byte(`{"Name":"Ada"}`)); err != nil || got.Name != "Dr. Ada" {
		t.Errorf("got %+v, %v", got, err)
	}
}

type pointedTo struct{ Name string }

func (pointedTo) Kind() string { return "pointed-to" }
func (pointedTo) Codec() task.Codec {
	return task.Versioned{Upcasters: []task.Upcaster{
		task.Upcast(func(old personV1) (*pointedTo, error) { return &pointedTo{"Dr. " + old.Name}, nil }),
	}}
}

// TestNewerVersionWaits: a worker of an older program hands the job back, one of
// the newer runs it.
func TestNewerVersionWaits(t *testing.T) {
	q := pawl.New(memory.New(nil), nil)
	receipt, err := q.Enqueue(t.Context(), task.New(person{First: "Ada"}))
	if err != nil {
		t.Fatal(err)
	}
	old, current := task.NewMux(), task.NewMux()
	task.Register(old, func(context.Context, *task.Job[personV2]) error { return errors.New("ran") })
	var got person
	task.Register(current, func(_ context.Context, job *task.Job[person]) error { got = job.Args; return nil })
	for range 2 {
		ran, err := worker.Drain(t.Context(), q, old, nil)
		if err != nil || len(ran) != 1 || ran[0].Verb != pawl.SnoozeFor {
			t.Fatalf("ran %+v, %v", ran, err)
		}
		checkLacking(t, ran[0].Err, "it is of version 3, and this program knows 2")
		if err := q.RunNow(t.Context(), receipt.Queue, receipt.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := worker.Drain(t.Context(), q, current, nil); err != nil || got.First != "Ada" {
		t.Errorf("got %+v, %v", got, err)
	}
	job, err := q.Get(t.Context(), receipt.Queue, receipt.ID)
	if err != nil || job.State != pawl.Completed || job.Attempt != 1 || job.Counts.Snoozes != 2 {
		t.Errorf("got %+v, %v", job, err)
	}
}
