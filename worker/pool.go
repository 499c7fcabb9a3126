package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

// A Pool claims jobs and runs them. See the package comment for what it does
// with each. Make one with New; its methods are safe for concurrent use.
type Pool struct {
	q        *pawl.Queue
	opts     Options
	err      error // what is wrong with opts
	log      *slog.Logger
	kinds    map[string]*kind
	fallback *kind // of all other kinds, or nil
	groups   []*group
	byQueue  map[string]*group
	cycles   bool // the storage settles and claims in one round trip
	procs    int
	epoch    time.Time

	maxResult   int
	base        context.Context // what handlers' contexts derive from: values, no end
	breakClaims func()          // ends the fetcher's calls
	settleCtx   context.Context // of settles: ends when the pool gives up
	hookCtx     context.Context // of hooks: ends shortly before they are given up

	slots    sync.WaitGroup // slots that are not given up
	looks    sync.WaitGroup // at what became of transactions, by no slot
	finished chan struct{}  // closed when Run has returned

	choresDone chan struct{} // closed when the last chore has been done

	fetchWake, settleWake, beatWake, deadlineWake, choreWake chan struct{} // one pending wake-up each

	mu         sync.Mutex
	started    bool
	begun      bool       // its slots are there
	stopping   bool       // no new claims
	closing    bool       // slots end
	over       bool       // what is unsettled stays so
	quiet      *sync.Cond // broadcast while stopping when runs end
	stopCalled chan struct{}

	live         runList // all claims in hand, and abandoned runs
	done         fifo    // ended runs, to be settled
	again        []*run  // those that failed to settle, for later
	settleWant   int     // how many outcomes the settler wants to be woken for, or 0
	succeeded    int64   // settles that went well
	lingerUntil  instant
	settleOutage outage
	extendOutage outage
	suspects     map[string]bool    // queues whose claims could not be extended; the heartbeat's
	patience     time.Duration      // of calls that extend; the heartbeat's
	owed         int                // ended runs that are not settled, in done, again or a call
	owedBytes    int                // of them
	fetchIdle    bool               // the fetcher waits for something to want
	fetchHeld    bool               // it waits for settles
	fetchDone    bool               // it has ended
	watching     bool               // the storage tells of events
	answers      bool               // an event says that the storage answers again
	beatAt       instant            // when the heartbeat looks next
	expireAt     instant            // when the deadlines are looked at next
	replaced     int                // slots that stand in for stuck ones
	bad          map[string]instant // what fails, since when
	calls        map[*storageCall]bool
	chores       []chore // logs and hooks
	doing        chore   // the one that runs
	doingSince   instant // when it began
	choreBytes   int     // of the payloads of both
	behindSince  instant // when they became too many, or never
	choresOver   bool
	paused       map[string]bool // queues known to be
	strangers    map[string]bool // kinds that can't be run here, or what they lack, that were logged
	stats        Stats
	progress     instant
}

type kind struct {
	pawl.Kind
	backoff pawl.Backoff
	timeout time.Duration
	run     RunFunc
}

// New returns a pool that runs the jobs of q by h. It panics if h handles a
// kind twice or without a function; what is wrong with o is returned by Run.
func New(q *pawl.Queue, h Handlers, o *Options) *Pool {
	kinds := h.Kinds()
	p := &Pool{
		q:            q,
		opts:         o.withDefaults(q, kinds),
		byQueue:      make(map[string]*group),
		procs:        runtime.GOMAXPROCS(0),
		epoch:        time.Now(),
		base:         context.Background(),
		finished:     make(chan struct{}),
		stopCalled:   make(chan struct{}),
		choresDone:   make(chan struct{}),
		fetchWake:    make(chan struct{}, 1),
		settleWake:   make(chan struct{}, 1),
		beatWake:     make(chan struct{}, 1),
		deadlineWake: make(chan struct{}, 1),
		beatAt:       never,
		expireAt:     never,
		behindSince:  never,
		choreWake:    make(chan struct{}, 1),
		maxResult:    q.Options().MaxPayload,
		bad:          make(map[string]instant),
		calls:        make(map[*storageCall]bool),
		paused:       make(map[string]bool),
		strangers:    make(map[string]bool),
	}
	p.quiet = sync.NewCond(&p.mu)
	p.live.init()
	p.log = p.opts.Logger
	_, p.cycles = pawl.Find[pawl.Cycler](q.Storage())
	p.kinds, p.fallback = kindsOf(q, kinds, p.opts.Middleware)
	if len(kinds) == 0 {
		p.err = errNoHandlers
	} else if p.err = p.opts.validate(); p.err == nil {
		p.makeGroups()
	}
	return p
}

// kindsOf readies kinds to be run. The one without a name is the fallback.
func kindsOf(q *pawl.Queue, kinds []pawl.Kind, wrap []Middleware) (named map[string]*kind, fallback *kind) {
	named = make(map[string]*kind)
	base := q.Options()
	for _, k := range kinds {
		if k.Run == nil {
			panic(fmt.Sprintf("worker: kind %q has no function", k.Name))
		}
		if named[k.Name] != nil {
			panic(fmt.Sprintf("worker: kind %q is handled twice", k.Name))
		}
		ready := &kind{Kind: k, backoff: k.Backoff, timeout: cmp.Or(k.Timeout, base.Timeout), run: k.Run}
		if ready.backoff == nil {
			ready.backoff = base.Backoff
		}
		for _, m := range slices.Backward(wrap) {
			ready.run = m(ready.run)
		}
		named[k.Name] = ready
	}
	fallback = named[""]
	delete(named, "")
	return named, fallback
}

func (p *Pool) makeGroups() {
	if p.opts.Strict {
		p.addGroup(p.opts.Concurrency, p.opts.Queues...)
		return
	}
	if weighted := p.opts.weighted(); len(weighted) > 0 {
		p.addGroup(p.opts.Concurrency, weighted...).shareOut(weighted)
	}
	for _, q := range p.opts.Queues {
		if q.Weight == 0 {
			p.addGroup(q.Concurrency, q)
		}
	}
}

func (p *Pool) addGroup(slots int, queues ...Queue) *group {
	g := &group{limit: slots, slots: slots, fixed: p.opts.Prefetch}
	g.work.L = &p.mu
	for _, q := range queues {
		g.queues = append(g.queues, q.Name)
		p.byQueue[q.Name] = g
	}
	p.groups = append(p.groups, g)
	return g
}

func (p *Pool) now() instant { return instant(time.Since(p.epoch)) }

var errNoHandlers = fmt.Errorf("worker: no handlers registered: %w", pawl.ErrInvalid)

var errRunTwice = errors.New("worker: Run called twice")

// Run claims and runs jobs until ctx ends or Stop is called, then stops: it
// claims no more, hands back what has not started, and leaves handlers
// undisturbed for StopTimeout; then it cancels their contexts with ErrStopping
// and gives those that end soon the time to. Hooks have until then, too. It
// returns nil if all ended and were settled, else a [StopError], and at once an
// error that matches ErrInvalid if the options are wrong or there are no
// handlers. Errors of the storage don't end it: it tries again for ever. A pool
// runs once.
func (p *Pool) Run(ctx context.Context) error {
	if p.err != nil {
		return p.err
	}
	p.mu.Lock()
	if p.started {
		p.mu.Unlock()
		return errRunTwice
	}
	p.started = !p.stopping
	p.mu.Unlock()
	if !p.started {
		return nil
	}
	defer close(p.finished)

	p.base = context.WithoutCancel(ctx)
	crew := p.begin()
	release := context.AfterFunc(ctx, p.requestStop)
	defer release()

	<-p.stopCalled
	until := p.now().add(p.opts.StopTimeout + stopGrace)
	unhook := time.AfterFunc(p.opts.StopTimeout+stopGrace/2, crew.unhook)
	defer unhook.Stop()
	left := p.wind()
	left.Hooks = crew.end(until)
	if left.empty() {
		return nil
	}
	return left
}

// A crew is the goroutines of a pool beside its slots.
type crew struct {
	p        *Pool
	fetching sync.WaitGroup
	others   sync.WaitGroup
	settling sync.WaitGroup
	stop     context.CancelFunc // ends others
	giveUp   context.CancelFunc // ends calls of the settler
	unhook   context.CancelFunc // ends the context of hooks
}

func (p *Pool) begin() *crew {
	c := &crew{p: p}
	ctx, stop := context.WithCancel(p.base)
	settleCtx, giveUp := context.WithCancel(p.base)
	c.stop, c.giveUp = stop, giveUp
	p.settleCtx = settleCtx
	hookCtx, unhook := context.WithCancelCause(context.WithValue(p.base, hookKey{p}, true))
	p.hookCtx, c.unhook = hookCtx, func() { unhook(ErrStopping) }
	go p.doChores() // ends with choresDone
	p.beginSlots()
	c.settling.Go(func() { p.settleLoop(settleCtx) })
	c.others.Go(func() { p.heartbeat(ctx) })
	c.others.Go(func() { p.deadlines(ctx) })
	c.others.Go(func() { p.sweep(ctx) })
	c.others.Go(func() { p.watch(ctx) })
	if p.opts.CountEvery > 0 || p.opts.Events != nil {
		c.others.Go(func() { p.census(ctx) })
	}
	claimCtx, breakClaims := context.WithCancel(settleCtx)
	p.breakClaims = breakClaims
	c.fetching.Go(func() { p.fetch(claimCtx) })
	return c
}

func (p *Pool) beginSlots() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = true
	p.warnOfUnserved()
	for _, g := range p.groups {
		for range g.slots {
			p.startSlot(g)
		}
	}
}

// warnOfUnserved logs which kinds' jobs go by default to queues that others have
// to serve.
func (p *Pool) warnOfUnserved() {
	for _, name := range slices.Sorted(maps.Keys(p.kinds)) {
		queue := cmp.Or(p.kinds[name].Queue, pawl.DefaultQueue)
		if p.byQueue[queue] == nil {
			p.logLater(slog.LevelWarn, "worker: queue of a handled kind is not served", "kind", name, "queue", queue)
		}
	}
}

// end waits for all goroutines but those of handlers and hooks that refuse to
// end. It returns how many hooks were given up.
func (c *crew) end(until instant) (hooks int) {
	c.p.slots.Wait()
	c.stop()
	c.giveUp()
	c.fetching.Wait()
	c.settling.Wait()
	c.others.Wait()
	c.p.looks.Wait()
	hooks = c.p.endChores(until)
	c.unhook()
	return hooks
}

// wake leaves one wake-up in c.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
