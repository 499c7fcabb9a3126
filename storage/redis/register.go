package redis

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The register is one key, on one node of a cluster, that has the tag of each queue that
// holds something; sweeps and counts of all queues go by it. The first job of a queue
// enters it, and its keys have a mark that it is there. A failover, a loss of power or an
// eviction can take the entry and leave the mark, so each Store also enters the tags that
// it works on when it first meets them, and then again and again.

// registerEvery is how long a Store takes for granted that a tag is in the register.
const registerEvery = time.Minute

// touched is when the Store has last entered each tag.
type touched struct {
	mu   sync.Mutex
	tags recent[tag]
}

// recent is when things were last noted. Where programs give queues ever new names, those that
// were not noted for long are forgotten.
type recent[K comparable] struct {
	at   map[K]time.Time
	many int // is twice what was left when it last forgot
}

func (r *recent[K]) note(k K, t time.Time) {
	if r.at == nil {
		r.at = make(map[K]time.Time)
	}
	if len(r.at) >= max(r.many, maxKnown) {
		maps.DeleteFunc(r.at, func(_ K, at time.Time) bool { return isOld(at, t) })
		r.many = 2 * len(r.at)
	}
	r.at[k] = t
}

// isOld reports whether at t a time is too long ago, or ahead since the clock was set back.
func isOld(at, t time.Time) bool { return t.Before(at) || t.Sub(at) >= registerEvery }

// due returns those of the tags that should be entered at t.
func (d *touched) due(t time.Time, tags []tag) (due []tag) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range tags {
		if at, ok := d.tags.at[one]; !ok || isOld(at, t) {
			d.tags.note(one, t)
			due = append(due, one)
		}
	}
	return due
}

// touch enters tags that hold something, unless that was done of late. A failure does not
// matter to the call that did its work before: a later one tries again.
func (s *Store) touch(ctx context.Context, tags []tag) {
	if ctx.Err() != nil {
		return
	}
	if due := s.touched.due(s.time(), tags); len(due) > 0 {
		_ = s.enterTags(ctx, "HSETNX", due...) // see above
	}
}

// register enters a tag in the register. The random value keeps those who find
// the queue empty from taking it out again.
func (s *Store) register(ctx context.Context, t tag) error { return s.enterTags(ctx, "HSET", t) }

func (s *Store) enterTags(ctx context.Context, command string, tags ...tag) error {
	pairs := make([]string, 0, 2*len(tags))
	for _, t := range tags {
		pairs = append(pairs, string(t), strconv.FormatUint(rand.Uint64(), 36))
	}
	return s.enter(ctx, command, s.names.register, pairs...)
}

// enter sets fields of a hash, also while the server's memory is full: who is new must
// be able to make room.
func (s *Store) enter(ctx context.Context, command, key string, pairs ...string) error {
	args := []any{command}
	for _, p := range pairs {
		args = append(args, p)
	}
	sc, keys := s.scripts.enter, []string{key}
	_, err := await(ctx, func() (any, error) {
		reply, err := s.client.EvalSha(ctx, sc.sha, keys, args...).Result() // the client may repeat it
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			reply, err = s.client.Eval(ctx, sc.source, keys, args...).Result()
		}
		return reply, err
	})
	if err != nil {
		s.unreachable(ctx, err)
	}
	return err
}

// registered lists the queues of the register by name.
func (s *Store) registered(ctx context.Context) ([]string, error) {
	queues, err := await(ctx, func() ([]string, error) { return s.client.HKeys(ctx, s.names.register).Result() })
	for i, name := range queues {
		queues[i] = tag(name).queue()
	}
	slices.Sort(queues)
	return slices.Compact(queues), err
}
