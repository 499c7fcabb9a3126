package worker

import (
	"context"
	"time"
)

// callTimeout bounds a call of the storage, so that one that hangs is an error
// like others.
const callTimeout = 10 * time.Second

// A storageCall is one that has not returned.
type storageCall struct {
	what  string
	since instant
}

// calling returns the context of a call of the storage that may take up to d,
// and what is to be called when it has returned. Until then Health sees it, for
// a storage may ignore the end of the context.
func (p *Pool) calling(ctx context.Context, what string, d time.Duration) (_ context.Context, returned func()) {
	ctx, cancel := context.WithTimeout(ctx, d)
	c := &storageCall{what, p.now()}
	p.mu.Lock()
	p.calls[c] = true
	p.mu.Unlock()
	return ctx, func() {
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.calls, c)
	}
}

// longest returns since when the oldest call of each sort is under way. It is
// called with mu held.
func (p *Pool) longest() map[string]instant {
	since := make(map[string]instant)
	for c := range p.calls {
		if t, known := since[c.what]; !known || c.since < t {
			since[c.what] = c.since
		}
	}
	return since
}
