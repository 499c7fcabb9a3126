package workertest

import (
	"errors"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/storagetest"
	"github.com/pawlq/pawl/worker"
)

// soon tests that an idle pool starts a job whatever made it ready. The pool
// polls once an hour, so that only a wake-up can explain it.
func soon(t *testing.T, h storagetest.Harness) {
	cases := map[string]func(*fixture){
		"enqueue": func(f *fixture) { f.idle(time.Hour); f.enqueue("job") },
		"delay": func(f *fixture) {
			f.idle(time.Hour)
			f.add(pawl.Request{Payload: []byte("job"), Delay: 100 * time.Millisecond})
		},
		"run now": func(f *fixture) {
			f.idle(time.Hour)
			id := f.add(pawl.Request{Payload: []byte("job"), Delay: time.Hour})
			f.must(f.q.RunNow(f.t.Context(), "", id))
		},
		"kick": func(f *fixture) {
			id := f.enqueue("job")
			f.must(f.q.Cancel(f.t.Context(), "", id))
			f.idle(time.Hour)
			f.must(f.q.Kick(f.t.Context(), "", id))
		},
		"resume": func(f *fixture) {
			f.idle(time.Hour)
			f.must(f.q.Pause(f.t.Context(), pawl.DefaultQueue))
			f.enqueue("job")
			f.must(f.q.Resume(f.t.Context(), pawl.DefaultQueue))
		},
		"release": func(f *fixture) {
			j := f.claim(pawl.Request{Payload: []byte("job")}, time.Minute)
			f.idle(time.Hour)
			f.must(f.q.Release(f.t.Context(), j, nil))
		},
		"nack": func(f *fixture) {
			j := f.claim(pawl.Request{Payload: []byte("job")}, time.Minute)
			f.idle(time.Hour)
			f.must(f.q.Nack(f.t.Context(), j, pawl.RetryAfter(50*time.Millisecond, errors.New("failed"))))
		},
		"rescue": func(f *fixture) {
			f.claim(pawl.Request{Payload: []byte("job")}, pawl.MinLease)
			f.idle(often)
		},
		"priority": (*fixture).priority,
	}
	if h.Begin != nil {
		cases["late commit"] = (*fixture).lateCommit
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, h, func(s pawl.Storage) pawl.Storage { return s })
			run(f)
			f.await("job", 1)
		})
	}
}

// idle starts a pool of one slot, which does not poll, and waits until it has
// run a job.
func (f *fixture) idle(sweepEvery time.Duration) {
	f.t.Helper()
	f.start(f.run, worker.Options{
		Poll: time.Hour, SweepEvery: sweepEvery, Heartbeat: time.Hour, Concurrency: 1, Prefetch: worker.NoPrefetch,
	})
	f.enqueue("first")
	f.await("first", 1)
}

// priority makes one of two waiting jobs more urgent.
func (f *fixture) priority() {
	f.idle(time.Hour)
	f.enqueue("slow")
	f.await("slow", 1)
	f.enqueue("other")
	id, urgent := f.enqueue("job"), -1
	f.must(f.q.Edit(f.t.Context(), "", id, pawl.EditFields{Priority: &urgent}))
	close(f.hold)
	f.await("job", 1)
	if f.ran["other"] > 0 {
		f.t.Error("the other job ran before")
	}
}

// lateCommit commits a job after a later one has run.
func (f *fixture) lateCommit() {
	f.idle(time.Hour)
	w, commit, _ := f.h.Begin(f.t, f.s)
	_, err := f.q.WithTx(w).Enqueue(f.t.Context(), &pawl.Request{Kind: "k", Payload: []byte("job")})
	f.must(err)
	if !f.h.OneWriter {
		f.enqueue("later")
		f.await("later", 1)
	}
	f.must(commit())
}
