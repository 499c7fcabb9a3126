package worker

import (
	"context"
	"errors"
	"time"

	"github.com/pawlq/pawl"
)

// watch takes in the storage's events until ctx ends. Where there are none, or
// while they fail, the pool polls.
func (p *Pool) watch(ctx context.Context) {
	var o outage
	for {
		if _, ok := pawl.Find[pawl.Watcher](p.q.Storage()); !ok {
			return
		}
		began := p.now()
		p.setWatching(true)
		err := p.q.Watch(ctx, p.event)
		p.setWatching(false)
		if ctx.Err() != nil || errors.Is(err, pawl.ErrUnsupported) {
			return
		}
		if err == nil {
			err = errWatchEnded
		}
		if p.now().sub(began) > backoffMost {
			p.recovered(&o, "watch")
		}
		p.failed(&o, "watch", err)
		if !sleep(ctx, p.delay(&o), nil) {
			return
		}
	}
}

var errWatchEnded = errors.New("worker: the storage's events ended")

func (p *Pool) setWatching(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watching = on
	p.wet("") // what was not told before
}

// event takes in one event.
func (p *Pool) event(e pawl.Event) {
	switch e.Kind {
	case pawl.EventReady:
		p.eventReady(e.Queue, e.In)
	case pawl.EventEnded:
		p.eventEnded(e.Ref)
	case pawl.EventPaused:
		p.handBackQueue(e.Queue)
		p.notePaused(e.Queue, true)
	}
}

func (p *Pool) eventReady(queue string, in time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if queue != "" && p.byQueue[queue] == nil {
		return
	}
	if in <= 0 {
		if queue == "" { // so begins to speak who was cut off from its storage
			p.answers = true
			wake(p.fetchWake)
		}
		p.wet(queue)
		return
	}
	at := p.now().add(in)
	for _, g := range p.groups {
		if queue != "" && p.byQueue[queue] != g {
			continue
		}
		g.events++
		if g.dry && at < g.wetAt {
			g.wetAt = at
			wake(p.fetchWake)
		}
	}
}

func (p *Pool) eventEnded(ref pawl.Ref) {
	var stops stops
	p.mu.Lock()
	for r := range p.live.all {
		if r.ref.ID == ref.ID && r.ref.Fence == ref.Fence && !r.abandoned {
			p.claimEnded(r, ErrCanceled, &stops)
		}
	}
	p.mu.Unlock()
	stops.call()
}
