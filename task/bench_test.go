package task_test

import (
	"strings"
	"testing"

	"github.com/pawlq/pawl/task"
)

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if r := task.New(welcome{7}); r.Err != nil {
			b.Fatal(r.Err)
		}
	}
}

// BenchmarkRun is what a typed handler costs beside one of raw payloads.
func BenchmarkRun(b *testing.B) {
	m := task.NewMux()
	task.Register(m, nothing[welcome])
	run, job := m.Kinds()[0].Run, claimed(welcome{7})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := run(b.Context(), job); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWrapped is what codecs cost that wrap others, with 10 KB of text.
func BenchmarkWrapped(b *testing.B) {
	keys := keyring(b, newKey("k"))
	v := welcomeText{strings.Repeat("All work and no play. ", 450)}
	for name, c := range map[string]task.Codec{
		"json": task.JSON{}, "gzip": task.Gzip{}, "encrypted": task.Encrypted{Keys: keys}, "versioned": task.Versioned{},
	} {
		data, err := c.Encode(v)
		if err != nil {
			b.Fatal(err)
		}
		run := func(what string, f func() error) {
			b.Run(name+"/"+what, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		run("encode", func() error { _, err := c.Encode(v); return err })
		run("decode", func() error { var w welcomeText; return c.Decode(data, &w) })
	}
}

type welcomeText struct{ Text string }
