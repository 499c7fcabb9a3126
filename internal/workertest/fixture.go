package workertest

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/storagetest"
	"github.com/pawlq/pawl/worker"
)

const (
	// patience is how long a test waits for what should come at once.
	patience = time.Minute
	// often is how often pools do what nothing tells them to do.
	often = 20 * time.Millisecond
)

// A fixture is a fresh storage and pools on it, whose runs a test can follow
// and whose calls it can disturb.
type fixture struct {
	t     *testing.T
	h     storagetest.Harness
	s     pawl.Storage
	q     *pawl.Queue // of the test, undisturbed
	pq    *pawl.Queue // of pools
	pools []*pool
	runs  chan string    // payloads of runs that begin
	ran   map[string]int // those received
	dead  chan pawl.ID   // jobs that OnBury told of
	hold  chan struct{}  // "slow" runs end with it

	mu   sync.Mutex
	plan func(storagetest.Call) storagetest.Fault
}

type pool struct {
	*worker.Pool
	ended chan error
}

func newFixture(t *testing.T, h storagetest.Harness, form func(pawl.Storage) pawl.Storage) *fixture {
	f := &fixture{
		t: t, h: h, s: h.Open(t, time.Now), ran: make(map[string]int),
		runs: make(chan string, 100_000), dead: make(chan pawl.ID, 100), hold: make(chan struct{}),
	}
	o := &pawl.Options{Logger: slog.New(slog.DiscardHandler), Backoff: pawl.Constant(time.Millisecond)}
	f.q = pawl.New(f.s, o)
	f.pq = pawl.New(storagetest.Wrap(form(f.s), f.fault), o)
	t.Cleanup(f.stop)
	return f
}

// disturb lets plan, or nothing if nil, say what happens to calls of the pools.
func (f *fixture) disturb(plan func(storagetest.Call) storagetest.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = plan
}

func (f *fixture) fault(c storagetest.Call) storagetest.Fault {
	f.mu.Lock()
	plan := f.plan
	f.mu.Unlock()
	if plan == nil {
		return storagetest.Fault{}
	}
	return plan(c)
}

// start starts a pool of the handler, which by default polls, sweeps and
// extends often.
func (f *fixture) start(run worker.RunFunc, o worker.Options) *pool {
	return f.startOn(f.pq, run, o)
}

func (f *fixture) startOn(q *pawl.Queue, run worker.RunFunc, o worker.Options) *pool {
	o.Poll = cmp.Or(o.Poll, often)
	o.SweepEvery = cmp.Or(o.SweepEvery, often)
	o.Heartbeat = cmp.Or(o.Heartbeat, often)
	k := pawl.Kind{Name: "k", OnBury: func(_ context.Context, j *pawl.Job, _ error) { f.dead <- j.ID }}
	k.Run = func(ctx context.Context, j *pawl.Job) ([]byte, error) {
		f.runs <- string(j.Payload)
		return run(ctx, j)
	}
	p := &pool{worker.New(q, kind(k), &o), make(chan error, 1)}
	f.pools = append(f.pools, p)
	go func() { p.ended <- p.Run(context.Background()) }()
	return p
}

// kind is a handler of one kind.
type kind pawl.Kind

func (k kind) Kinds() []pawl.Kind { return []pawl.Kind{pawl.Kind(k)} }

// stop stops the pools and checks that they leave nothing.
func (f *fixture) stop() {
	f.t.Helper()
	for _, p := range f.pools {
		if err := errors.Join(p.Stop(context.Background()), <-p.ended); err != nil {
			f.t.Error(err)
		}
	}
	f.pools = nil
	for len(f.runs) > 0 {
		f.ran[<-f.runs]++
	}
}

// beginStop asks p to stop and does not wait for it.
func (f *fixture) beginStop(p *pool) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.Stop(ctx); !errors.Is(err, context.Canceled) {
		f.t.Errorf("Stop: %v", err)
	}
	if h := p.Health(); h.Ready || h.Reason != "stopping" {
		f.t.Errorf("health %+v", h)
	}
}

// await waits until n runs of the job have begun.
func (f *fixture) await(payload string, n int) {
	f.t.Helper()
	for f.ran[payload] < n {
		f.ran[receive(f, f.runs, "run of "+payload)]++
	}
}

func receive[T any](f *fixture, from <-chan T, what string) (v T) {
	f.t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		f.t.Fatalf("no %s", what)
	}
	return v
}

func (f *fixture) enqueue(payload string) pawl.ID {
	return f.add(pawl.Request{Payload: []byte(payload)})
}

func (f *fixture) add(r pawl.Request) pawl.ID {
	f.t.Helper()
	r.Kind = cmp.Or(r.Kind, "k")
	receipt, err := f.q.Enqueue(f.t.Context(), &r)
	f.must(err)
	return receipt.ID
}

// claim enqueues a job and claims it, as a worker that is no pool.
func (f *fixture) claim(r pawl.Request, lease time.Duration) *pawl.Job {
	f.t.Helper()
	f.add(r)
	c, err := f.q.ClaimBatch(f.t.Context(), pawl.ClaimSpec{
		Queues: []pawl.QueueAsk{{Queue: pawl.DefaultQueue, Max: 1}}, Max: 1, Lease: lease, Worker: "other",
	})
	f.must(err)
	if len(c.Jobs) != 1 {
		f.t.Fatalf("claimed %d jobs", len(c.Jobs))
	}
	return c.Jobs[0]
}

// want checks the state and reason of a job.
func (f *fixture) want(id pawl.ID, state pawl.State, reason pawl.Reason) *pawl.Job {
	f.t.Helper()
	j, err := f.q.Get(f.t.Context(), "", id)
	f.must(err)
	if j.State != state || j.Reason != reason {
		f.t.Errorf("job is %v (%s), want %v (%s)", j.State, j.Reason, state, reason)
	}
	return j
}

// wantOnce checks that n jobs ran, each once, and have completed.
func (f *fixture) wantOnce(n int, stats ...worker.Stats) {
	f.t.Helper()
	if len(f.ran) != n {
		f.t.Errorf("%d jobs ran, want %d", len(f.ran), n)
	}
	for payload, runs := range f.ran {
		if runs != 1 {
			f.t.Errorf("%q ran %d times", payload, runs)
		}
	}
	completed := int64(0)
	for _, s := range stats {
		completed += s.Completed
		if s.Lost+s.Failed+s.Rescued+s.RescueBuried > 0 {
			f.t.Errorf("stats %+v", s)
		}
	}
	counts, err := f.q.Stats(f.t.Context(), pawl.DefaultQueue)
	f.must(err)
	if completed != int64(n) || counts[0].Completed != int64(n) {
		f.t.Errorf("pools completed %d, want %d; counts %+v", completed, n, counts[0])
	}
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// run lets "slow" runs wait, and all succeed unless their context ended.
func (f *fixture) run(ctx context.Context, j *pawl.Job) ([]byte, error) {
	if string(j.Payload) != "slow" {
		return nil, ctx.Err()
	}
	select {
	case <-f.hold:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
