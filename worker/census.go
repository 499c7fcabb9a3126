package worker

import (
	"context"

	"github.com/pawlq/pawl"
)

// census counts the jobs of the pool's queues now and then, until ctx ends.
func (p *Pool) census(ctx context.Context) {
	var o outage
	for {
		wait := jitter(p.opts.CountEvery)
		counts, err := p.countOnce(ctx)
		switch {
		case err == nil:
			p.recovered(&o, "count")
			p.counted(counts)
		case ctx.Err() == nil:
			p.failed(&o, "count", err)
			wait = min(wait, p.delay(&o))
		}
		if !sleep(ctx, wait, nil) {
			return
		}
	}
}

func (p *Pool) countOnce(ctx context.Context) ([]pawl.QueueStats, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var queues []string
	for _, g := range p.groups {
		queues = append(queues, g.queues...)
	}
	return p.q.Stats(ctx, queues...)
}

func (p *Pool) counted(counts []pawl.QueueStats) {
	for _, c := range counts {
		p.notePaused(c.Queue, c.Paused)
	}
	p.mu.Lock()
	p.stats.Queues = counts
	p.stats.CountedAt = p.wall(p.now())
	at := p.stats.CountedAt
	p.mu.Unlock()
	if p.opts.Events != nil {
		p.opts.Events.crossed(at, counts)
	}
}

// notePaused takes in whether a queue is paused and tells if that is new.
func (p *Pool) notePaused(queue string, paused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byQueue[queue] == nil || p.paused[queue] == paused {
		return
	}
	p.paused[queue] = paused
	t := EventResumed
	if paused {
		t = EventPaused
	}
	if p.opts.Events.wanted(t) {
		p.opts.Events.publish(Event{Type: t, At: p.wall(p.now()), Queue: queue})
	}
}
