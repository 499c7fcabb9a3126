package task_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

type everything struct {
	Text  string
	Int   int64
	Float float64
	Bytes []byte
	Time  time.Time
	List  []int
	Any   any
	Map   map[string]everything
	Next  *everything
}

func (everything) Kind() string { return "everything" }

func TestJSONRoundTrip(t *testing.T) {
	want := everything{
		Text: "<b> & \u2028", Int: math.MaxInt64, Float: math.SmallestNonzeroFloat64,
		Bytes: []byte{0, 255}, Time: time.Date(2026, 2, 28, 23, 59, 59, 999999999, time.UTC),
		List: []int{1, 2}, Any: json.Number("9007199254740993"),
		Map: map[string]everything{"": {}}, Next: &everything{Text: "x"},
	}
	r := task.New(want)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	job, err := task.Decode[everything](&pawl.Job{Kind: r.Kind, Payload: r.Payload})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, job.Args); diff != "" {
		t.Errorf("args changed on the way (-sent +got):\n%s", diff)
	}
}

func TestJSONIsTerse(t *testing.T) {
	got, err := task.JSON{}.Encode(map[string]string{"html": "<a href='?x=1&y=2'>"})
	if want := `{"html":"<a href='?x=1&y=2'>"}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestJSONUnknownFields(t *testing.T) {
	data := []byte(`{"Text": "x", "New": 1}`)
	var v everything
	if err := (task.JSON{}).Decode(data, &v); err != nil || v.Text != "x" {
		t.Errorf("got %q, %v, want the known field alone", v.Text, err)
	}
	if err := (task.JSON{DisallowUnknownFields: true}).Decode(data, &v); err == nil {
		t.Error("an unknown field was decoded")
	}
}

type strict struct{ ID int }

func (strict) Kind() string      { return "strict" }
func (strict) Codec() task.Codec { return task.JSON{DisallowUnknownFields: true} }

// secret stands for what must not be seen in an error.
const secret = "hunter2"

// leaky has a codec that quotes what it reads, as careless ones do.
type leaky string

func (leaky) Kind() string      { return "leaky" }
func (leaky) Codec() task.Codec { return leakyCodec{} }

type leakyCodec struct{}

func (leakyCodec) Encode(v any) ([]byte, error)    { return nil, errors.New("can't encode " + secret) }
func (leakyCodec) Decode(data []byte, _ any) error { return errors.New("can't decode " + string(data)) }

type dated struct {
	At     time.Time
	Number json.Number
}

func (dated) Kind() string { return "dated" }

func decodeError[A task.Args](payload string) error {
	_, err := task.Decode[A](&pawl.Job{Kind: "k", Payload: []byte(payload)})
	return err
}

func TestDecodeErrorText(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"empty":         {decodeError[everything](""), `task: payload of kind "k" (0 bytes) does not decode: it ends too early`},
		"cut":           {decodeError[everything](`{"Text": "hunter2`), "it ends too early"},
		"syntax":        {decodeError[everything](`{"Text": hunter2}`), "not JSON at byte 10"},
		"trailing":      {decodeError[everything](`{} "hunter2"`), "data after the JSON value"},
		"type":          {decodeError[everything](`{"Int": "hunter2"}`), `JSON string at byte 17 does not fit Go type int64 of field "Int"`},
		"top":           {decodeError[everything](`["hunter2"]`), "JSON array at byte 1 does not fit Go type task_test.everything"},
		"number":        {decodeError[everything](`{"Int": 12345678901234567890}`), `JSON number at byte 28 does not fit Go type int64 of field "Int"`},
		"in a map":      {decodeError[everything](`{"Map": {"hunter2": {"Int": "x"}}}`), `does not fit Go type int64 of field "Map.Int"`},
		"unknown field": {decodeError[strict](`{"hunter2": 1}`), "a field that the type lacks"},
		"time":          {decodeError[dated](`{"At": "hunter2"}`), "error of type *time.ParseError"},
		"json.Number":   {decodeError[dated](`{"Number": "hunter2"}`), "error of type "},
		"custom codec":  {decodeError[leaky](secret), "error of type *errors.errorString"},
	} {
		t.Run(name, func(t *testing.T) {
			var e *task.DecodeError
			if !errors.As(c.err, &e) {
				t.Fatalf("got %v, want a DecodeError", c.err)
			}
			if e.Kind != "k" || e.Part != "payload" || e.Err == nil {
				t.Errorf("got %+v", e)
			}
			if got := e.Error(); !strings.Contains(got, c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			for _, part := range []string{secret, "12345678901234567890"} {
				if strings.Contains(e.Error(), part) {
					t.Errorf("%q quotes the payload", e)
				}
			}
		})
	}
}

type unfit struct {
	Func  func()
	Float float64
}

func (unfit) Kind() string { return "unfit" }

type notANumber struct{ Float float64 }

func (notANumber) Kind() string { return "not-a-number" }

func TestEncodeError(t *testing.T) {
	for want, r := range map[string]*pawl.Request{
		"task: a value of type task_test.unfit does not encode: JSON has no form for type func()":                                 task.New(unfit{}),
		"task: a value of type task_test.notANumber does not encode: JSON has no form for one of its values":                      task.New(notANumber{math.NaN()}),
		"task: a value of type task_test.leaky does not encode: error of type *errors.errorString":                                task.New(leaky("")),
		"task: a value of type task_test.number does not encode: task: Raw takes types of []byte or string, not task_test.number": task.New(number(1)),
	} {
		var e *task.EncodeError
		if !errors.As(r.Err, &e) || !errors.Is(r.Err, pawl.ErrInvalid) || e.Err == nil {
			t.Fatalf("got %v, want an EncodeError that is ErrInvalid", r.Err)
		}
		if e.Error() != want {
			t.Errorf("got  %s\nwant %s", e, want)
		}
		if r.Payload != nil {
			t.Errorf("a payload of %d bytes beside %v", len(r.Payload), e)
		}
	}
}

type blob []byte

func (blob) Kind() string      { return "blob" }
func (blob) Codec() task.Codec { return task.Raw{} }

type line string

func (line) Kind() string      { return "line" }
func (line) Codec() task.Codec { return task.Raw{} }

type number int

func (number) Kind() string      { return "number" }
func (number) Codec() task.Codec { return task.Raw{} }

func TestRaw(t *testing.T) {
	b := blob("\x00\xff")
	r := task.New(b)
	if r.Err != nil || string(r.Payload) != "\x00\xff" {
		t.Fatalf("got %q, %v", r.Payload, r.Err)
	}
	b[0] = 1
	job := pawl.Job{Payload: r.Payload}
	got, err := task.Decode[blob](&job)
	if err != nil || string(got.Args) != "\x00\xff" {
		t.Fatalf("got %q, %v, want the bytes of when New was called", got.Args, err)
	}
	job.Payload[1] = 1
	if !bytes.Equal(got.Args, []byte("\x00\xff")) {
		t.Error("args share memory with the payload")
	}
	r = task.New(line("\xffx"))
	text, err := task.Decode[line](&pawl.Job{Payload: r.Payload})
	if err != nil || r.Err != nil || text.Args != "\xffx" {
		t.Errorf("got %q, %v, %v", text.Args, err, r.Err)
	}
}

func TestRawRefusesOtherTypes(t *testing.T) {
	var n *blob
	for _, v := range []any{nil, 1, []int{1}, new(int), blob("x"), n} {
		if err := (task.Raw{}).Decode([]byte("x"), v); err == nil {
			t.Errorf("decoded into %T", v)
		}
	}
	for _, v := range []any{nil, 1, []int{1}, new(int)} {
		if _, err := (task.Raw{}).Encode(v); err == nil {
			t.Errorf("encoded %T", v)
		}
	}
	if got, err := (task.Raw{}).Encode(new(line("x"))); err != nil || string(got) != "x" {
		t.Errorf("through a pointer: got %q, %v", got, err)
	}
}

// FuzzDecode feeds arbitrary payloads: none may panic or be quoted, and what
// decodes must survive another round trip.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", "null", "{}", "[]", `{"Text":"x","Any":[1e400]}`, `{"Int":9223372036854775808}`,
		`{"Map":{"a":{"Next":null}}}`, `{"At":"2026-02-30T00:00:00Z"}`, `{"Text":"\ud800"}`, "{}{}", `{"Any":-0}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		checkDecode[everything](t, payload)
		checkDecode[*everything](t, payload)
		checkDecode[strict](t, payload)
		checkDecode[dated](t, payload)
		if got := checkDecode[blob](t, payload); !bytes.Equal(got, payload) {
			t.Errorf("Raw made %q of %q", got, payload)
		}
	})
}

func checkDecode[A task.Args](t *testing.T, payload []byte) A {
	before := bytes.Clone(payload)
	job, err := task.Decode[A](&pawl.Job{Kind: "k", Payload: payload})
	if !bytes.Equal(before, payload) {
		t.Fatal("the payload was changed")
	}
	if err != nil {
		// A fault is described in words that do not depend on the payload.
		if e := (*task.DecodeError)(nil); !errors.As(err, &e) || len(e.Error()) > 250 {
			t.Fatalf("got %v", err)
		}
		if len(payload) > 8 && strings.Contains(err.Error(), string(payload)) {
			t.Fatalf("%q quotes the payload", err)
		}
		return job.Args
	}
	r := task.New(job.Args)
	if r.Err != nil {
		t.Fatalf("decoded args don't encode: %v", r.Err)
	}
	again, err := task.Decode[A](&pawl.Job{Kind: "k", Payload: r.Payload})
	if err != nil {
		t.Fatalf("%s does not decode: %v", r.Payload, err)
	}
	second := task.New(again.Args)
	if !bytes.Equal(r.Payload, second.Payload) {
		t.Fatalf("%s became %s", r.Payload, second.Payload)
	}
	return job.Args
}

// A codec that is missing is not taken for JSON.
func TestCodecThatIsNil(t *testing.T) {
	const want = "its method Codec returned nil"
	if r := task.New(noCodec{}); r.Err == nil || !strings.Contains(r.Err.Error(), want) || r.Payload != nil {
		t.Errorf("New: got %q, %v", r.Payload, r.Err)
	}
	if _, err := open[noCodec]([]byte("{}")); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Decode: got %v", err)
	}
}

// A bomb is Args whose codec panics.
type bomb struct{}

func (bomb) Kind() string      { return "bomb" }
func (bomb) Codec() task.Codec { return bombCodec{} }

type bombCodec struct{}

func (bombCodec) Encode(any) ([]byte, error)   { panic("hunter2") }
func (bombCodec) Decode(d []byte, _ any) error { panic(errors.New(string(d))) }

// TestCodecPanics: a panic is an error of the codec, and stored like one.
func TestCodecPanics(t *testing.T) {
	r := task.New(bomb{})
	if r.Err == nil || strings.Contains(r.Err.Error(), "hunter2") || !strings.Contains(r.Err.Error(), "panicked") {
		t.Errorf("got %v", r.Err)
	}
	q := pawl.New(memory.New(nil), nil)
	receipt, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "bomb", Payload: []byte("hunter2")})
	if err != nil {
		t.Fatal(err)
	}
	tasks := task.NewMux()
	task.Register(tasks, nothing[bomb])
	if _, err := worker.Drain(t.Context(), q, tasks, nil); err != nil {
		t.Fatal(err)
	}
	job, err := q.Get(t.Context(), receipt.Queue, receipt.ID)
	if err != nil || job.State != pawl.Buried || len(job.Failures) != 1 {
		t.Fatalf("got %+v, %v", job, err)
	}
	want := `payload of kind "bomb" (7 bytes) does not decode: the codec panicked with a value of type *errors.errorString`
	if s := job.Failures[0].Error + job.Failures[0].Stack; !strings.Contains(s, want) || strings.Contains(s, "hunter2") {
		t.Errorf("stored %q", s)
	}
}
