package redis

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/text"
)

// How a claim is made, as lua/cycle.lua numbers it.
const (
	claimNothing = iota
	claimFresh
	claimAgain     // what runs under the token, else new jobs
	claimOnlyAgain // what runs under the token
	claimLook      // none, but what is ready is counted
)

// cycle is one Settle, Claim or both.
type cycle struct {
	s        *Store
	outcomes []pawl.Outcome
	spec     pawl.ClaimSpec
	asks     []int // jobs to claim still, of each asked queue
	lost     []int // places of outcomes
	got      pawl.Claimed
	damaged  []pawl.Outcome
	ready    int // jobs that a look found
	spare    int // jobs that are asked for besides those of asks
	failures failures
}

// part is what one call of the script has for one tag.
type part struct {
	section
	ask int // place of its queue in the spec; noAsk if nothing is asked of it
}

const noAsk = -1

func (s *Store) settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	c := &cycle{s: s, outcomes: outcomes}
	parts, err := c.parts(ctx)
	if err != nil {
		return nil, err
	}
	if s.cluster {
		c.settleApart(ctx, parts)
		err = c.failed()
	} else if len(parts) > 0 {
		err = c.run(ctx, parts, claimNothing, 0)
	}
	return c.lostRefs(), err
}

func (s *Store) cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) (*cycle, error) {
	for i := range spec.Queues {
		if err := checkQueue(spec.Queues[i].Queue); err != nil {
			return &cycle{}, err
		}
	}
	c := &cycle{s: s, outcomes: outcomes, spec: spec}
	parts, err := c.parts(ctx)
	if err != nil {
		return c, err
	}
	defer c.finish(ctx)
	if s.cluster {
		c.apart(ctx, parts)
		return c, c.failed()
	}
	if s.watch.name() != "" {
		now := s.time()
		for i := range spec.Queues {
			for _, t := range s.shards.tags(spec.Queues[i].Queue) {
				s.rooms.enter(t, spec.Worker, now)
			}
		}
	}
	how := claimFresh
	if spec.Repeat {
		how = claimAgain
	}
	return c, c.run(ctx, parts, how, spec.Max)
}

// parts lists the tags of the asked queues in order, and then others with outcomes.
func (c *cycle) parts(ctx context.Context) ([]part, error) {
	tags, err := c.s.refTags(ctx, len(c.outcomes), func(i int) pawl.Ref { return c.outcomes[i].Ref })
	if err != nil {
		return nil, err
	}
	var parts []part
	for i, ask := range c.spec.Queues {
		c.asks = append(c.asks, ask.Max)
		for _, t := range c.s.shards.inTurn(ask.Queue) {
			parts = append(parts, part{section{tag: t}, i})
		}
	}
	for _, sec := range sections(len(tags), func(i int) tag { return tags[i] }) {
		i := slices.IndexFunc(parts, func(p part) bool { return p.tag == sec.tag })
		if i < 0 {
			parts = append(parts, part{sec, noAsk})
			continue
		}
		parts[i].places = sec.places
	}
	return parts, nil
}

// finish ends what has claimed jobs.
func (c *cycle) finish(ctx context.Context) {
	var tags []tag
	for i, j := range c.got.Jobs {
		if i == 0 || j.Queue != c.got.Jobs[i-1].Queue || j.Locator != c.got.Jobs[i-1].Locator {
			tags = append(tags, refTag(j.Ref))
		}
	}
	c.s.touch(ctx, tags)
	c.order()
	c.buryDamaged(ctx)
}

// buryDamaged buries claimed jobs of which nobody knows what they are. Should that fail,
// it is done when their leases are over and they are claimed again.
func (c *cycle) buryDamaged(ctx context.Context) {
	if len(c.damaged) == 0 {
		return
	}
	for i := range c.damaged {
		c.warn(c.damaged[i].Ref)
	}
	_, _ = c.s.settle(ctx, c.damaged) // see above
}

func (c *cycle) warn(ref pawl.Ref) {
	c.s.log.Warn("pawl/redis: a job was damaged by something else than pawl, and is buried", "queue", ref.Queue, "id", ref.ID)
}

// order puts jobs of the shards of a queue, which follow one another, in the order
// that one tag gives by itself.
func (c *cycle) order() {
	for from := 0; from < len(c.got.Jobs); {
		queue, to := c.got.Jobs[from].Queue, from+1
		for to < len(c.got.Jobs) && c.got.Jobs[to].Queue == queue {
			to++
		}
		if c.s.shards.of(queue) > 0 {
			slices.SortStableFunc(c.got.Jobs[from:to], sooner)
		}
		from = to
	}
}

func sooner(a, b *pawl.Job) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), a.RunAt.Compare(b.RunAt))
}

// run calls the script until all that is due under the tags has been made ready,
// which takes more than one call only if very much is due, and until jobs that are
// damaged have taken no other's place. Should a further call fail, jobs that have come are
// returned: their leases run.
func (c *cycle) run(ctx context.Context, parts []part, how, left int) error {
	tags := make([]tag, len(parts))
	for i, p := range parts {
		tags[i] = p.tag
	}
	keys := c.s.names.queues(tags)
	parts, err := c.unload(ctx, keys, parts)
	if err != nil {
		return err
	}
	abandon := func(wait func() (any, error)) {
		if how != claimNothing {
			c.abandon(parts, wait)
		}
	}
	came := false
	for {
		reply, err := c.s.runOr(ctx, abandon, c.s.scripts.cycle, keys, []byte(*c.message(parts, how, left)))
		if err != nil {
			if came {
				c.got.NextDue = time.Microsecond // there may be more
				return nil
			}
			return err
		}
		before, damaged := len(c.got.Jobs), len(c.damaged)
		again, err := c.read(parts, reply)
		if err != nil || !again && (how != claimFresh || len(c.damaged) == damaged) {
			return err
		}
		came = came || len(c.got.Jobs) > before
		if how != claimLook {
			how = claimFresh
		}
		parts, left = settled(parts), left-(len(c.got.Jobs)-before)
	}
}

// settled is parts without their outcomes.
func settled(parts []part) []part {
	parts = slices.Clone(parts)
	for i := range parts {
		parts[i].places = nil
	}
	return parts
}

func (c *cycle) read(parts []part, reply any) (again bool, err error) {
	l, err := items(reply, 7)
	if err != nil {
		return false, err
	}
	lost, err := items(l[0], 0)
	if err != nil {
		return false, err
	}
	for _, place := range lost {
		c.lost = append(c.lost, int(number(place)))
	}
	jobs, err := items(l[1], 0)
	if err != nil {
		return false, err
	}
	for ; len(jobs) >= 6; jobs = jobs[6:] {
		if err := c.readJob(parts, jobs, number(l[5])); err != nil {
			return false, err
		}
	}
	if err := c.readWrecked(parts, l[6]); err != nil {
		return false, err
	}
	c.got.NextDue, c.ready = time.Duration(number(l[2]))*time.Microsecond, int(number(l[4]))
	return number(l[3]) == 1, nil
}

// readWrecked reads which jobs had records that could not be read. The script has buried them.
func (c *cycle) readWrecked(parts []part, reply any) error {
	l, err := items(reply, 0)
	if err != nil {
		return err
	}
	for ; len(l) >= 2; l = l[2:] {
		n := int(number(l[0])) - 1
		id, err := parseID(l[1])
		if err != nil || n < 0 || n >= len(parts) {
			return errReply
		}
		c.warn(pawl.Ref{Queue: parts[n].tag.queue(), ID: id})
	}
	return nil
}

// readJob reads a job that was claimed now. Of most only the fence is told.
func (c *cycle) readJob(parts []part, l []any, now int64) error {
	n := int(number(l[0])) - 1
	if n < 0 || n >= len(parts) {
		return errReply
	}
	id, err := parseID(l[1])
	if err != nil {
		return err
	}
	j, err := (&stored{state: str(l[2]), body: str(l[3]), failures: str(l[4]), progress: str(l[5])}).job(parts[n].tag, id)
	if fence := number(l[2]); fence > 0 {
		c.begin(j, parts[n].tag, fence, toTime(now))
	}
	if err != nil {
		c.damaged = append(c.damaged, pawl.Outcome{Ref: j.Ref, Verb: pawl.Bury, Error: err.Error()})
		return nil
	}
	c.got.Jobs = append(c.got.Jobs, j)
	if ask := parts[n].ask; ask != noAsk {
		c.asks[ask]--
	}
	return nil
}

// begin makes a job one that runs for the first time.
func (c *cycle) begin(j *pawl.Job, t tag, fence int64, now time.Time) {
	_, j.Locator = t.split()
	j.State, j.Fence, j.Attempt, j.WorkerID = pawl.Running, fence, 1, c.spec.Worker
	j.StartedAt, j.ClaimedAt, j.LeaseUntil = now, now, now.Add(toDuration(microseconds(cmp.Or(j.Lease, c.spec.Lease))))
}

// lostRefs are the refs that were lost, in order.
func (c *cycle) lostRefs() (refs []pawl.Ref) {
	slices.Sort(c.lost)
	for _, place := range c.lost {
		if place >= 0 && place < len(c.outcomes) {
			refs = append(refs, c.outcomes[place].Ref)
		}
	}
	return refs
}

func (c *cycle) message(parts []part, how, left int) *message {
	m := c.s.begin(9)
	m.field("how", int64(how))
	m.field("max", int64(left))
	m.field("spare", int64(c.spare))
	m.field("lease", microseconds(c.spec.Lease))
	m.string("token")
	m.bytes(binary.BigEndian.AppendUint64(nil, uint64(c.spec.Token)))
	m.string("worker")
	m.string(c.spec.Worker)
	m.string("store")
	m.string(c.s.watch.name())
	m.string("asks")
	m.array(len(c.asks))
	for _, n := range c.asks {
		m.int(int64(max(n, 0)))
	}
	m.string("queues")
	m.array(len(parts))
	for _, p := range parts {
		m.object(2)
		m.field("ask", int64(p.ask)+1)
		m.string("outcomes")
		m.array(len(p.places))
		for _, place := range p.places {
			appendOutcome(m, place, &c.outcomes[place])
		}
	}
	return m
}

// noPriority is beyond all priorities.
const noPriority = 5000

// appendOutcome writes the fields of an outcome, in the order of lua/cycle.lua.
func appendOutcome(m *message, place int, o *pawl.Outcome) {
	plain := o.Verb == pawl.Ack && len(o.Result) == 0 && !o.Repeat
	if plain {
		m.array(4)
	} else {
		m.array(9)
	}
	m.int(int64(place))
	m.bytes(o.Ref.ID[:])
	m.int(fence(o.Ref.Fence))
	m.int(int64(o.Verb))
	if plain {
		return
	}
	m.int(microseconds(max(o.Delay, 0)))
	if o.Priority != nil {
		m.int(int64(*o.Priority))
	} else {
		m.int(noPriority)
	}
	switch o.Verb {
	case pawl.Ack:
		m.bytes(o.Result)
		m.string("")
	case pawl.Nack, pawl.Bury:
		m.string(text.Clean(o.Error, pawl.MaxErrorText))
		m.string(text.Clean(o.Stack, pawl.MaxErrorText))
	default:
		m.string("")
		m.string("")
	}
	m.flag(o.Repeat)
}
