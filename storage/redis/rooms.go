package redis

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// rooms are the places where scripts may have noted that a claimer of this Store would
// take more. If one is forgotten, Sweep takes it away when this Store listens no more.
type rooms struct {
	mu    sync.Mutex
	all   recent[room]
	aired time.Time // when names of others were last looked at
}

type room struct {
	tag    tag
	worker string
}

func (r *rooms) enter(t tag, worker string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all.note(room{t, worker}, now)
}

// leave reports whether the claimer had room there.
func (r *rooms) leave(t tag, worker string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, had := r.all.at[room{t, worker}]
	delete(r.all.at, room{t, worker})
	return had
}

// empty returns all rooms, of which then none is left.
func (r *rooms) empty() map[tag][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[tag][]string)
	for one := range r.all.at {
		all[one.tag] = append(all[one.tag], one.worker)
	}
	r.all.at = nil
	return all
}

// stale reports whether names of others should be looked at again.
func (r *rooms) stale(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.aired.IsZero() && !now.Before(r.aired) && now.Sub(r.aired) < airEvery {
		return false
	}
	r.aired = now
	return true
}

const (
	airEvery    = 10 * time.Second
	namesPerAir = 200 // in one queue
	// goodbye is how long Close waits for the server, besides the client's own timeouts.
	goodbye = time.Second
)

// leaveRooms takes the claimers of this Store from those with room. What fails here, Sweep
// makes up for.
func (s *Store) leaveRooms() {
	all := s.rooms.empty()
	if len(all) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	_ = s.pipelined(ctx, func(p redis.Pipeliner) {
		for t, workers := range all {
			for i := range workers {
				workers[i] = s.watch.self + " " + workers[i]
			}
			p.HDel(ctx, s.names.key(t, idleSuffix), workers...)
		}
	})
}

// air takes claimers from those with room whose Stores do not listen any more: their
// processes died. Without it each of them could cost a wake-up. What fails is left for the
// next time.
func (s *Store) air(ctx context.Context, tags []tag) {
	if len(tags) == 0 || !s.rooms.stale(s.time()) {
		return
	}
	fields := make([]*redis.StringSliceCmd, len(tags))
	if err := s.pipelined(ctx, func(p redis.Pipeliner) {
		for i, t := range tags {
			fields[i] = p.HRandField(ctx, s.names.key(t, idleSuffix), namesPerAir)
		}
	}); err != nil {
		return
	}
	heard := make(map[string]bool) // by Store
	for _, f := range fields {
		for _, field := range f.Val() {
			heard[storeOf(field)] = false
		}
	}
	if s.hear(ctx, heard) != nil {
		return
	}
	_ = s.pipelined(ctx, func(p redis.Pipeliner) {
		for i, f := range fields {
			for _, field := range f.Val() {
				if !heard[storeOf(field)] {
					p.HDel(ctx, s.names.key(tags[i], idleSuffix), field)
				}
			}
		}
	})
}

// storeOf is the Store of a claimer with room.
func storeOf(field string) string {
	store, _, _ := strings.Cut(field, " ")
	return store
}

// hear finds out which Stores listen. On a cluster they may do so on any node.
func (s *Store) hear(ctx context.Context, heard map[string]bool) error {
	if len(heard) == 0 {
		return nil
	}
	channels := make([]string, 0, len(heard))
	for store := range heard {
		channels = append(channels, s.names.channel+":"+store)
	}
	var mu sync.Mutex
	ask := func(ctx context.Context, one redis.UniversalClient) error {
		n, err := await(ctx, func() (map[string]int64, error) { return one.PubSubNumSub(ctx, channels...).Result() })
		mu.Lock()
		defer mu.Unlock()
		for channel, listeners := range n {
			if listeners > 0 {
				heard[strings.TrimPrefix(channel, s.names.channel+":")] = true
			}
		}
		return err
	}
	if c, ok := s.client.(*redis.ClusterClient); ok {
		return c.ForEachShard(ctx, func(ctx context.Context, one *redis.Client) error { return ask(ctx, one) })
	}
	return ask(ctx, s.client)
}
