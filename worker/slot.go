package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/pawlq/pawl"
)

// A slot is a goroutine that runs one job after the other.
type slot struct {
	p   *Pool
	g   *group
	run *run
	// uncounted is set when the slot was given up while it ran a handler:
	// nobody waits for it any more.
	uncounted bool
}

// startSlot adds a slot to g. It is called with mu held, and not after closing.
func (p *Pool) startSlot(g *group) {
	s := &slot{p: p, g: g}
	p.slots.Add(1)
	go s.loop()
}

func (s *slot) loop() {
	defer s.leave()
	s.p.mu.Lock()
	s.run = s.next(s.p.now())
	s.p.mu.Unlock()
	for s.run != nil {
		r := s.run
		result, err := s.p.invoke(r)
		s.p.judge(r, result, err)
		s.run = s.exchange(r)
	}
}

// leave ends the slot. If a handler has ended the goroutine with
// runtime.Goexit, its run has failed and another slot goes on.
func (s *slot) leave() {
	p, r := s.p, s.run
	if r != nil {
		p.judge(r, nil, &panicError{text: "runtime.Goexit called by the handler", stack: r.exit})
		r.stop(nil)
		p.mu.Lock()
		if !s.ended(r, p.now()) && !p.closing {
			p.startSlot(s.g)
		}
		p.mu.Unlock()
	}
	if !s.uncounted {
		p.slots.Done()
	}
}

// exchange takes in the run that ended and returns the next one, or nil if the
// slot is to end.
func (s *slot) exchange(r *run) *run {
	r.stop(nil)
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	now := s.p.now()
	if s.ended(r, now) {
		return nil
	}
	return s.next(now)
}

// ended takes in the run that ended and reports whether the slot is to end.
func (s *slot) ended(r *run, now instant) bool {
	p, g := s.p, s.g
	busy := now.sub(r.started)
	if !r.returned {
		r.took = busy
	}
	g.ran(busy, r.size+len(r.outcome.Result))
	p.progress = now
	if r.abandoned {
		return s.comeBack(r)
	}
	g.running--
	p.stats.Running--
	if r.outcome.Verb == 0 {
		p.forget(r)
	} else {
		p.owe(r)
		p.done.push(r)
	}
	p.announce(g)
	return false
}

// comeBack is for a handler that returned after it was given up. If no other
// slot has taken its place, the slot goes on.
func (s *slot) comeBack(r *run) (end bool) {
	p := s.p
	p.logLater(slog.LevelWarn, "worker: handler ended after it was given up, its outcome is refused", r.attrs()...)
	p.stats.Stuck--
	p.forget(r)
	if r.replaced {
		p.replaced--
		p.replaceLost()
	}
	if r.replaced || p.closing {
		s.uncounted = true
		return true
	}
	if !r.spare {
		s.g.lost--
	}
	s.g.slots++
	p.slots.Add(1)
	p.announce(s.g)
	return false
}

// next waits for a run to start. It is called with mu held.
func (s *slot) next(now instant) *run {
	p, g := s.p, s.g
	for {
		if g.retire() {
			return nil
		}
		for g.ready.len() > 0 {
			if r := g.ready.pop(); p.start(r, now) {
				g.call(p.procs)
				return r
			}
		}
		if p.closing {
			return nil
		}
		p.idle()
		g.parked++
		g.work.Wait()
		g.parked--
		g.waking = max(g.waking-1, 0) // a Broadcast wakes without counting
		now = p.now()
	}
}

// start readies r to run now, unless its claim was lost while it waited.
func (p *Pool) start(r *run, now instant) bool {
	p.stats.Prefetched--
	switch {
	case r.cause != nil:
		r.refund()
		p.lost(r, "while it waited to start")
	case now >= r.leaseUntil:
		// The lease was counted from when the claim was sent. If the process was
		// paused, or the reply took long, the storage's goes on for a while.
		p.hand(r, pawl.Release)
	}
	if r.phase != queued {
		p.announce(r.group)
		return false
	}
	r.phase, r.ran, r.started = running, true, now
	r.deadline = never
	if t := r.timeout(); t > 0 {
		r.deadline = now.add(t)
	}
	r.ctx.deadline = r.deadline
	r.group.running++
	r.group.started = now
	p.stats.Running++
	p.stats.Started++
	p.expireBy(min(r.deadline, r.leaseUntil))
	p.tellEvent(EventStarted, r)
	return true
}

func (r *run) timeout() time.Duration {
	if r.job.Timeout != 0 {
		return r.job.Timeout
	}
	return r.kind.timeout
}

// panicError is the failure of a handler that did not return.
type panicError struct {
	text  string
	stack []byte
}

func (e *panicError) Error() string { return e.text }

// invoke calls the handler. A panic is an error; after runtime.Goexit it does
// not return.
func (p *Pool) invoke(r *run) (result []byte, err error) {
	return protect(r.kind.run, r.ctx, r.job, &r.exit)
}

// protect calls run and turns a panic into an error. If run calls
// runtime.Goexit, its stack is left in exit.
func protect(run RunFunc, ctx context.Context, j *pawl.Job, exit *[]byte) (result []byte, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			err = &panicError{text: fmt.Sprintf("panic: %v", v), stack: debug.Stack()}
			return
		}
		*exit = debug.Stack()
	}()
	result, err = run(ctx, j)
	returned = true
	return result, err
}

// judge turns what the handler returned into r.outcome; without a Verb there
// is nothing to settle.
func (p *Pool) judge(r *run, result []byte, err error) {
	if verb, ok := r.job.SettledInTx(); ok {
		if _, abandoned := p.returns(r); abandoned {
			return
		}
		done, failure := p.verify(r, verb, err)
		if done {
			return
		}
		result, err = nil, failure
	}
	if limit := p.maxResult; err == nil && len(result) > limit {
		err = &pawl.InvalidError{Field: "Result", Limit: fmt.Sprintf("at most %d bytes", limit)}
	}
	if err == nil {
		r.outcome = pawl.Outcome{Ref: r.ref, Verb: pawl.Ack, Result: result}
		return
	}
	p.judgeError(r, err)
}

// returns takes in that the handler of r has returned, so that no deadline of it
// counts while its outcome is found out. An abandoned one has none: that was told
// when it was given up.
func (p *Pool) returns(r *run) (cause error, abandoned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !r.returned {
		r.returned, r.took = true, p.now().sub(r.started)
	}
	return r.cause, r.abandoned
}

func (p *Pool) judgeError(r *run, err error) {
	cause, abandoned := p.returns(r)
	if abandoned {
		return
	}
	ended, err := ofContext(err, cause)
	if ended {
		switch {
		case errors.Is(cause, pawl.ErrLost):
			p.mu.Lock()
			p.countLost(r, "while it ran")
			p.mu.Unlock()
			return
		case cause == ErrStopping:
			r.outcome = pawl.Outcome{Ref: r.ref, Verb: pawl.Release}
			return
		case cause == ErrTimeout:
			err = timedOut(r.timeout(), err)
		}
	}
	p.fail(r, err)
}

// timedOut is the failure of a handler that heeded the end of its context.
func timedOut(after time.Duration, err error) error {
	if err == ErrTimeout {
		return fmt.Errorf("%w after %v", ErrTimeout, after)
	}
	return fmt.Errorf("%w after %v: %w", ErrTimeout, after, err)
}

// ofContext reports whether err is what the context's end brought about, if it
// had one. It returns err, or what is to take its place if its methods do not
// return.
func ofContext(err, cause error) (ended bool, failure error) {
	if cause == nil {
		return false, err
	}
	bad := apart(func() {
		ended = errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, cause)
	})
	if bad != nil {
		return false, bad
	}
	return ended, err
}

// apart calls f, which judges a failure by means of the user's code, and says
// how it ended if it did not return. It has a goroutine of its own, since
// runtime.Goexit can't be kept from ending the one that calls it.
func apart(f func()) (bad *panicError) {
	ended := make(chan *panicError, 1)
	go func() {
		returned := false
		defer func() {
			switch v := recover(); {
			case returned:
				ended <- nil
			case v != nil:
				ended <- &panicError{text: fmt.Sprintf("panic while the failure was judged: %v", v), stack: debug.Stack()}
			default:
				ended <- &panicError{text: "runtime.Goexit called while the failure was judged", stack: debug.Stack()}
			}
		}()
		f()
		returned = true
	}()
	return <-ended
}

// fail makes err the outcome of r and tells the kind, or leaves that until it is
// settled: a transaction of the handler may yet be committed, and then it is no
// failure.
func (p *Pool) fail(r *run, err error) {
	r.outcome = outcomeOf(r.ref, r.job, r.kind, err)
	if r.outcome.Verb == pawl.SnoozeFor {
		p.noteSnooze(r, err)
		return
	}
	if r.outcome.Verb != pawl.Nack && r.outcome.Verb != pawl.Bury {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r.failure = err
	if _, r.untold = r.job.SettledInTx(); !r.untold {
		p.tellFailure(r, err)
	}
}

// tellFailure tells the kind that r has failed. It is called with mu held.
func (p *Pool) tellFailure(r *run, err error) {
	r.failure = err
	p.logLater(slog.LevelWarn, "worker: job failed", append(r.attrs(), "attempt", r.job.Attempt, "err", r.outcome.Error)...)
	if r.kind.OnError != nil {
		p.tell(r.kind.OnError, r.job, err)
	}
}

// outcomeOf is [pawl.OutcomeOf] for code that may not return.
func outcomeOf(ref pawl.Ref, j *pawl.Job, k *kind, err error) (o pawl.Outcome) {
	bad := apart(func() {
		o = pawl.OutcomeOf(j, err, k.backoff)
		var p *panicError
		if errors.As(err, &p) {
			o.Stack = string(p.stack)
		}
	})
	if bad != nil {
		o = pawl.Outcome{Verb: pawl.Nack, Delay: pawl.Exponential{}.Delay(j.Attempt, nil)}
		o.Error, o.Stack = bad.text, string(bad.stack)
	}
	o.Ref = ref // whatever the handler has done to its job
	return o
}

// noteSnooze notes why a handler snoozed, if it says so. What a kind lacks to run
// its jobs is logged once for each.
func (p *Pool) noteSnooze(r *run, err error) {
	var cause, lacking string
	if bad := apart(func() { cause, lacking = snoozeCause(err) }); bad != nil {
		cause = bad.text
	}
	r.why = cause
	if lacking == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.firstOf(r.kindName + " lacks " + lacking) {
		p.logLater(slog.LevelWarn, "worker: jobs of this kind are handed back, for something is lacking here",
			"kind", r.kindName, "queue", r.ref.Queue, "lacking", lacking, "err", cause)
	}
}

// snoozeCause returns the text of an error that wraps a [pawl.Snooze], and what
// is lacking, as package task tells it of a payload that it can't decode.
func snoozeCause(err error) (cause, lacking string) {
	switch err.(type) {
	case interface{ Unwrap() error }, interface{ Unwrap() []error }:
		cause = excerpt(err.Error())
	}
	var l interface{ Lacking() string }
	if errors.As(err, &l) {
		lacking = excerpt(l.Lacking())
	}
	return cause, lacking
}

// textOf is err.Error for code that may not return.
func textOf(err error) (s string) {
	if bad := apart(func() { s = err.Error() }); bad != nil {
		return bad.text
	}
	return s
}

// attrs name r in logs.
func (r *run) attrs() []any {
	return []any{"queue", r.ref.Queue, "kind", r.kindName, "id", r.ref.ID}
}
