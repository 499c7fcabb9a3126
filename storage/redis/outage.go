package redis

import (
	"cmp"
	"sync"

	"github.com/redis/go-redis/v9"
)

// failures are what has failed of the calls of a cycle on a cluster, the first of each sort.
type failures struct {
	divided error // a queue was taken for whole, so the cycle has to be made again
	settle  error // of a part with outcomes, which may have had their effect or not
	claim   error
	tags    map[tag]error
}

// note notes what came of the call of a part.
func (c *cycle) note(p part, err error) {
	f := &c.failures
	if err == nil {
		c.s.outages.end(p.tag)
		return
	}
	if f.tags == nil {
		f.tags = make(map[tag]error)
	}
	f.tags[p.tag] = cmp.Or(f.tags[p.tag], err)
	switch {
	case redis.HasErrorPrefix(err, sealed):
		f.divided = cmp.Or(f.divided, err)
	case len(p.places) > 0:
		f.settle = cmp.Or(f.settle, err)
	default:
		f.claim = cmp.Or(f.claim, err)
	}
}

// sound is parts without those that have failed.
func (c *cycle) sound(parts []part) []part {
	if len(c.failures.tags) == 0 {
		return parts
	}
	var some []part
	for _, p := range parts {
		if c.failures.tags[p.tag] == nil {
			some = append(some, p)
		}
	}
	return some
}

// failed is the error of a cycle on a cluster. That of outcomes must be told, with the jobs
// that came; that of a claim counts only if no jobs came.
func (c *cycle) failed() error {
	f := &c.failures
	if err := cmp.Or(f.divided, f.settle); err != nil || len(c.got.Jobs) == 0 {
		return cmp.Or(err, f.claim)
	}
	for t, err := range f.tags {
		if c.s.outages.begin(t) {
			c.s.log.Warn("pawl/redis: claims go on without a queue, or a shard of it, that fails", "queue", t.queue(), "err", err)
		}
	}
	return nil
}

// outages are the tags that claims go on without, so that each is told once.
type outages struct {
	mu   sync.Mutex
	tags map[tag]bool
}

// begin reports whether the outage is new.
func (o *outages) begin(t tag) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.tags[t] {
		return false
	}
	if o.tags == nil {
		o.tags = make(map[tag]bool)
	}
	o.tags[t] = true
	return true
}

func (o *outages) end(t tag) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.tags, t)
}
