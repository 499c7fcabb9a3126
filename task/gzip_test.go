package task_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/task"
)

type packed struct{ Text string }

func (packed) Kind() string      { return "packed" }
func (packed) Codec() task.Codec { return task.Gzip{MaxSize: 1 << 20} }

// unpacked is how packed jobs were encoded before.
type unpacked packed

func (unpacked) Kind() string { return "packed" }

type packedRaw string

func (packedRaw) Kind() string      { return "packed-raw" }
func (packedRaw) Codec() task.Codec { return task.Gzip{Codec: task.Raw{}} }

func TestGzip(t *testing.T) {
	long := packed{strings.Repeat("again and ", 5000)}
	r := task.New(long)
	if r.Err != nil || len(r.Payload) > 500 {
		t.Fatalf("got %d bytes, %v", len(r.Payload), r.Err)
	}
	got, err := task.Decode[packed](&pawl.Job{Payload: r.Payload})
	if err != nil || got.Args != long {
		t.Fatalf("got %d bytes, %v", len(got.Args.Text), err)
	}
	if short := task.New(packed{"x"}); string(short.Payload) != `{"Text":"x"}` {
		t.Errorf("got %q, want what would grow as it is", short.Payload)
	}
	before := task.New(unpacked{"waits since before"})
	if got, err := task.Decode[packed](&pawl.Job{Payload: before.Payload}); err != nil || got.Args.Text != "waits since before" {
		t.Errorf("got %+v, %v", got.Args, err)
	}
	if task.UniqueByArgs(long) != task.UniqueByArgs(unpacked(long)) {
		t.Error("the unique key depends on gzip")
	}
	most := packedRaw(strings.Repeat("\x00", 16<<20)) // in size and ratio
	for _, s := range []packedRaw{"", "x", "\x1f\x8b looks compressed", most} {
		r := task.New(s)
		if got, err := task.Decode[packedRaw](&pawl.Job{Payload: r.Payload}); err != nil || got.Args != s {
			t.Errorf("%.20q became %.20q, %v", s, got.Args, err)
		}
	}
}

func gzipped(t *testing.T, s string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func claims(data []byte, size uint32) []byte {
	data = bytes.Clone(data)
	binary.LittleEndian.PutUint32(data[len(data)-4:], size)
	return data
}

func TestGzipRefuses(t *testing.T) {
	small, bomb := gzipped(t, `{"Text":"x"}`), gzipped(t, strings.Repeat(" ", 10<<20))
	flipped := bytes.Clone(small)
	flipped[len(flipped)-8] ^= 1
	const large, damaged = "at most 1048576 are allowed", "damaged gzip data"
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"bomb":                  {bomb, large},
		"bomb that seems small": {claims(bomb, 100), damaged},
		"claims to be large":    {claims(small, 1<<31), large},
		"claims a bit too much": {claims(small, 13), damaged},
		"more than gzip can":    {claims(small, 1<<20), damaged},
		"checksum":              {flipped, damaged},
		"cut":                   {small[:len(small)-1], ""},
		"magic alone":           {small[:2], "ends too early"},
		"no header":             {[]byte("\x1f\x8bxxxxxxxx\x01\x00\x00\x00"), damaged},
		"two":                   {append(bytes.Clone(small), small...), damaged},
		"plain and too large":   {[]byte(`{"Text":"` + strings.Repeat("x", 1<<20) + `"}`), large},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := task.Decode[packed](&pawl.Job{Kind: "packed", Payload: c.data})
		runtime.ReadMemStats(&after)
		var e *task.DecodeError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) || got.Args.Text != "" {
			t.Errorf("%s: got %+v, %v, want %s", name, got.Args, err, c.want)
		}
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 200<<10 {
			t.Errorf("%s: %d bytes were set aside", name, allocated)
		}
	}
	if r := task.New(packed{strings.Repeat("x", 1<<20)}); r.Err == nil || !strings.Contains(r.Err.Error(), large) {
		t.Errorf("got %v for what can't be decoded later", r.Err)
	}
	if r := task.New(packedUnfit{}); r.Err == nil {
		t.Error("the error of the wrapped codec is lost")
	}
}

type packedUnfit struct{ Func func() }

func (packedUnfit) Kind() string      { return "packed" }
func (packedUnfit) Codec() task.Codec { return task.Gzip{} }

// TestGzipLetsGo: a compressor that is kept for the next payload does not keep
// the last one. (It would outlive one collection, as all in a pool does.)
func TestGzipLetsGo(t *testing.T) {
	r := task.New(packed{strings.Repeat("again and ", 50000)})
	kept := weak.Make(&r.Payload[0])
	r = nil
	runtime.GC()
	if kept.Value() != nil {
		t.Error("the payload is still held")
	}
}
