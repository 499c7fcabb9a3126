package worker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/worker"
)

// bubble runs f in a bubble of its own time. A goroutine that f leaves behind
// fails the test.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	defer goleak.VerifyNone(t)
	synctest.Test(t, f)
}

// A fixture is a queue on memory, whose calls a test can disturb, and a pool.
type fixture struct {
	t       *testing.T
	storage *disturbed
	q       *pawl.Queue
	p       *worker.Pool
	log     *logs
	events  worker.Events
	told    *worker.Subscription // to all of them
	result  chan error
}

// start starts a pool of h on a storage of that sort.
func start(t *testing.T, sort func(*disturbed) pawl.Storage, h worker.Handlers, o *worker.Options) *fixture {
	t.Helper()
	f := prepare(t, sort)
	f.start(h, o)
	return f
}

func prepare(t *testing.T, sort func(*disturbed) pawl.Storage) *fixture {
	f := &fixture{t: t, storage: &disturbed{Storage: memory.New(nil)}, log: &logs{}, result: make(chan error, 1)}
	f.q = pawl.New(sort(f.storage), &pawl.Options{
		Logger:   slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Backoff:  pawl.Constant(time.Hour),
		WorkerID: "tester",
	})
	return f
}

func (f *fixture) start(h worker.Handlers, o *worker.Options) {
	var d worker.Options
	if o != nil {
		d = *o
	}
	d.Events = &f.events
	f.told = f.events.Subscribe(&worker.SubscribeOptions{Buffer: 100})
	f.p = worker.New(f.q, h, &d)
	go func() { f.result <- f.p.Run(f.t.Context()) }()
	synctest.Wait()
}

// stop stops the pool and checks that nothing was left.
func (f *fixture) stop() {
	f.t.Helper()
	if err := f.p.Stop(context.Background()); err != nil {
		f.t.Errorf("Stop: %v", err)
	}
	if err := <-f.result; err != nil {
		f.t.Errorf("Run: %v", err)
	}
	if f.told != nil {
		f.wantTold()
	}
}

// wantTold checks that there were as many events as there are numbers, be they
// read or dropped.
func (f *fixture) wantTold() {
	f.t.Helper()
	n := f.told.Dropped()
	for _, e := range f.drain() {
		n[e.Type]++
	}
	f.told = nil
	s := f.p.Stats()
	ends := s.Completed + s.Failed + n[worker.EventReleased] + n[worker.EventCanceled] + n[worker.EventLost]
	for what, counts := range map[string][2]int64{
		"started":              {s.Started, n[worker.EventStarted]},
		"completed":            {s.Completed, n[worker.EventCompleted]},
		"failed":               {s.Failed, n[worker.EventFailed]},
		"buried":               {s.Buried + s.RescueBuried, n[worker.EventBuried]},
		"rescued":              {s.Rescued, n[worker.EventRescued]},
		"lost and canceled":    {s.Lost, n[worker.EventLost] + n[worker.EventCanceled]},
		"started that end":     {min(s.Started, ends), s.Started},
		"released at least":    {max(s.Snoozed, n[worker.EventReleased]), n[worker.EventReleased]},
		"released at the most": {min(s.Snoozed+s.Released, n[worker.EventReleased]), n[worker.EventReleased]},
	} {
		if counts[0] != counts[1] {
			f.t.Errorf("%s: %d counted, %d told; events %v, stats %+v", what, counts[0], counts[1], n, s)
		}
	}
}

// drain closes the subscription and reads the events that wait.
func (f *fixture) drain() []worker.Event {
	f.told.Close()
	return waiting(f.told)
}

// waiting reads the events that wait in a subscription.
func waiting(sub *worker.Subscription) (all []worker.Event) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		e, err := sub.Next(over)
		if err != nil {
			return all
		}
		all = append(all, e)
	}
}

func (f *fixture) enqueue(r *pawl.Request) pawl.ID {
	f.t.Helper()
	if r.Kind == "" {
		r.Kind = "k"
	}
	receipt, err := f.q.Enqueue(context.Background(), r)
	if err != nil {
		f.t.Fatal(err)
	}
	return receipt.ID
}

func (f *fixture) get(id pawl.ID) *pawl.Job {
	f.t.Helper()
	j, err := f.q.Get(context.Background(), "", id)
	if err != nil {
		f.t.Fatal(err)
	}
	return j
}

// wantState checks the state and reason of a job.
func (f *fixture) wantState(id pawl.ID, state pawl.State, reason pawl.Reason) *pawl.Job {
	f.t.Helper()
	j := f.get(id)
	if j.State != state || j.Reason != reason {
		f.t.Errorf("job is %v (%s), want %v (%s)", j.State, j.Reason, state, reason)
	}
	return j
}

// rest lets d pass and everything come to rest.
func rest(d time.Duration) {
	time.Sleep(d) // of the bubble's time
	synctest.Wait()
}

// returning is a handler that returns err.
func returning(err error) worker.Func {
	return func(context.Context, *pawl.Job) error { return err }
}

// kinds are handlers.
type kinds []pawl.Kind

func (k kinds) Kinds() []pawl.Kind { return k }

// logs collects what is logged.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// A disturbed storage lets a test act around the calls of a pool. What is
// returned by around is the call's error.
type disturbed struct {
	pawl.Storage
	mu     sync.Mutex
	around func(ctx context.Context, op string, call func() error) error
}

var errStorage = errors.New("storage is out of order")

func (d *disturbed) disturb(around func(ctx context.Context, op string, call func() error) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.around = around
}

// fail lets all calls of the operations fail; before their effect, or after.
func (d *disturbed) fail(after bool, ops ...string) {
	d.disturb(func(_ context.Context, op string, call func() error) error {
		for _, o := range ops {
			if o != op {
				continue
			}
			if after {
				call()
			}
			return errStorage
		}
		return call()
	})
}

func (d *disturbed) heal() { d.disturb(nil) }

func (d *disturbed) do(ctx context.Context, op string, call func() error) error {
	d.mu.Lock()
	around := d.around
	d.mu.Unlock()
	if around == nil {
		return call()
	}
	return around(ctx, op, call)
}

func (d *disturbed) Claim(ctx context.Context, spec pawl.ClaimSpec) (c pawl.Claimed, err error) {
	err = d.do(ctx, "claim", func() (err error) { c, err = d.Storage.Claim(ctx, spec); return err })
	if err != nil {
		return pawl.Claimed{}, err
	}
	return c, nil
}

type outcomesKey struct{}

// outcomesOf returns the outcomes of the settle that is disturbed.
func outcomesOf(ctx context.Context) []pawl.Outcome {
	outcomes, _ := ctx.Value(outcomesKey{}).([]pawl.Outcome)
	return outcomes
}

func (d *disturbed) Settle(ctx context.Context, outcomes []pawl.Outcome) (lost []pawl.Ref, err error) {
	seen := context.WithValue(ctx, outcomesKey{}, outcomes)
	err = d.do(seen, "settle", func() (err error) { lost, err = d.Storage.Settle(ctx, outcomes); return err })
	return lost, err
}

type renewalsKey struct{}

// renewalsOf returns the renewals of the extend that is disturbed.
func renewalsOf(ctx context.Context) []pawl.Renewal {
	renewals, _ := ctx.Value(renewalsKey{}).([]pawl.Renewal)
	return renewals
}

func (d *disturbed) Extend(ctx context.Context, renewals []pawl.Renewal) (lost []pawl.Ref, err error) {
	seen := context.WithValue(ctx, renewalsKey{}, renewals)
	err = d.do(seen, "extend", func() (err error) { lost, err = d.Storage.Extend(ctx, renewals); return err })
	return lost, err
}

func (d *disturbed) Sweep(ctx context.Context, spec pawl.SweepSpec) (s pawl.Swept, err error) {
	err = d.do(ctx, "sweep", func() (err error) { s, err = d.Storage.Sweep(ctx, spec); return err })
	return s, err
}

func (d *disturbed) Get(ctx context.Context, queue string, ids ...pawl.ID) (jobs []*pawl.Job, err error) {
	err = d.do(ctx, "get", func() (err error) { jobs, err = d.Storage.Get(ctx, queue, ids...); return err })
	return jobs, err
}

// bare has neither events nor cycles.
func bare(d *disturbed) pawl.Storage { return d }

// watched has events.
func watched(d *disturbed) pawl.Storage { return &watchedStorage{d} }

type watchedStorage struct{ *disturbed }

func (w *watchedStorage) Watch(ctx context.Context, f func(pawl.Event)) error {
	return w.do(ctx, "watch", func() error { return w.Storage.(pawl.Watcher).Watch(ctx, f) })
}

// cycling has events and cycles.
func cycling(d *disturbed) pawl.Storage { return &cyclingStorage{watchedStorage{d}} }

type cyclingStorage struct{ watchedStorage }

func (s *cyclingStorage) Cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) (lost []pawl.Ref, c pawl.Claimed, err error) {
	seen := context.WithValue(ctx, outcomesKey{}, outcomes)
	err = s.do(seen, "cycle", func() (err error) {
		lost, c, err = s.Storage.(pawl.Cycler).Cycle(ctx, outcomes, spec)
		return err
	})
	if err != nil {
		c = pawl.Claimed{}
	}
	return lost, c, err
}

var sorts = []struct {
	name string
	make func(*disturbed) pawl.Storage
}{{"bare", bare}, {"watched", watched}, {"cycling", cycling}}

// counting is a handler that counts its runs by job.
type counting struct {
	mu   sync.Mutex
	runs map[pawl.ID]int
}

func (c *counting) Kinds() []pawl.Kind {
	return worker.Func(func(_ context.Context, j *pawl.Job) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.runs == nil {
			c.runs = make(map[pawl.ID]int)
		}
		c.runs[j.ID]++
		return nil
	}).Kinds()
}

func (c *counting) want(t *testing.T, n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.runs) != n {
		t.Errorf("%d jobs ran, want %d", len(c.runs), n)
	}
	for id, runs := range c.runs {
		if runs != 1 {
			t.Errorf("job %v ran %d times", id, runs)
		}
	}
}
