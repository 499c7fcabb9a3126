package worker

import (
	"context"
	"time"
)

// An outage is a row of failed calls of one sort.
type outage struct {
	tries int
	since instant
	until instant // when to try again
}

const (
	backoffBase = 20 * time.Millisecond
	backoffMost = 5 * time.Second
)

// backoff returns how long to wait after the nth failure in a row.
func backoff(n int) time.Duration {
	if n > 8 { // 20 ms · 2⁸ is beyond the most
		return backoffMost
	}
	return min(backoffBase<<max(n-1, 0), backoffMost)
}

// failed notes a failed call. The first of an outage is logged.
func (p *Pool) failed(o *outage, what string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failedLocked(o, what, err)
}

func (p *Pool) failedLocked(o *outage, what string, err error) {
	now := p.now()
	if o.tries == 0 {
		o.since = now
		if _, known := p.bad[what]; !known {
			p.bad[what] = now
			p.logLater(levelOutage, "worker: storage fails to "+what+", trying on", "err", err)
		}
	}
	o.tries++
	o.until = now.add(jitter(backoff(o.tries)))
}

// recovered notes a call that went well.
func (p *Pool) recovered(o *outage, what string) {
	if o.tries == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recoveredLocked(o, what)
}

func (p *Pool) recoveredLocked(o *outage, what string) {
	if o.tries == 0 {
		return
	}
	if _, known := p.bad[what]; known {
		delete(p.bad, what)
		p.logLater(levelRecovered, "worker: storage can "+what+" again",
			"after", p.now().sub(o.since), "failures", o.tries)
	}
	*o = outage{}
}

// endLocked ends an outage because there is nothing left to try, so that a pool
// that has nothing to do is not ill forever.
func (p *Pool) endLocked(o *outage, what string) {
	if o.tries > 0 {
		delete(p.bad, what)
		*o = outage{}
	}
}

// delay returns how long to wait before the next try.
func (p *Pool) delay(o *outage) time.Duration { return o.until.sub(p.now()) }

// sleep waits for d, or until there is something in wake, which may be nil. It
// reports false if ctx ended.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	var expired <-chan time.Time
	if d < time.Duration(never)/2 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-expired:
	}
	return ctx.Err() == nil
}
