package worker

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
)

const (
	levelOutage    = slog.LevelError
	levelRecovered = slog.LevelInfo
)

// maxChores is how many chores may wait before the pool claims no more: hooks
// that can't keep up must not fill the memory.
const maxChores = 10_000

// chore lets f, which is the user's code or calls it, run outside of mu in a
// goroutine for all such. It is called with mu held.
func (p *Pool) chore(f func()) {
	p.chores = append(p.chores, f)
	if len(p.chores) == 1 {
		wake(p.choreWake)
	}
}

// logLater logs as a chore. It is called with mu held.
func (p *Pool) logLater(level slog.Level, msg string, attrs ...any) {
	p.chore(func() { p.log.Log(p.base, level, msg, attrs...) })
}

// doChores does chores until there are no more to come. A hook that calls
// runtime.Goexit ends the goroutine; another goes on.
func (p *Pool) doChores(wg *sync.WaitGroup) {
	done := false
	defer func() {
		if !done {
			wg.Go(func() { p.doChores(wg) })
		}
	}()
	for {
		f, over := p.nextChore()
		switch {
		case f != nil:
			p.guard(f)
		case over:
			done = true
			return
		default:
			<-p.choreWake
		}
	}
}

func (p *Pool) nextChore() (f func(), over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.chores) == 0 {
		return nil, p.choresOver
	}
	f = p.chores[0]
	p.chores[0] = nil
	p.chores = p.chores[1:]
	return f, false
}

func (p *Pool) endChores() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.choresOver = true
	wake(p.choreWake)
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
