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
	behind time.Time // since when there has been more than the sweeps delete
}

// Delete calls step, which deletes up to so many records and returns their number,
// until it has deleted limit or there are no more. After each step but the last it
// rests for as long as that took.
func (p *Pace) Delete(ctx context.Context, limit int, step func(limit int) (int, error)) (n int, err error) {
	for n < limit {
		most, begun := min(Step, limit-n), time.Now()
		k, err := step(most)
		n += k
		if err != nil || k < most || n == limit {
			return n, err
		}
		if err := p.rest(ctx, time.Since(begun)); err != nil {
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

func (p *Pace) rest(ctx context.Context, d time.Duration) error {
	p.mu.Lock()
	hurry := !p.behind.IsZero() && time.Since(p.behind) > patience
	p.mu.Unlock()
	if hurry {
		return ctx.Err()
	}
	t := time.NewTimer(min(d, maxPause))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
