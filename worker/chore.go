package worker

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/pawlq/pawl"
)

const (
	levelOutage    = slog.LevelError
	levelRecovered = slog.LevelInfo
)

// maxChores is how many chores may wait before the pool claims no more: hooks
// that can't keep up must not fill the memory.
const maxChores = 10_000

// maxChoreBytes is how many bytes of payload the jobs of waiting hooks may have
// in all before the pool claims no more.
const maxChoreBytes = 64 << 20

// choreGrace is how long what is logged last may take, and hooks may when a
// stop has used up its time.
const choreGrace = 100 * time.Millisecond

// A chore is a call of the user's code, or of what calls it.
type chore struct {
	do   func()
	hook bool
	size int // bytes of payload that it keeps
}

// chore lets f, which is the user's code or calls it, run outside of mu in a
// goroutine for all such. It is called with mu held.
func (p *Pool) chore(f func()) { p.addChore(chore{do: f}) }

// tell lets hook be called as a chore. It is called with mu held.
func (p *Pool) tell(hook func(context.Context, *pawl.Job, error), j *pawl.Job, err error) {
	p.addChore(chore{do: func() { hook(p.hookCtx, j, err) }, hook: true, size: len(j.Payload)})
}

func (p *Pool) addChore(c chore) {
	p.chores = append(p.chores, c)
	p.choreBytes += c.size
	if p.behindSince == never && p.choresBehind() {
		p.behindSince = p.now()
	}
	if len(p.chores) == 1 {
		wake(p.choreWake)
	}
}

// choresBehind reports whether too much waits. It is called with mu held.
func (p *Pool) choresBehind() bool {
	return len(p.chores) > maxChores || p.choreBytes > maxChoreBytes
}

// logLater logs as a chore. It is called with mu held.
func (p *Pool) logLater(level slog.Level, msg string, attrs ...any) {
	p.chore(func() { p.log.Log(p.base, level, msg, attrs...) })
}

// doChores does chores until there are no more to come. A hook that calls
// runtime.Goexit ends the goroutine; another goes on.
func (p *Pool) doChores() {
	done := false
	defer func() {
		if done {
			close(p.choresDone)
		} else {
			go p.doChores()
		}
	}()
	for {
		c, over := p.nextChore()
		switch {
		case c.do != nil:
			p.guard(c.do)
		case over:
			done = true
			return
		default:
			<-p.choreWake
		}
	}
}

// nextChore takes in that the chore before has ended and returns the next.
func (p *Pool) nextChore() (c chore, over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.choreBytes -= p.doing.size
	p.doing = chore{}
	if !p.choresBehind() {
		p.behindSince = never
	}
	if len(p.chores) == 0 {
		return chore{}, p.choresOver
	}
	c = p.chores[0]
	p.chores[0] = chore{}
	p.chores = p.chores[1:]
	p.doing, p.doingSince = c, p.now()
	return c, false
}

// endChores waits until all chores are done, but not beyond until by more than
// choreGrace. It gives up those that are left and returns how many of them are
// hooks.
func (p *Pool) endChores(until instant) (hooks int) {
	p.mu.Lock()
	p.choresOver = true
	wake(p.choreWake)
	p.mu.Unlock()
	timer := time.NewTimer(max(until.sub(p.now()), choreGrace))
	defer timer.Stop()
	select {
	case <-p.choresDone:
		return 0
	case <-timer.C:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range append(p.chores, p.doing) {
		if c.hook {
			hooks++
		}
	}
	p.chores = nil
	return hooks
}

// guard keeps the panic of a hook from ending the process.
func (p *Pool) guard(hook func()) {
	defer func() {
		if v := recover(); v != nil {
			p.logPanic(v, string(debug.Stack()))
		}
	}()
	hook()
}

// logPanic logs the panic of a hook. The logger itself may be what panics, and
// then there is nowhere to tell it.
func (p *Pool) logPanic(v any, stack string) {
	defer func() { _ = recover() }()
	p.log.Error("worker: hook panicked", "panic", fmt.Sprint(v), "stack", stack)
}
