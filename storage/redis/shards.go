package redis

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/text"
)

// MaxShards is the most shards of a queue. A claim that finds nothing asks each.
const MaxShards = 64

// shardMark stands between a queue and the number of a shard. No name has it.
const shardMark = "#"

// stay is for how many claims a Store stays with one shard, so that most settles
// go in one call with the next claim.
const stay = 4

// sealed is how scripts say that a queue has been divided.
const sealed = "PAWLSHARDS"

// A tag is the hash tag of keys: the name of a queue, or "mail#0" for the first
// shard of a divided one. It is what scripts call a queue, and all of it is in one
// slot of a cluster.
//
// A job is in the shard of its unique key or else of its ID, both of which an
// Enqueue that is repeated has again. The claimer gets the shard as the Locator of
// the Ref, from 1, so that a settle needs no look-up. The fence can't carry it: it
// is a time in microseconds and leaves two bits of what Lua's numbers hold.
type tag string

func tagOf(queue string, shard int) tag {
	return tag(queue + shardMark + strconv.Itoa(shard))
}

// refTag is where a claim is whose Locator is right.
func refTag(ref pawl.Ref) tag {
	if ref.Locator == 0 {
		return tag(ref.Queue)
	}
	return tagOf(ref.Queue, int(ref.Locator)-1)
}

// split returns the queue of a tag, and the Locator of what is in it.
func (t tag) split() (queue string, locator int64) {
	queue, shard, divided := strings.Cut(string(t), shardMark)
	if !divided {
		return queue, 0
	}
	n, err := strconv.Atoi(shard)
	if err != nil {
		return queue, 0
	}
	return queue, int64(n) + 1
}

func (t tag) queue() string {
	queue, _ := t.split()
	return queue
}

// shards know which queues are divided. It is recorded in what the queue's own tag
// has and never changes; a Store that does not know it is told by the first script
// that it runs there.
type shards struct {
	mu    sync.RWMutex
	n     map[string]int
	turns map[string]*turn
	// place overrides where jobs go, in tests.
	place func(queue string, shards int) int
}

// A turn is the shard that claims begin with.
type turn struct{ shard, claims int }

func (d *shards) learn(queue string, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n == nil {
		d.n, d.turns = make(map[string]int), make(map[string]*turn)
	}
	d.n[queue], d.turns[queue] = n, new(turn)
}

// of is how many shards a queue has; 0 means that it is not divided.
func (d *shards) of(queue string) int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.n[queue]
}

// tags lists those of a queue.
func (d *shards) tags(queue string) []tag {
	n := d.of(queue)
	if n == 0 {
		return []tag{tag(queue)}
	}
	all := make([]tag, n)
	for i := range all {
		all[i] = tagOf(queue, i)
	}
	return all
}

// inTurn lists the tags in the order in which a claim asks them. Each comes first
// in its turn, so that none is passed over however full the others are.
func (d *shards) inTurn(queue string) []tag {
	all := d.tags(queue)
	if len(all) == 1 {
		return all
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.turns[queue]
	if t.claims++; t.claims > stay {
		t.shard, t.claims = t.shard+1, 1
	}
	at := t.shard % len(all)
	return slices.Concat(all[at:], all[:at])
}

// heard lets the next claim begin with a shard that has jobs.
func (d *shards) heard(t tag) {
	queue, locator := t.split()
	d.mu.Lock()
	defer d.mu.Unlock()
	if turn := d.turns[queue]; turn != nil && locator > 0 {
		turn.shard, turn.claims = int(locator)-1, 0
	}
}

// home is where a request belongs.
func (d *shards) home(queue, key string, id pawl.ID) tag {
	n := d.of(queue)
	if n == 0 {
		return tag(queue)
	}
	if d.place != nil {
		return tagOf(queue, d.place(queue, n))
	}
	return tagOf(queue, shardOf(key, id, n))
}

// shardOf is in which of n shards a job is.
func shardOf(key string, id pawl.ID, n int) int {
	h := fnv.New64a()
	if key != "" {
		_, _ = h.Write([]byte(key)) // it never fails
	} else {
		_, _ = h.Write(id[:])
	}
	sum := h.Sum64()
	return int((sum ^ sum>>32) % uint64(n))
}

// refTags says where n claims are. Only those of divided queues whose Locator is
// missing have to be looked for.
func (s *Store) refTags(ctx context.Context, n int, refOf func(i int) pawl.Ref) ([]tag, error) {
	tags := make([]tag, n)
	var astray []int
	for i := range tags {
		ref := refOf(i)
		shards := s.shards.of(ref.Queue)
		switch {
		case shards == 0:
			tags[i] = tag(ref.Queue)
		case ref.Locator >= 1 && ref.Locator <= int64(shards):
			tags[i] = tagOf(ref.Queue, int(ref.Locator)-1)
		default:
			astray = append(astray, i)
		}
	}
	if len(astray) == 0 {
		return tags, nil
	}
	return tags, s.find(ctx, astray, refOf, tags)
}

// find looks for the jobs at some places in all shards of their queues.
func (s *Store) find(ctx context.Context, places []int, refOf func(i int) pawl.Ref, tags []tag) error {
	var looks []*redis.BoolCmd
	err := s.pipelined(ctx, func(p redis.Pipeliner) {
		for _, i := range places {
			ref := refOf(i)
			for _, t := range s.shards.tags(ref.Queue) {
				looks = append(looks, p.HExists(ctx, s.names.key(t, bodySuffix), string(ref.ID[:])))
			}
		}
	})
	if err != nil {
		return err
	}
	for _, i := range places {
		ref := refOf(i)
		tags[i] = s.shards.home(ref.Queue, "", ref.ID)
		for _, t := range s.shards.tags(ref.Queue) {
			if looks[0].Val() {
				tags[i] = t
			}
			looks = looks[1:]
		}
	}
	return nil
}

// search calls f with the tags of the asked queues, and the places of the IDs that
// may be there, until all are found. A job without a unique key is found at once.
func (s *Store) search(ctx context.Context, queue string, ids []pawl.ID, found func(i int) bool, f func(t tag, places []int) error) error {
	queues, err := s.asked(ctx, queue)
	if err != nil {
		return err
	}
	missing := make([]int, len(ids))
	for i := range missing {
		missing[i] = i
	}
	for _, queue := range queues {
		err := s.searchQueue(queue, ids, missing, found, f)
		if s.divided(ctx, err) { // it was taken for whole, so this was one call that did nothing
			err = s.searchQueue(queue, ids, missing, found, f)
		}
		if err != nil {
			return err
		}
		missing = slices.DeleteFunc(missing, found)
	}
	return nil
}

// searchQueue calls f with the tags of one queue: first with those where the missing IDs
// belong, then with the others.
func (s *Store) searchQueue(queue string, ids []pawl.ID, missing []int, found func(i int) bool, f func(t tag, places []int) error) error {
	home := func(i int) tag { return s.shards.home(queue, "", ids[i]) }
	for _, sec := range sections(len(missing), func(i int) tag { return home(missing[i]) }) {
		for k, i := range sec.places {
			sec.places[k] = missing[i]
		}
		if err := f(sec.tag, sec.places); err != nil {
			return err
		}
	}
	for _, t := range s.shards.tags(queue) {
		away := slices.DeleteFunc(slices.Clone(missing), func(i int) bool { return found(i) || home(i) == t })
		if len(away) == 0 {
			continue
		}
		if err := f(t, away); err != nil {
			return err
		}
	}
	return nil
}

// divide divides the queues that Options names, and learns of all that are divided.
func (s *Store) divide(ctx context.Context, want map[string]int) error {
	meta, err := await(ctx, func() (map[string]string, error) { return s.client.HGetAll(ctx, s.names.meta).Result() })
	if err != nil {
		return err
	}
	for field, value := range meta {
		queue, ok := strings.CutPrefix(field, shardsField)
		n, err := strconv.Atoi(value)
		if ok && err == nil && n > 0 {
			s.shards.learn(queue, n)
		}
	}
	for _, queue := range slices.Sorted(maps.Keys(want)) {
		if err := s.divideQueue(ctx, queue, want[queue]); err != nil {
			return err
		}
	}
	return nil
}

// shardsField begins the fields of the meta hash with numbers of shards.
const shardsField = "shards:"

// divideQueue divides a queue that holds nothing yet.
func (s *Store) divideQueue(ctx context.Context, queue string, n int) error {
	if n < 2 || n > MaxShards || !text.IsName(queue, pawl.MaxNameLen) {
		return &pawl.InvalidError{Field: "Shards", Limit: fmt.Sprintf("2 to %d, of queues with a valid name", MaxShards)}
	}
	m := s.begin(1)
	m.field("shards", int64(n))
	reply, err := s.run(ctx, s.scripts.divide, s.names.queue(tag(queue)), []byte(*m))
	if err != nil {
		return err
	}
	switch have := number(reply); {
	case have < 0:
		return fmt.Errorf("%w: queue %q can't be divided while it holds jobs or is paused", ErrShards, queue)
	case have != int64(n):
		return fmt.Errorf("%w: queue %q has %d shards and can't get %d", ErrShards, queue, have, n)
	}
	if s.shards.of(queue) == n {
		return nil // that is recorded
	}
	return s.noteShards(ctx, queue, n)
}

// noteShards records what the queue's own tag says, for those who begin.
func (s *Store) noteShards(ctx context.Context, queue string, n int) error {
	s.shards.learn(queue, n)
	return s.enter(ctx, "HSET", s.names.meta, shardsField+queue, strconv.Itoa(n))
}

// divided reports whether err says that a queue was divided that this Store took
// for whole. It then knows.
func (s *Store) divided(ctx context.Context, err error) bool {
	var answer redis.Error
	if !errors.As(err, &answer) {
		return false
	}
	words := strings.Fields(answer.Error())
	if len(words) < 3 || words[0] != sealed {
		return false
	}
	n, err := strconv.Atoi(words[1])
	if err != nil || n < 2 || n > MaxShards {
		return false
	}
	_ = s.noteShards(ctx, words[2], n) // others find it out as this Store did
	return true
}
