package task_test

import (
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
