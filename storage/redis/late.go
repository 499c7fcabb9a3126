package redis

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

// A call whose context ends leaves what it has asked of the server behind. If that was
// a claim, jobs may come that nobody has: they are released, and need not wait for the
// ends of their leases. But the same claim may have been repeated meanwhile, and then
// its caller may have the same jobs. So nothing is released before all calls under a
// token have been answered, and none begins under it while that is being done.

// tokens are the claims under way.
type tokens struct {
	mu    sync.Mutex
	calls map[int64]*asked // by token
}

// asked are the calls of one token.
type asked struct {
	open     int               // calls without an answer, also those of callers that have left
	away     int               // callers that have left
	kept     map[pawl.Ref]bool // by callers, after others had left
	late     []pawl.Ref        // what came for those that had left
	released chan struct{}     // closed when late were; nil before that begins
}

// lateTime is how long a release of late jobs may take.
const lateTime = 10 * time.Second

// begin begins a call.
func (t *tokens) begin(ctx context.Context, token int64) error {
	for {
		wait := t.enter(token)
		if wait == nil {
			return nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// enter counts a call, or returns what to wait for before.
func (t *tokens) enter(token int64) (wait <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.calls[token]
	switch {
	case c == nil:
		if t.calls == nil {
			t.calls = make(map[int64]*asked)
		}
		c = &asked{}
		t.calls[token] = c
	case c.released != nil:
		return c.released
	}
	c.open++
	return nil
}

// leave counts a call whose caller leaves, besides the caller's own.
func (t *tokens) leave(token int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.calls[token]
	if c.open, c.away = c.open+1, c.away+1; c.kept == nil {
		c.kept = make(map[pawl.Ref]bool)
	}
}

// end takes in what a call has brought, its caller or nobody. Jobs that nobody has
// after the last one are released.
func (s *Store) end(token int64, kept, late []*pawl.Job) {
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	c := s.tokens.calls[token]
	c.open--
	if c.away > 0 {
		for _, j := range kept {
			c.kept[j.Ref] = true
		}
	}
	for _, j := range late {
		c.late = append(c.late, j.Ref)
	}
	switch {
	case c.open > 0:
	case len(c.late) == 0:
		delete(s.tokens.calls, token)
	default:
		c.released = make(chan struct{})
		go s.release(token, c)
	}
}

// release releases the late jobs of a token that no caller has.
func (s *Store) release(token int64, c *asked) {
	refs := slices.DeleteFunc(c.late, func(r pawl.Ref) bool { return c.kept[r] })
	outcomes := make([]pawl.Outcome, 0, len(refs))
	for _, ref := range refs {
		outcomes = append(outcomes, pawl.Outcome{Ref: ref, Verb: pawl.Release})
	}
	ctx, cancel := context.WithTimeout(context.Background(), lateTime)
	defer cancel()
	for some := range slices.Chunk(outcomes, pawl.MaxStep) {
		_, _ = s.Settle(ctx, some) // should it fail, the leases end by themselves
	}
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	delete(s.tokens.calls, token)
	close(c.released)
}

// abandon takes over a call of the script whose caller leaves.
func (c *cycle) abandon(parts []part, reply func() (any, error)) {
	token := c.spec.Token
	one := &cycle{s: c.s, spec: c.spec, asks: make([]int, len(c.asks))}
	c.s.tokens.leave(token)
	go func() {
		if r, err := reply(); err == nil {
			_, _ = one.read(parts, r)
		}
		c.s.end(token, nil, one.got.Jobs)
	}()
}
