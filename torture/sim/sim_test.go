package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/torture/results"
	"github.com/pawlq/pawl/worker"
)

var (
	seed    = flag.Uint64("sim.seed", 1, "what the simulation is drawn from")
	perHour = flag.Int("sim.jobs", 20_000, "jobs in an hour of virtual time")
	hours   = flag.Int("sim.hours", 1, "hours of virtual time")
	page    = flag.String("sim.results", "", "add the outcome to this `file`")
)

const (
	processes = 5
	slots     = 10
	lease     = 10 * time.Second
	sweep     = 2 * time.Second
	batch     = 20
)

// TestHours simulates hours, each from a seed of its own.
func TestHours(t *testing.T) {
	var total ledger
	kills, pauses, jobs := 0, 0, 0
	for hour := range *hours {
		w := &world{t: t, rnd: rand.New(rand.NewPCG(*seed+uint64(hour), 0)), seed: *seed + uint64(hour)}
		synctest.Test(t, func(t *testing.T) { w.run(t.Context()) })
		for _, p := range w.ledger.problems {
			t.Error(p)
		}
		if t.Failed() {
			t.Fatalf("to see this hour again: go test ./sim -run TestHours -args -sim.seed=%d -sim.jobs=%d", w.seed, *perHour)
		}
		total.runs += w.ledger.runs
		total.rescues += w.ledger.rescues
		total.extra += w.ledger.extra
		total.lost += w.ledger.lost
		kills += w.kills
		pauses += w.pauses
		jobs += len(w.ledger.jobs)
	}
	t.Logf("%d h: %d jobs, %d runs, %d of them beyond the first, %d kills, %d rescues, %d outcomes refused",
		*hours, jobs, total.runs, total.extra, kills, total.rescues, total.lost)
	if kills < *hours*100 || total.rescues < kills/4 || total.lost == 0 {
		t.Fatalf("vacuous: %d kills, %d rescues and %d refused outcomes show nothing", kills, total.rescues, total.lost)
	}
	if *page == "" {
		return
	}
	line := &results.Total{Storage: "simulation", Seeds: []uint64{*seed}, Revisions: []string{results.Revision()}, Faults: time.Duration(*hours) * time.Hour, Counts: results.Counts{
		results.Jobs: int64(jobs), results.Runs: int64(total.runs), results.Kills: int64(kills), results.Pauses: int64(pauses),
		results.Stale: int64(total.lost)}}
	if err := results.Put(*page, line); err != nil {
		t.Error(err)
	}
}

// A world is an hour.
type world struct {
	t      *testing.T
	seed   uint64
	clock  clock
	store  *memory.Store
	ledger *ledger
	crew   sync.WaitGroup
	kills  int
	pauses int

	mu  sync.Mutex
	rnd *rand.Rand
	on  [processes]*process
}

// A process is a pool and its host.
type process struct {
	host *host
	stop context.CancelFunc
	done chan struct{}
}

func (w *world) draw(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.IntN(n)
}

func (w *world) run(ctx context.Context) {
	w.store = memory.New(&memory.Options{Clock: w.clock.now})
	w.ledger = newLedger()
	for i := range w.on {
		w.on[i] = w.start(ctx, i)
	}
	var producing sync.WaitGroup
	enqueued := make(chan struct{})
	producing.Go(func() { w.produce(ctx); close(enqueued) })
	w.attack(ctx, enqueued)
	producing.Wait()
	w.drain(ctx)
	for _, p := range w.on {
		p.stop()
		<-p.done
	}
	w.crew.Wait()
	w.judge(ctx)
	if err := w.store.Close(); err != nil {
		w.t.Error(err)
	}
}

func options(name string) *pawl.Options {
	return &pawl.Options{WorkerID: name, Lease: lease, Logger: slog.New(slog.DiscardHandler)}
}

// start starts a process.
func (w *world) start(ctx context.Context, i int) *process {
	ctx, stop := context.WithCancel(ctx)
	p := &process{host: newHost(w.store, w.ledger), stop: stop, done: make(chan struct{})}
	q := pawl.New(p.host, options("p"+string(rune('a'+i))))
	pool := worker.New(q, worker.Func(func(ctx context.Context, j *pawl.Job) error { return w.handle(ctx, p, j) }),
		&worker.Options{Queues: []worker.Queue{{Name: pawl.DefaultQueue}}, Concurrency: slots, SweepEvery: sweep, StopTimeout: time.Second})
	w.crew.Go(func() {
		defer close(p.done)
		var left *worker.StopError
		if err := pool.Run(ctx); err != nil && !errors.As(err, &left) {
			w.t.Error(err)
		}
	})
	return p
}

var errFails = errors.New("fails")

func (w *world) handle(ctx context.Context, p *process, j *pawl.Job) error {
	if err := p.host.pass(); err != nil {
		return err
	}
	w.ledger.ran(j)
	d := time.Duration(binary.LittleEndian.Uint16(j.Payload)) * 10 * time.Microsecond
	if j.Kind == slowKind {
		d += lease * 3 / 2
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case j.Kind == badKind, j.Kind == failKind && j.Counts.Retries == 0:
		return errFails
	}
	return nil
}

// produce enqueues an hour's jobs.
func (w *world) produce(ctx context.Context) {
	q := pawl.New(w.store, options("producer"))
	gap := time.Hour / time.Duration(max(*perHour/batch, 1))
	for range *perHour / batch {
		time.Sleep(gap)
		reqs := make([]*pawl.Request, batch)
		for i := range reqs {
			reqs[i] = w.request()
		}
		w.ledger.add(reqs)
		if _, err := q.EnqueueMany(ctx, reqs); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *world) request() *pawl.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &pawl.Request{Kind: goodKind, Payload: binary.LittleEndian.AppendUint64(nil, w.rnd.Uint64())}
	binary.BigEndian.PutUint64(r.ID[:], w.rnd.Uint64())
	binary.BigEndian.PutUint64(r.ID[8:], w.rnd.Uint64())
	switch n := w.rnd.IntN(100); {
	case n < 2:
		r.Kind, r.MaxRescues = slowKind, 1000 // they meet many deaths
	case n < 7:
		r.Kind = failKind
	case n < 8:
		r.Kind, r.MaxAttempts = badKind, 2
	case n < 20:
		r.Delay = time.Duration(w.rnd.IntN(60_000)) * time.Millisecond
	}
	return r
}

// attack kills and pauses processes and sets the clock until done is closed.
func (w *world) attack(ctx context.Context, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(w.draw(10_000)) * time.Millisecond):
		}
		i := w.draw(processes)
		switch n := w.draw(20); {
		case n < 15:
			w.kills++
			w.on[i].host.kill()
			w.on[i].stop()
			w.on[i] = w.start(ctx, i)
		case n < 18:
			w.pauses++
			w.pause(w.on[i])
		case n == 18:
			w.clock.step(time.Duration(w.draw(20_000)) * time.Millisecond)
		default:
			w.clock.step(-time.Duration(w.draw(2_000)) * time.Millisecond)
		}
	}
}

// pause lets a process stand still for about a lease or two.
func (w *world) pause(p *process) {
	d := lease + time.Duration(w.draw(int(lease)))
	p.host.pause()
	time.Sleep(d)
	p.host.resume()
}

// drain waits until all jobs have ended. Those that fail wait for their next
// attempt some seconds.
func (w *world) drain(ctx context.Context) {
	for range 3600 {
		stats, err := w.store.Count(ctx, pawl.DefaultQueue)
		if err != nil {
			w.t.Error(err)
			return
		}
		if stats[0].Scheduled+stats[0].Ready+stats[0].Running == 0 {
			return
		}
		time.Sleep(time.Second)
	}
	w.t.Errorf("jobs have not ended in an hour after the last attack")
}

func (w *world) judge(ctx context.Context) {
	stored := make(map[pawl.ID]*pawl.Job)
	for j, err := range pawl.New(w.store, nil).Jobs(ctx, pawl.Filter{}) {
		if err != nil {
			w.t.Error(err)
			return
		}
		stored[j.ID] = j
	}
	w.ledger.close(stored)
}
