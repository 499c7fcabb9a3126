package tasktest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"sync"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/task"
)

// A Chaos finds handlers that are not idempotent: it lets each job run as it may
// when processes die. A run is stopped after each of its effects, once each, and
// the job is run again; and when its handler has at last returned nil, it is run
// once more, as if the ack had been lost. What then differs from what one run
// does, the test sees in its own world: two mails instead of one.
//
// The zero value is ready. Its method Middleware goes into the Middleware of
// worker.DrainOptions or worker.Options, or into [task.Mux.Use]; runs that chaos
// ended are handed back by [pawl.Snooze], which spends no attempt. Effects are
// told by [Effect]. [Idempotent] makes the comparison, too. A Chaos is safe for
// concurrent use.
//
// A job that was acked in its handler's transaction is not run again once that
// is committed, as in production.
type Chaos struct {
	plan  plan
	mu    sync.Mutex
	jobs  map[pawl.ID]*victim
	told  []string // all effects, in order
	where string   // it stopped a run, if the plan names one place
	runs  int
}

// A plan is what is done to jobs. The zero plan is everything.
type plan struct {
	no   bool // nothing
	only int  // stop after this effect of all, from 1; -1: never
}

// A victim is a job that is run under chaos.
type victim struct {
	stopped map[place]bool
	twice   bool
}

// A place in a handler is an effect and how often it came in the run.
type place struct {
	effect string
	nth    int
}

type chaosRun struct {
	c      *Chaos
	v      *victim
	kind   string
	stop   context.CancelCauseFunc
	times  map[string]int
	halted bool
}

type chaosKey struct{}

var errStopped = errors.New("tasktest: chaos stopped the run")

// Effect tells that the job whose handler was given ctx has done something that
// lasts: a mail was sent, a row written, a card charged. It is called by the
// fakes and wrappers with which a test surrounds a handler, after the effect;
// outside of a [Chaos] it does nothing. name tells the effects of a handler
// apart; those of the same name are told apart by their order.
//
// To stop the run Effect ends ctx and the goroutine that calls it, by
// runtime.Goexit, so that nothing but deferred calls follows. Effects told by
// goroutines that a handler started end only those; the handler itself must heed
// its context.
func Effect(ctx context.Context, name string) {
	run, ok := ctx.Value(chaosKey{}).(*chaosRun)
	if ok && run.tell(name) {
		run.stop(errStopped)
		runtime.Goexit()
	}
}

// tell reports whether the run is to stop here.
func (r *chaosRun) tell(name string) bool {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	r.times[name]++
	at := place{name, r.times[name]}
	r.c.told = append(r.c.told, fmt.Sprintf("effect %q of kind %q", name, r.kind))
	switch {
	case r.halted:
		return true
	case r.c.plan.no:
	case r.c.plan.only != 0:
		r.halted = r.c.plan.only == len(r.c.told)
		if r.halted {
			r.c.where = r.c.told[len(r.c.told)-1]
		}
	default:
		r.halted = !r.v.stopped[at]
		r.v.stopped[at] = true
	}
	return r.halted
}

// Middleware lets the runs of next happen as a Chaos does.
func (c *Chaos) Middleware(next task.Handler) task.Handler {
	return func(ctx context.Context, job *pawl.Job) ([]byte, error) {
		ctx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		run := c.begin(job, stop)
		result, err := apart(context.WithValue(ctx, chaosKey{}, run), next, job, run.ended)
		if run.again(job, err) {
			return nil, pawl.Snooze(0)
		}
		return result, err
	}
}

func (c *Chaos) begin(job *pawl.Job, stop context.CancelCauseFunc) *chaosRun {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs == nil {
		c.jobs = map[pawl.ID]*victim{}
	}
	v := c.jobs[job.ID]
	if v == nil {
		v = &victim{stopped: map[place]bool{}}
		c.jobs[job.ID] = v
	}
	c.runs++
	return &chaosRun{c: c, v: v, kind: job.Kind, stop: stop, times: map[string]int{}}
}

func (r *chaosRun) ended() bool {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	return r.halted
}

// again reports whether the job is to run again although its handler may have
// returned.
func (r *chaosRun) again(job *pawl.Job, err error) bool {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	_, settled := job.SettledInTx()
	switch {
	case r.halted:
		return true
	case r.c.plan.no, r.c.plan.only > 0, r.v.twice, err != nil, settled:
		return false
	}
	r.v.twice = true
	return true
}

// apart calls next in a goroutine of its own, which Effect can end. Panics, and
// ends that were not wanted, are passed on.
func apart(ctx context.Context, next task.Handler, job *pawl.Job, wanted func() bool) (result []byte, err error) {
	var (
		panicked any
		returned bool
		done     = make(chan struct{})
	)
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		result, err = next(ctx, job)
		returned = true
	}()
	<-done
	switch {
	case wanted(): // whatever deferred calls did
	case panicked != nil:
		panic(panicked)
	case !returned:
		runtime.Goexit()
	}
	return result, err
}

// Idempotent ends the test unless handlers leave the same world behind however
// often they are stopped and run again. It calls scenario many times, which
// begins with a fresh world each time, runs jobs under c.Middleware and returns
// what the world has become, to be compared by reflect.DeepEqual:
//
//	tasktest.Idempotent(t, func(c *tasktest.Chaos) []mail {
//		outbox := new(fakeOutbox) // its Send calls tasktest.Effect
//		q := pawl.New(memory.New(nil), nil)
//		// enqueue
//		_, err := worker.Drain(ctx, q, tasks(outbox), &worker.DrainOptions{Middleware: []worker.Middleware{c.Middleware}})
//		if err != nil {
//			t.Fatal(err)
//		}
//		return outbox.sent
//	})
//
// The first two calls are left alone and show what has to be. In the third each
// job is run twice. Then there is a call for each [Effect] told in the first, in
// which one run is stopped after it. So the failure says where. If no handler ran,
// or none told an Effect, so that there was nowhere to stop, the test ends too.
func Idempotent[W any](t TB, scenario func(c *Chaos) W) {
	t.Helper()
	plain := &Chaos{plan: plan{no: true}}
	want := scenario(plain)
	if plain.runs == 0 {
		t.Fatalf("tasktest: no handler ran under the Middleware of Chaos")
	}
	compare := func(c *Chaos, what string) {
		t.Helper()
		if got := scenario(c); !reflect.DeepEqual(got, want) {
			t.Fatalf("tasktest: %s:\n\tgot  %+v\n\twant %+v, as after the first call", what, got, want)
		}
	}
	compare(&Chaos{plan: plan{no: true}}, "the scenario ends differently without chaos")
	compare(&Chaos{plan: plan{only: -1}}, "not idempotent: each job was run to its end twice")
	if len(plain.told) == 0 {
		t.Fatalf("tasktest: no run could be stopped on its way: what handlers do has to tell so by tasktest.Effect, with their context")
	}
	for i, effect := range plain.told {
		c := &Chaos{plan: plan{only: i + 1}}
		compare(c, fmt.Sprintf("not idempotent: a run was stopped after %s, and the job run again", effect))
		if c.where != effect {
			t.Fatalf("tasktest: effects come in another order each time: expected %s, got %q", effect, c.where)
		}
	}
}
