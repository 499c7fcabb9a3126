package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pawlq/pawl"
)

// Stop asks Run to stop and waits until it has returned, or ctx ends, whose
// error it returns then. It may be called many times. Called by a handler or a
// hook with its own context (or one derived from it) it does not wait, since
// Run waits for those.
func (p *Pool) Stop(ctx context.Context) error {
	p.requestStop()
	p.mu.Lock()
	started := p.started
	p.mu.Unlock()
	c, ok := claimOf(ctx)
	if !started || ok && c.pool == p || ctx.Value(hookKey{p}) != nil {
		return nil
	}
	select {
	case <-p.finished:
		return nil
	case <-ctx.Done():
	}
	select { // the choice above is made by chance
	case <-p.finished:
		return nil
	default:
		return ctx.Err()
	}
}

// hookKey is what the context of a hook of that pool has a value for.
type hookKey struct{ p *Pool }

func (p *Pool) requestStop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		return
	}
	p.stopping = true
	for _, g := range p.groups { // now, so that no slot starts one after this
		p.handBackReady(g, func(*run) bool { return true })
	}
	close(p.stopCalled)
}

func (p *Pool) isStopping() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopping
}

// stopGrace is how long handlers may take to end after their contexts were
// cancelled, and outcomes to be settled after StopTimeout.
const stopGrace = time.Second

// wind brings the pool to rest and returns what could not be.
func (p *Pool) wind() *StopError {
	wake(p.fetchWake)
	unclaim := time.AfterFunc(claimGrace, p.breakClaims)
	defer unclaim.Stop()
	soft := time.AfterFunc(p.opts.StopTimeout, p.hardStop)
	defer soft.Stop()
	last := time.AfterFunc(p.opts.StopTimeout+stopGrace, p.giveUp)
	defer last.Stop()

	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.over && !p.resting() {
		p.quiet.Wait()
	}
	p.over, p.closing = true, true
	left := p.leftovers()
	for _, g := range p.groups {
		g.work.Broadcast()
	}
	wake(p.settleWake)
	return left
}

// resting reports whether nothing is left to do. The fetcher may still hold a
// claim until it says that it is done.
func (p *Pool) resting() bool {
	for r := range p.live.all {
		if !r.abandoned {
			return false
		}
	}
	return p.fetchDone
}

func (p *Pool) hardStop() {
	p.mu.Lock()
	var stops []context.CancelCauseFunc
	for r := range p.live.all {
		if r.phase == running && r.cause == nil {
			r.cause = ErrStopping
			stops = append(stops, r.stop)
		}
	}
	p.mu.Unlock()
	for _, stop := range stops {
		stop(ErrStopping)
	}
}

func (p *Pool) giveUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.quiet.Broadcast()
}

// leftovers lists what has not ended and gives it up.
func (p *Pool) leftovers() *StopError {
	var left StopError
	busy := make(map[pawl.Ref]bool) // a handler that was given up has two runs, its own first
	for r := range p.live.all {
		l := Leftover{Ref: r.ref, Kind: r.kindName}
		switch {
		case r.phase == running && !r.returned:
			busy[r.ref] = true
			left.Running = append(left.Running, l)
		case !busy[r.ref]:
			left.Unsettled = append(left.Unsettled, l)
		}
		if r.phase == running && !r.abandoned {
			p.abandon(r)
		}
	}
	return &left
}

// A StopError lists the claims that a pool could not bring to an end before it
// stopped, each once. It neither extends nor releases them: their leases end by
// themselves, and then others run the jobs. It also counts the calls of hooks
// that were not made or did not end.
type StopError struct {
	Running   []Leftover // handlers that did not end; their goroutines are still there
	Unsettled []Leftover // handlers that ended, but the storage could not be told
	Hooks     int        // calls of OnError and OnBury
}

func (e *StopError) empty() bool { return len(e.Running)+len(e.Unsettled)+e.Hooks == 0 }

// A Leftover is a claim that was left.
type Leftover struct {
	Ref  pawl.Ref
	Kind string
}

func (e *StopError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "worker: stopped with %d handlers running, %d jobs unsettled and %d calls of hooks left:",
		len(e.Running), len(e.Unsettled), e.Hooks)
	const shown = 10 // a log line's worth
	all := slices.Concat(e.Running, e.Unsettled)
	for _, l := range all[:min(len(all), shown)] {
		fmt.Fprintf(&b, " %s %s/%v;", l.Kind, l.Ref.Queue, l.Ref.ID)
	}
	if len(all) > shown {
		b.WriteString(" ...")
	}
	return strings.TrimRight(b.String(), ":;")
}
