package redis

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/excess"
)

// queuesPerSweep bounds a step of Sweep, in which the server does nothing else.
const queuesPerSweep = 50

// sweep is one call of Sweep.
type sweep struct {
	s     *Store
	spec  pawl.SweepSpec
	swept pawl.Swept
	most  map[tag]numbers // what shards keep
	empty []tag           // that hold nothing
}

// finals are the final states as the script has them, and the indexes that count them.
var finals = [3]struct {
	state  pawl.State
	suffix string
}{{pawl.Completed, doneSuffix}, {pawl.Buried, buriedSuffix}, {pawl.Canceled, canceledSuffix}}

// numbers are how many jobs of each of these are kept, 0 for all.
type numbers [len(finals)]int64

func mostOf(spec pawl.SweepSpec) (n numbers) {
	for i, b := range finals {
		n[i] = int64(excess.Most(spec, b.state))
	}
	return n
}

func (s *Store) sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	tokens, err := await(ctx, func() (map[string]string, error) { return s.client.HGetAll(ctx, s.names.register).Result() })
	if err != nil {
		return pawl.Swept{}, err
	}
	w := &sweep{s: s, spec: spec}
	var tags []tag
	for _, name := range slices.Sorted(maps.Keys(tokens)) {
		tags = append(tags, tag(name))
	}
	failed := cmp.Or(w.share(ctx, tags), w.each(ctx, s.inTurn(tags)))
	s.air(ctx, tags)
	for _, t := range w.empty {
		failed = cmp.Or(failed, s.forget(ctx, t, tokens[string(t)]))
	}
	return w.swept, failed
}

// inTurn begins with the tag that the last sweep has not come to, so that none is always
// behind those that fail or take long. The first sweep of a process begins anywhere, since
// there may be no second one.
func (s *Store) inTurn(tags []tag) []tag {
	if len(tags) == 0 {
		return nil
	}
	at := rand.IntN(len(tags))
	if next := s.sweepNext.Load(); next != nil {
		at, _ = slices.BinarySearch(tags, *next)
		at %= len(tags)
	}
	return slices.Concat(tags[at:], tags[:at])
}

// stopped notes that a sweep has come to the first n of some tags, whatever came of it. If
// these were all, the next one begins one further: limits are used up by those in front.
func (s *Store) stopped(tags []tag, n int) {
	if len(tags) == 0 {
		return
	}
	if n == len(tags) {
		n = 1
	}
	next := tags[n%len(tags)]
	s.sweepNext.Store(&next)
}

// each sweeps the tags. One that fails, maybe because its node is down, keeps no others from
// it. The error is the first one.
func (w *sweep) each(ctx context.Context, tags []tag) (failed error) {
	n := 0
	defer func() { w.s.stopped(tags, n) }()
	for some := range slices.Chunk(tags, queuesPerSweep) {
		for _, these := range calls(w.s, some) {
			if err := ctx.Err(); err != nil {
				return cmp.Or(failed, err)
			}
			err := w.run(ctx, these)
			n += len(these)
			failed = cmp.Or(failed, err)
			if err != nil && !w.s.cluster && !isAnswer(err) {
				return failed
			}
		}
	}
	return failed
}

// share divides each number among the shards of a queue by how many jobs each has,
// so that together they keep that many, and up to one a shard more.
func (w *sweep) share(ctx context.Context, tags []tag) error {
	w.most = make(map[tag]numbers)
	most := mostOf(w.spec)
	divided := slices.DeleteFunc(slices.Clone(tags), func(t tag) bool { return t.queue() == string(t) })
	if most == (numbers{}) || len(divided) == 0 {
		return nil
	}
	cards := make([][len(finals)]*redis.IntCmd, len(divided))
	if err := w.s.pipelined(ctx, func(p redis.Pipeliner) {
		for i, t := range divided {
			for k, b := range finals {
				cards[i][k] = p.ZCard(ctx, w.s.names.key(t, b.suffix))
			}
		}
	}); err != nil {
		for _, t := range divided {
			w.most[t] = numbers{} // all, since nobody knows how many there are
		}
		return err
	}
	total := make(map[string]numbers)
	for i, t := range divided {
		all := total[t.queue()]
		for k := range all {
			all[k] += cards[i][k].Val()
		}
		total[t.queue()] = all
	}
	for i, t := range divided {
		w.most[t] = most.part(cards[i], total[t.queue()])
	}
	return nil
}

// part is what of a number a shard with n of all jobs keeps.
func (most numbers) part(cards [len(finals)]*redis.IntCmd, all numbers) (part numbers) {
	for k, m := range most {
		if m > 0 {
			n, all := cards[k].Val(), max(all[k], 1)
			part[k] = max(1, (m*n+all-1)/all)
		}
	}
	return part
}

func (w *sweep) run(ctx context.Context, tags []tag) error {
	reply, err := w.s.run(ctx, w.s.scripts.sweep, w.s.names.queues(tags), []byte(*w.message(tags)))
	if err != nil {
		return err
	}
	l, err := items(reply, 10)
	if err != nil {
		return err
	}
	w.swept.Promoted, w.swept.Expired, w.swept.Purged = int(number(l[1])), int(number(l[2])), int(number(l[3]))
	w.swept.More = w.swept.More || number(l[4]) == 1
	if next := time.Duration(number(l[5])) * time.Microsecond; next > 0 && (w.swept.NextDue == 0 || next < w.swept.NextDue) {
		w.swept.NextDue = next
	}
	if w.swept.Rescued, err = appendRefs(w.swept.Rescued, tags, l[6]); err != nil {
		return err
	}
	if w.swept.Buried, err = appendRefs(w.swept.Buried, tags, l[7]); err != nil {
		return err
	}
	if n := number(l[9]); n > 0 {
		w.s.log.WarnContext(ctx, "pawl/redis: put right what something else than pawl has damaged", "records", n)
	}
	empty, err := items(l[8], len(tags))
	if err != nil {
		return err
	}
	for i, t := range tags {
		if number(empty[i]) == 1 {
			w.empty = append(w.empty, t)
		}
	}
	return nil
}

func (w *sweep) message(tags []tag) *message {
	m := w.s.begin(6)
	m.field("queues", int64(len(tags)))
	m.field("limit", int64(w.spec.Limit))
	m.field("retention", microseconds(w.spec.BuriedRetention))
	m.string("most")
	m.array(len(tags))
	for _, t := range tags {
		most, ok := w.most[t]
		if !ok {
			most = mostOf(w.spec)
		}
		m.array(len(most))
		for _, n := range most {
			m.int(n)
		}
	}
	m.string("seed")
	m.float(rand.Float64())
	m.string("before")
	m.array(4)
	m.int(int64(len(w.swept.Rescued) + len(w.swept.Buried)))
	m.int(int64(w.swept.Promoted))
	m.int(int64(w.swept.Expired))
	m.int(int64(w.swept.Purged))
	return m
}

// appendRefs reads claims, each as the number of its tag, ID and fence.
func appendRefs(refs []pawl.Ref, tags []tag, reply any) ([]pawl.Ref, error) {
	l, err := items(reply, 0)
	if err != nil {
		return nil, err
	}
	for _, entry := range l {
		e, err := items(entry, 3)
		if err != nil {
			return nil, err
		}
		id, err := parseID(e[1])
		n := int(number(e[0])) - 1
		if err != nil || n < 0 || n >= len(tags) {
			return nil, errReply
		}
		queue, locator := tags[n].split()
		refs = append(refs, pawl.Ref{Queue: queue, ID: id, Fence: number(e[2]), Locator: locator})
	}
	return refs, nil
}

// forget takes a tag that holds nothing from the register, unless somebody has
// entered it anew since its token was read.
func (s *Store) forget(ctx context.Context, t tag, token string) error {
	gone, err := s.run(ctx, s.scripts.forget, s.names.queue(t), []byte(*s.begin(0)))
	if err != nil || number(gone) == 0 {
		return err
	}
	_, err = s.run(ctx, s.scripts.unregister, []any{s.names.register}, string(t), token)
	return err
}
