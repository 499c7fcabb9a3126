// Package workertest tests a pool on any storage that tells of events.
package workertest

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/storagetest"
	"github.com/pawlq/pawl/worker"
)

// patience is how long a test waits for what should come at once.
const patience = 20 * time.Second

// Soon tests that an idle pool starts a job whatever made it ready. The pool
// polls once an hour, so that only a wake-up can explain it.
func Soon(t *testing.T, h storagetest.Harness) {
	cases := map[string]func(*fixture){
		"enqueue": func(f *fixture) { f.start(nil).enqueue("job", 0) },
		"delay":   func(f *fixture) { f.start(nil).enqueue("job", 100*time.Millisecond) },
		"run now": func(f *fixture) {
			id := f.start(nil).enqueue("job", time.Hour)
			f.must(f.q.RunNow(f.t.Context(), "", id))
		},
		"kick": func(f *fixture) {
			id := f.enqueue("job", 0)
			f.must(f.q.Cancel(f.t.Context(), "", id))
			f.start(nil).must(f.q.Kick(f.t.Context(), "", id))
		},
		"resume": func(f *fixture) {
			f.start(nil).must(f.q.Pause(f.t.Context(), pawl.DefaultQueue))
			f.enqueue("job", 0)
			f.must(f.q.Resume(f.t.Context(), pawl.DefaultQueue))
		},
		"release": func(f *fixture) {
			j := f.claim(time.Minute)
			f.start(nil).must(f.q.Release(f.t.Context(), j, nil))
		},
		"nack": func(f *fixture) {
			j := f.claim(time.Minute)
			f.start(nil).must(f.q.Nack(f.t.Context(), j, pawl.RetryAfter(50*time.Millisecond, errors.New("failed"))))
		},
		"rescue": func(f *fixture) {
			f.claim(pawl.MinLease)
			f.start(&worker.Options{SweepEvery: 20 * time.Millisecond})
		},
		"priority": (*fixture).priority,
	}
	if h.Begin != nil {
		cases["late commit"] = (*fixture).lateCommit
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, h)
			run(f)
			f.await("job")
		})
	}
}

// A fixture is a pool that says which jobs it runs.
type fixture struct {
	t    *testing.T
	h    storagetest.Harness
	s    pawl.Storage
	q    *pawl.Queue
	runs chan string
	ran  map[string]bool
	hold chan struct{} // "slow" ends with it
}

func newFixture(t *testing.T, h storagetest.Harness) *fixture {
	s := h.Open(t, time.Now)
	q := pawl.New(s, &pawl.Options{Logger: slog.New(slog.DiscardHandler)})
	return &fixture{t: t, h: h, s: s, q: q, runs: make(chan string, 100), ran: make(map[string]bool), hold: make(chan struct{})}
}

// start starts a pool of one slot and waits until it has run a job.
func (f *fixture) start(o *worker.Options) *fixture {
	f.t.Helper()
	if o == nil {
		o = &worker.Options{SweepEvery: time.Hour}
	}
	o.Poll, o.Concurrency, o.Prefetch = time.Hour, 1, worker.NoPrefetch
	p := worker.New(f.q, worker.Func(f.run), o)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(context.Background()) }()
	f.t.Cleanup(func() {
		if err := errors.Join(p.Stop(context.Background()), <-ended); err != nil {
			f.t.Error(err)
		}
	})
	f.enqueue("first", 0)
	f.await("first")
	return f
}

func (f *fixture) run(ctx context.Context, j *pawl.Job) error {
	f.runs <- string(j.Payload)
	if string(j.Payload) == "slow" {
		select {
		case <-f.hold:
		case <-ctx.Done():
		}
	}
	return nil
}

// await waits until the job has run.
func (f *fixture) await(want string) {
	f.t.Helper()
	for !f.ran[want] {
		select {
		case got := <-f.runs:
			f.ran[got] = true
			if got == "other" {
				f.t.Fatalf("%s ran before %s", got, want)
			}
		case <-time.After(patience):
			f.t.Fatalf("%s has not run", want)
		}
	}
}

func (f *fixture) enqueue(payload string, delay time.Duration) pawl.ID {
	f.t.Helper()
	r, err := f.q.Enqueue(f.t.Context(), &pawl.Request{Kind: "k", Payload: []byte(payload), Delay: delay})
	f.must(err)
	return r.ID
}

// claim claims the job before the pool can.
func (f *fixture) claim(lease time.Duration) *pawl.Job {
	f.t.Helper()
	f.enqueue("job", 0)
	c, err := f.q.ClaimBatch(f.t.Context(), pawl.ClaimSpec{
		Queues: []pawl.QueueAsk{{Queue: pawl.DefaultQueue, Max: 1}}, Max: 1, Lease: lease, Worker: "other",
	})
	f.must(err)
	if len(c.Jobs) != 1 {
		f.t.Fatalf("claimed %d jobs", len(c.Jobs))
	}
	return c.Jobs[0]
}

// priority makes one of two waiting jobs more urgent.
func (f *fixture) priority() {
	f.start(nil).enqueue("slow", 0)
	f.await("slow")
	f.enqueue("other", 0)
	id, urgent := f.enqueue("job", 0), -1
	f.must(f.q.Edit(f.t.Context(), "", id, pawl.EditFields{Priority: &urgent}))
	close(f.hold)
}

// lateCommit commits a job after a later one has run.
func (f *fixture) lateCommit() {
	f.start(nil)
	w, commit, _ := f.h.Begin(f.t, f.s)
	_, err := f.q.WithTx(w).Enqueue(f.t.Context(), &pawl.Request{Kind: "k", Payload: []byte("job")})
	f.must(err)
	if !f.h.OneWriter {
		f.enqueue("later", 0)
		f.await("later")
	}
	f.must(commit())
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}
