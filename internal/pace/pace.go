// Package pace deletes records in small steps with pauses, so that those who enqueue and
// claim meanwhile need not wait for long commits, nor share the server with a purge all
// the time.
package pace

import (
	"context"
	"sync"
	"time"
)

const (
	// Step is how many records go in one transaction. With the images of the pages
	// that they are on, which a log gets after a checkpoint, that is below 1 MB that
	// the next commit has to wait for.
	Step = 100
	// maxPause bounds the pauses, so that a Sweep of 1,000 records has at most half a
	// second of them.
	maxPause = 50 * time.Millisecond
	// patience is how long sweeps may find more than they may delete before they
	// leave the pauses out, since jobs end faster than their records go.
	patience = 10 * time.Minute
)

// A Pace is that of a Store.
type Pace struct {
	mu     sync.Mutex
	behind time.Time     // since when there has been more than the sweeps delete
	ended  time.Time     // when the last step that deleted something did
	took   time.Duration // that step
}

// Delete calls step, which deletes up to so many records and returns their number,
// until it has deleted limit or there are no more. Before each step it rests until as much
// time has gone by since the last one that deleted something as that took, also one of another Delete.
func (p *Pace) Delete(ctx context.Context, limit int, step func(limit int) (int, error)) (n int, err error) {
	for n < limit {
		if err := p.rest(ctx); err != nil {
			return n, err
		}
		most, begun := min(Step, limit-n), time.Now()
		k, err := step(most)
		if k > 0 {
			p.stepped(begun)
		}
		n += k
		if err != nil || k < most {
			return n, err
		}
	}
	return n, nil
}

// Swept notes whether a sweep left records that it could have deleted.
func (p *Pace) Swept(left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !left:
		p.behind = time.Time{}
	case p.behind.IsZero():
		p.behind = time.Now()
	}
}

func (p *Pace) stepped(begun time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = time.Now()
	p.took = p.ended.Sub(begun)
}

func (p *Pace) rest(ctx context.Context) error {
	p.mu.Lock()
	hurry := !p.behind.IsZero() && time.Since(p.behind) > patience
	left := min(p.took, maxPause) - time.Since(p.ended)
	p.mu.Unlock()
	if hurry || left <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
