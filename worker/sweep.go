package worker

import (
	"context"
	"errors"
	"log/slog"

	"github.com/pawlq/pawl"
)

// sweep does, until ctx ends, what is due because time passed. All pools do,
// so that none is needed for another's work.
func (p *Pool) sweep(ctx context.Context) {
	var o outage
	for {
		wait := jitter(p.opts.SweepEvery)
		swept, err := p.sweepOnce(ctx)
		switch {
		case err == nil:
			p.recovered(&o, "sweep")
			p.takeSwept(ctx, swept)
			if swept.More {
				continue
			}
		case ctx.Err() == nil:
			p.failed(&o, "sweep", err)
			wait = min(wait, p.delay(&o))
		}
		if !sleep(ctx, wait, nil) {
			return
		}
	}
}

func (p *Pool) sweepOnce(ctx context.Context) (pawl.Swept, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return p.q.Sweep(ctx)
}

func (p *Pool) takeSwept(ctx context.Context, s pawl.Swept) {
	p.mu.Lock()
	p.progress = p.now()
	p.stats.Rescued += int64(len(s.Rescued))
	p.stats.RescueBuried += int64(len(s.Buried))
	for _, ref := range s.Rescued {
		p.logLater(slog.LevelWarn, "worker: job taken back from a worker that is gone", "queue", ref.Queue, "id", ref.ID)
		p.wet(ref.Queue)
	}
	if s.Promoted > 0 {
		p.wet("")
	}
	p.mu.Unlock()
	for _, ref := range s.Buried {
		p.tellBuried(ctx, ref)
	}
}

// tellBuried tells its kind that a rescue has buried a job.
func (p *Pool) tellBuried(ctx context.Context, ref pawl.Ref) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	job, err := p.q.Get(ctx, ref.Queue, ref.ID)
	p.mu.Lock()
	defer p.mu.Unlock()
	attrs := []any{"queue", ref.Queue, "id", ref.ID}
	if err != nil {
		p.logLater(slog.LevelError, "worker: job buried, its workers died", append(attrs, "err", err)...)
		return
	}
	p.logLater(slog.LevelError, "worker: job buried, its workers died", append(attrs, "kind", job.Kind)...)
	kind := p.kinds[job.Kind]
	if kind == nil {
		kind = p.fallback
	}
	if kind == nil || kind.OnBury == nil {
		return
	}
	cause := errors.New("worker: " + string(pawl.ReasonRescues))
	if n := len(job.Failures); n > 0 {
		cause = errors.New(job.Failures[n-1].Error)
	}
	p.chore(func() { kind.OnBury(p.base, job, cause) })
}

// wet lets the queue, or all, be claimed from again. It is called with mu held.
func (p *Pool) wet(queue string) {
	for _, g := range p.groups {
		if queue == "" || p.byQueue[queue] == g {
			g.wet()
		}
	}
	if p.fetchIdle {
		p.fetchIdle = false
		wake(p.fetchWake)
	}
}
