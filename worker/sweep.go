package worker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"

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
		default:
			p.takePart(ctx, swept)
			if ctx.Err() == nil {
				p.failed(&o, "sweep", err)
				wait = min(wait, p.delay(&o))
			}
		}
		if !sleep(ctx, wait, nil) {
			return
		}
	}
}

func (p *Pool) sweepOnce(ctx context.Context) (pawl.Swept, error) {
	ctx, returned := p.calling(ctx, "sweep", callTimeout)
	defer returned()
	return p.q.Sweep(ctx)
}

func (p *Pool) takeSwept(ctx context.Context, s pawl.Swept) {
	p.mu.Lock()
	p.progress = p.now()
	p.mu.Unlock()
	p.takePart(ctx, s)
}

// takePart takes what a sweep has done, also one that failed in the end.
func (p *Pool) takePart(ctx context.Context, s pawl.Swept) {
	p.mu.Lock()
	p.stats.Rescued += int64(len(s.Rescued))
	p.stats.RescueBuried += int64(len(s.Buried))
	p.tellSwept(EventRescued, s.Rescued, "")
	p.tellSwept(EventBuried, s.Buried, errRescues.Error())
	p.logRescued(s.Rescued)
	for _, ref := range s.Rescued {
		p.wet(ref.Queue)
	}
	if s.Promoted > 0 {
		p.wet("")
	}
	p.mu.Unlock()
	p.tellBuried(ctx, s.Buried)
}

// logRescued logs one line for all: of a process that ran many jobs as it died
// the number tells more.
func (p *Pool) logRescued(refs []pawl.Ref) {
	if len(refs) == 0 {
		return
	}
	p.logLater(slog.LevelWarn, "worker: jobs taken back from workers that are gone", "jobs", len(refs))
	p.chore(func() {
		for _, ref := range refs {
			p.log.Debug("worker: job taken back", "queue", ref.Queue, "id", ref.ID)
		}
	})
}

// tellChunk is how many buried jobs are read at once: all of their payloads may
// be as big as can be.
const tellChunk = 16

// tellBuried tells their kinds that a rescue has buried jobs. All of it takes
// no longer than one call may, so that a storage that does not answer holds up
// no rescues.
func (p *Pool) tellBuried(ctx context.Context, refs []pawl.Ref) {
	if len(refs) == 0 {
		return
	}
	ctx, returned := p.calling(ctx, "read buried jobs", callTimeout)
	defer returned()
	queues := make(map[string][]pawl.ID)
	for _, ref := range refs {
		queues[ref.Queue] = append(queues[ref.Queue], ref.ID)
	}
	left := len(refs)
	for queue, ids := range queues {
		for chunk := range slices.Chunk(ids, tellChunk) {
			jobs, err := p.q.Storage().Get(ctx, queue, chunk...)
			if err != nil {
				p.mu.Lock()
				p.logLater(slog.LevelError, "worker: jobs buried, their workers died, but their kinds could not be told", "jobs", left, "err", err)
				p.mu.Unlock()
				return
			}
			left -= len(chunk)
			p.buriedByRescue(jobs)
		}
	}
}

// buriedByRescue tells the kinds of jobs, which are nil if they are gone by now.
func (p *Pool) buriedByRescue(jobs []*pawl.Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, job := range jobs {
		if job == nil {
			continue
		}
		p.logLater(slog.LevelError, "worker: job buried, its workers died", "queue", job.Queue, "kind", job.Kind, "id", job.ID)
		if kind := cmp.Or(p.kinds[job.Kind], p.fallback); kind != nil && kind.OnBury != nil {
			p.tell(kind.OnBury, job, rescueCause(job))
		}
	}
}

// rescueCause is what OnBury is told of a job that a rescue has buried.
func rescueCause(j *pawl.Job) error {
	if n := len(j.Failures); n > 0 {
		return errors.New(j.Failures[n-1].Error)
	}
	return errRescues
}

var errRescues = errors.New("worker: buried by a rescue, too many workers died with it")

// wet lets the queue, or all, be claimed from again. It is called with mu held.
func (p *Pool) wet(queue string) {
	for _, g := range p.groups {
		if queue == "" || p.byQueue[queue] == g {
			g.wet(queue)
		}
	}
	if p.fetchIdle {
		p.fetchIdle = false
		wake(p.fetchWake)
	}
}
