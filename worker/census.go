package worker

import (
	"cmp"
	"context"
	"time"

	"github.com/pawlq/pawl"
)

// countEvery is how often a pool counts what someone asks for, if it does not
// count by itself.
const countEvery = 15 * time.Second

// census counts the jobs of the pool's queues now and then, until ctx ends.
func (p *Pool) census(ctx context.Context) {
	var o outage
	for {
		wait := jitter(cmp.Or(p.opts.CountEvery, countEvery))
		queues, all := p.toCount()
		counts, err := p.countOnce(ctx, queues)
		switch {
		case err == nil:
			p.recovered(&o, "count")
			p.counted(counts, all)
		case ctx.Err() == nil:
			p.failed(&o, "count", err)
			wait = min(wait, p.delay(&o))
		}
		if !sleep(ctx, wait, nil) {
			return
		}
	}
}

// toCount returns the queues to count: all of them, or else those that are
// paused, if someone wants to be told of their end.
func (p *Pool) toCount() (queues []string, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all = p.opts.CountEvery > 0 || p.opts.Events.counts()
	if !all && !p.opts.Events.follows(EventPaused, EventResumed) {
		return nil, false
	}
	for _, g := range p.groups {
		for _, queue := range g.queues {
			if all || p.paused[queue] {
				queues = append(queues, queue)
			}
		}
	}
	return queues, all
}

func (p *Pool) countOnce(ctx context.Context, queues []string) ([]pawl.QueueStats, error) {
	if len(queues) == 0 {
		return nil, nil
	}
	ctx, returned := p.calling(ctx, "count", callTimeout)
	defer returned()
	return p.q.Stats(ctx, queues...)
}

func (p *Pool) counted(counts []pawl.QueueStats, all bool) {
	for _, c := range counts {
		p.notePaused(c.Queue, c.Paused)
	}
	if !all {
		return
	}
	p.mu.Lock()
	p.stats.Queues = counts
	p.stats.CountedAt = time.Now()
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
		p.opts.Events.publish(Event{Type: t, At: time.Now(), Queue: queue})
	}
}
