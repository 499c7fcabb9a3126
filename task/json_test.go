package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// decodeAlone is what JSON.Decode has to be equal to: a decoder for each payload.
func (c JSON) decodeAlone(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if c.DisallowUnknownFields {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(v); err != nil {
		return err
	}
	if rest := data[d.InputOffset():]; len(bytes.TrimLeft(rest, " \t\r\n")) > 0 {
		return errTrailing
	}
	return nil
}

type mixed struct {
	Text  string
	Int   int64
	Bytes []byte
	Time  time.Time
	List  []int
	Any   any
	Map   map[string]*mixed
	Raw   json.RawMessage
	Num   json.Number
	Own   picky
}

// picky has a decoder of its own that fails with errors of encoding/json.
type picky struct{ v any }

func (p *picky) UnmarshalJSON(data []byte) error {
	if bytes.Contains(data, []byte("x")) {
		return json.Unmarshal([]byte(`{]`), &p.v)
	}
	return json.Unmarshal(data, &p.v)
}

func (p picky) MarshalJSON() ([]byte, error) { return json.Marshal(p.v) }

// FuzzJSONReuse decodes two payloads, one after the other, with the decoders
// that are used again, and each with one of its own: values and errors are the
// same.
func FuzzJSONReuse(f *testing.F) {
	seeds := []string{
		"", " ", "null", "{}", "{} ", "7", "7 ", "7 8", "-", `"x`, `{"Text":"x","Any":[1e400]}`, `{"Any":{"a":[1,2,{}]}}`,
		`{"Int":9223372036854775808}`, `{"Map":{"a":{"Int":null}}}`, `{"Time":"2026-02-30T00:00:00Z"}`,
		`{"Text":"\ud800"}`, "{}{}", "[1,2] \n", `{"Raw": [1, 2] , "Num": -0.10}`, `{"Own":"x"}`, `{"Own":["y"]}`, `{"New":1}`, `{"Text": hunter2}`,
		strings.Repeat("[", 10_001), strings.Repeat(" ", 600) + "{}", "{}" + strings.Repeat(" ", 600), `{"Text":"` + strings.Repeat("long", 500) + `"}`,
	}
	for i, s := range seeds {
		f.Add([]byte(s), []byte(seeds[len(seeds)-1-i]), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, first, second []byte, strict bool) {
		c := JSON{DisallowUnknownFields: strict}
		for _, data := range [][]byte{first, second, first, []byte(`{"Int": 7}`)} {
			compareDecode[mixed](t, c, data)
			compareDecode[any](t, c, data)
			compareDecode[int](t, c, data)
		}
	})
}

func compareDecode[T any](t *testing.T, c JSON, data []byte) {
	t.Helper()
	var got, want T
	before := bytes.Clone(data)
	gotErr, wantErr := c.Decode(data, &got), c.decodeAlone(data, &want)
	if !reflect.DeepEqual(gotErr, wantErr) {
		t.Fatalf("%q: got error %#v, want %#v", data, gotErr, wantErr)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%q: got %+v, want %+v", data, got, want)
	}
	if !bytes.Equal(before, data) {
		t.Fatalf("%q was changed to %q", before, data)
	}
}

// TestJSONValuesAreTheirOwn would see what is decoded change when the next job
// uses the same buffer.
func TestJSONValuesAreTheirOwn(t *testing.T) {
	var decoded []mixed
	texts := []string{"first", "other", strings.Repeat("large", 20_000), "third"}
	for _, s := range texts {
		var v mixed
		if err := (JSON{}).Decode([]byte(`{"Text":"`+s+`","Raw":"`+s+`","Any":"`+s+`"}`), &v); err != nil {
			t.Fatal(err)
		}
		decoded = append(decoded, v)
	}
	for i, s := range texts {
		if v := decoded[i]; v.Text != s || string(v.Raw) != `"`+s+`"` || v.Any != s {
			t.Errorf("decoded %.20q became %.200v", s, v)
		}
	}
}

func TestJSONConcurrently(t *testing.T) {
	bad := []byte(`{"Text":`)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for i := range 200 {
				data, err := JSON{}.Encode(mixed{Int: int64(n*1000 + i), Text: strings.Repeat("x", i*i)})
				if err != nil {
					t.Error(err)
				}
				var v mixed
				if err := (JSON{}).Decode(data, &v); err != nil || v.Int != int64(n*1000+i) || len(v.Text) != i*i {
					t.Errorf("got %d, %d bytes, %v", v.Int, len(v.Text), err)
				}
				if err := (JSON{}).Decode(bad, &v); err == nil {
					t.Error("half a value was decoded")
				}
			}
		})
	}
	all.Wait()
}

// TestJSONPanics: a decoder that a panic left in the middle is not used again.
func TestJSONPanics(t *testing.T) {
	for range 3 {
		func() {
			defer func() { recover() }()
			JSON{}.Decode([]byte(`{"A":{}}`), &struct{ A panics }{})
		}()
		var v map[string]int
		if err := (JSON{}).Decode([]byte(`{"a":1}`), &v); err != nil || v["a"] != 1 {
			t.Fatalf("got %v, %v", v, err)
		}
	}
}

type panics struct{}

func (*panics) UnmarshalJSON([]byte) error { panic(errors.New("ouch")) }

func BenchmarkJSON(b *testing.B) {
	for _, size := range []struct {
		name string
		text int
	}{{"100B", 40}, {"10KB", 9900}} {
		v := struct {
			ID      int64
			Name    string
			Tags    []string
			Address string
		}{7, "Ada Lovelace", []string{"a", "b"}, strings.Repeat("x", size.text)}
		data, err := JSON{}.Encode(v)
		if err != nil {
			b.Fatal(err)
		}
		run := func(name string, f func() error) {
			b.Run(name+"/"+size.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		run("decode", func() error { w := v; return JSON{}.Decode(data, &w) })
		run("decodeAlone", func() error { w := v; return JSON{}.decodeAlone(data, &w) })
		run("unmarshal", func() error { w := v; return json.Unmarshal(data, &w) })
		run("encode", func() error { _, err := JSON{}.Encode(v); return err })
	}
}
