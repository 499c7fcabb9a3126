package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pawlq/pawl/torture/check"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/wire"
)

// An injector makes the faults of a schedule.
type injector struct {
	o      *options
	place  *place
	crew   *crew
	direct *store
	log    *history.Writer
	cutter *cutter
	waker  *waker
	wg     sync.WaitGroup // of what ends later

	mu   sync.Mutex
	hit  [numFaultKinds]int
	done []string // faults, for who wants to know
}

// settleTime is how long clients may take to find a server again.
const settleTime = 2 * time.Second

// can reports whether a fault can be made at all.
func (x *injector) can(k faultKind) bool {
	if x.o.only != "" && !slices.Contains(strings.Split(x.o.only, ","), k.String()) {
		return false
	}
	switch k {
	case killWorker, killProducer, pauseWorker, stopWorker:
		return x.crew != nil
	case killServer:
		return x.place.kill != nil
	case haltServer:
		return x.place.halt != nil
	case endBackends:
		return x.place.backends != nil
	case cutAll, holdAll, slowAll, cutCommits, loseWakes, doubleWakes:
		return x.place.proxy != nil
	case flushScripts:
		return x.place.flush != nil
	case fillDisk:
		return x.place.disk != nil
	default:
		return false
	}
}

// run makes faults until ctx ends, and leaves none. Its error is that of a server
// that does not start again.
func (x *injector) run(ctx context.Context) error {
	s := newSchedule(x.o.seed, x.o.every, x.can)
	if len(s.kinds) == 0 {
		return nil
	}
	began := time.Now()
	if x.place.proxy != nil && x.can(cutCommits) {
		x.cutter = newCutter(x.o.seed, x.o.cutEvery)
		x.place.proxy.Decide(func() wire.Cut {
			cut := x.cutter.decide()
			if cut != 0 {
				x.witness(check.Cut, 0, history.Now())
			}
			return cut
		})
		defer x.place.proxy.Decide(nil)
	}
	if x.place.proxy != nil && x.can(loseWakes) {
		x.waker = &waker{rnd: rand.New(rand.NewPCG(x.o.seed, 2))}
		x.place.proxy.Wakes(x.waker.decide)
		defer x.place.proxy.Wakes(nil)
	}
	defer x.wg.Wait()
	for n := 0; x.o.most == 0 || n < x.o.most; n++ {
		f := s.next()
		if sleep(ctx, f.after) != nil {
			return nil
		}
		ok, err := x.make(f)
		if err != nil {
			return err
		}
		x.note(f, ok, time.Since(began))
	}
	return nil
}

func (x *injector) note(f fault, ok bool, at time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if ok {
		x.hit[f.kind]++
	}
	x.done = append(x.done, fmt.Sprintf("%8.3fs %v, hit %v", at.Seconds(), f, ok))
}

// make makes one fault and reports whether it hit.
func (x *injector) make(f fault) (ok bool, err error) {
	switch f.kind {
	case killWorker:
		_, _, ok = x.crew.signal("worker", f.who, syscall.SIGKILL)
	case killProducer:
		_, _, ok = x.crew.signal("producer", f.who, syscall.SIGKILL)
	case stopWorker:
		_, _, ok = x.crew.signal("worker", f.who, syscall.SIGTERM)
	case pauseWorker:
		ok = x.pause(f)
	case killServer:
		return true, x.restart(f, func() error { x.place.kill(); return nil })
	case haltServer:
		return true, x.restart(f, x.place.halt)
	case endBackends:
		ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
		defer cancel()
		began := history.Now()
		n, err := x.place.backends(ctx, x.direct)
		x.witness(check.Cut, 0, began)
		return n > 0 && err == nil, nil // the server may just be coming up
	case cutAll:
		ok = x.place.proxy.Cut() > 0
		x.witness(check.Cut, 0, history.Now())
	case holdAll:
		x.down()
		x.place.proxy.Hold()
		time.Sleep(x.spell(f, 1.2, 0.6))
		x.place.proxy.Release()
		x.up()
		ok = true
	case slowAll:
		x.place.proxy.Slow(time.Duration(2+18*f.spell) * time.Millisecond)
		began := history.Now()
		x.later(x.spell(f, 1, 1), func() { x.place.proxy.Slow(0); x.witness(check.Away, 0, began) })
		ok = true
	case fillDisk:
		return x.fill(f)
	case flushScripts:
		ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
		defer cancel()
		ok = x.place.flush(ctx) == nil
	}
	return ok, nil
}

// spell is a time in leases.
func (x *injector) spell(f fault, least, more float64) time.Duration {
	return time.Duration((least + more*f.spell) * float64(x.o.lease))
}

func (x *injector) later(d time.Duration, f func()) {
	x.wg.Go(func() {
		time.Sleep(d)
		f()
	})
}

func (x *injector) pause(f fault) bool {
	m, number, ok := x.crew.signal("worker", f.who, syscall.SIGSTOP)
	if ok {
		began := history.Now()
		x.later(x.spell(f, 1.3, 1), func() { x.crew.resume(m); x.witness(check.Paused, number, began) })
	}
	return ok
}

func (x *injector) restart(f fault, end func() error) error {
	x.down()
	defer x.up()
	if err := end(); err != nil {
		return err
	}
	time.Sleep(time.Duration(f.spell * float64(500*time.Millisecond)))
	return x.place.start()
}

// witness writes down a fault that is over.
func (x *injector) witness(cause check.Cause, process, began int64) {
	x.log.Write(history.Event{At: began, Kind: history.Fault, A: int64(cause), B: process, Fence: history.Wall()})
}

func (x *injector) down() {
	x.log.Write(history.Event{Kind: history.Down, Fence: history.Wall()})
}

func (x *injector) up() {
	x.log.Write(history.Event{Kind: history.Up, Fence: history.Wall() + settleTime.Microseconds()})
}

// counts are how many faults of each kind hit.
func (x *injector) counts() [numFaultKinds]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	hit := x.hit
	if x.cutter != nil {
		for _, n := range x.cutter.counts() {
			hit[cutCommits] += n
		}
	}
	if x.waker != nil {
		hit[loseWakes], hit[doubleWakes] = x.waker.counts()
	}
	return hit
}

// A cutter says which commits are cut, and in which way.
type cutter struct {
	mu    sync.Mutex
	rnd   *rand.Rand
	every time.Duration
	next  time.Time
	n     [4]int // by way
}

func newCutter(seed uint64, every time.Duration) *cutter {
	return &cutter{rnd: rand.New(rand.NewPCG(seed, 1)), every: every, next: time.Now().Add(every)}
}

func (c *cutter) decide() wire.Cut {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.Before(c.next) {
		return 0
	}
	c.next = now.Add(min(time.Duration(c.rnd.ExpFloat64()*float64(c.every)), 5*c.every))
	cut := wire.Before + wire.Cut(c.rnd.IntN(len(wire.Cuts())))
	c.n[cut]++
	return cut
}

func (c *cutter) counts() [4]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// A waker says which wake-ups are lost and which come twice: each eighth of them.
type waker struct {
	mu            sync.Mutex
	rnd           *rand.Rand
	lost, doubled int
}

func (w *waker) decide() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch w.rnd.IntN(8) {
	case 0:
		w.lost++
		return 0
	case 1:
		w.doubled++
		return 2
	default:
		return 1
	}
}

func (w *waker) counts() (lost, doubled int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost, w.doubled
}
