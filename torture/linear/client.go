package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
)

// A client makes calls, one after the other.
type client struct {
	h      *history
	number int
	s      pawl.Storage
	rnd    *rand.Rand
}

// An operation is a call and its answer.
type operation struct {
	call
	reply
}

// made numbers calls, so that parts of one can be told from others.
var made atomic.Int64

// step makes one call.
func (c *client) step(ctx context.Context) error {
	now := call{now: c.h.s.Clock.Now().UnixMicro(), made: made.Add(1)}
	switch n := c.rnd.IntN(100); {
	case n < 22:
		return c.enqueue(ctx, now)
	case n < 47:
		return c.claim(ctx, now)
	case n < 69:
		return c.settle(ctx, now)
	case n < 77:
		return c.extend(ctx, now)
	case n < 85:
		return c.sweep(ctx, now)
	case n < 91:
		return c.get(ctx, now)
	default:
		return c.change(ctx, now)
	}
}

func (c *client) enqueue(ctx context.Context, now call) error {
	reqs := make([]*pawl.Request, 1+c.rnd.IntN(4)/3)
	now.verb = enqueue
	now.delay = int64(c.rnd.IntN(3)/2) * delay.Microseconds()
	for i := range reqs {
		j := c.rnd.IntN(numJobs)
		now.jobs = append(now.jobs, j)
		reqs[i] = c.h.request(j, time.Duration(now.delay)*time.Microsecond)
	}
	from := c.h.time()
	receipts, err := c.s.Enqueue(ctx, reqs)
	to := c.h.time()
	if err != nil {
		return fmt.Errorf("%v: %w", &now, err)
	}
	out := reply{}
	for _, r := range receipts {
		out.receipts = append(out.receipts, receipt{r.Status, c.h.index[r.ID]})
	}
	parts := []operation{{now, out}}
	if c.h.s.Looks {
		parts = parts[0].looks()
	}
	c.h.note(c.number, from, to, parts...)
	return nil
}

// looks makes an operation of each request that was not stored, and one of all that were.
// A call whose requests are not in order stays as it is.
func (o operation) looks() (parts []operation) {
	if o.disordered() {
		return []operation{o}
	}
	all := operation{o.call, reply{}}
	all.call.jobs = nil
	for i, r := range o.receipts {
		if r.status == pawl.Stored {
			all.call.jobs, all.receipts = append(all.call.jobs, o.call.jobs[i]), append(all.receipts, r)
			continue
		}
		one := operation{o.call, reply{receipts: []receipt{r}}}
		one.call.jobs = []int{o.call.jobs[i]}
		parts = append(parts, one)
	}
	if len(all.receipts) > 0 {
		parts = append(parts, all)
	}
	return parts
}

// disordered says whether a request is a duplicate of one behind it, or not what one with
// its ID before it was.
func (o operation) disordered() bool {
	for i, r := range o.receipts {
		for k := range i {
			before := o.receipts[k]
			if before.status == pawl.Duplicate && r.status == pawl.Stored && before.job == r.job {
				return true
			}
			if o.call.jobs[k] == o.call.jobs[i] && before.status != pawl.Duplicate && r.status != pawl.Exists {
				return true
			}
		}
	}
	return false
}

func (c *client) claim(ctx context.Context, now call) error {
	now.verb, now.most = claim, 1+c.rnd.IntN(4)/3
	from := c.h.time()
	got, err := c.s.Claim(ctx, pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: c.h.queue, Max: now.most}}, Max: now.most, Lease: lease,
		Worker: fmt.Sprint("client-", c.number), Token: c.rnd.Int64()})
	to := c.h.time()
	if err != nil {
		return fmt.Errorf("%v: %w", &now, err)
	}
	out := reply{}
	for _, j := range got.Jobs {
		out.jobs = append(out.jobs, c.h.view(j))
	}
	c.h.note(c.number, from, to, operation{now, out})
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	for _, j := range got.Jobs {
		c.h.refs = append(c.h.refs, j.Ref)
	}
	return nil
}

// ref chooses a claim, most often of the last ones, whoever has it.
func (c *client) ref() (pawl.Ref, bool) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	refs := c.h.refs
	if len(refs) == 0 {
		return pawl.Ref{}, false
	}
	if c.rnd.IntN(3) > 0 {
		refs = refs[max(len(refs)-3, 0):]
	}
	return refs[c.rnd.IntN(len(refs))], true
}

func (c *client) settle(ctx context.Context, now call) error {
	ref, ok := c.ref()
	if !ok {
		return c.claim(ctx, now)
	}
	verbs := []pawl.Verb{pawl.Ack, pawl.Ack, pawl.Nack, pawl.Nack, pawl.Bury, pawl.Release}
	o := pawl.Outcome{Ref: ref, Verb: verbs[c.rnd.IntN(len(verbs))], Repeat: c.rnd.IntN(4) == 0}
	if o.Verb != pawl.Ack && o.Verb != pawl.Bury && c.rnd.IntN(2) == 0 {
		o.Delay = delay
	}
	now.verb, now.jobs, now.fence, now.outcome, now.again, now.delay = settle, []int{c.h.index[ref.ID]}, ref.Fence, o.Verb, o.Repeat, o.Delay.Microseconds()
	from := c.h.time()
	lost, err := c.s.Settle(ctx, []pawl.Outcome{o})
	to := c.h.time()
	var busy *pawl.BusyError
	if err != nil && !errors.As(err, &busy) {
		return fmt.Errorf("%v: %w", &now, err)
	}
	c.h.note(c.number, from, to, operation{now, reply{no: len(lost) > 0, busy: busy != nil}})
	return nil
}

func (c *client) extend(ctx context.Context, now call) error {
	ref, ok := c.ref()
	if !ok {
		return c.claim(ctx, now)
	}
	now.verb, now.jobs, now.fence = extend, []int{c.h.index[ref.ID]}, ref.Fence
	from := c.h.time()
	lost, err := c.s.Extend(ctx, []pawl.Renewal{{Ref: ref, Lease: lease}})
	to := c.h.time()
	if err != nil {
		return fmt.Errorf("%v: %w", &now, err)
	}
	c.h.note(c.number, from, to, operation{now, reply{no: len(lost) > 0}})
	return nil
}

// sweep makes a call for each job, since a sweep need not be atomic.
func (c *client) sweep(ctx context.Context, now call) error {
	now.verb = sweep
	from := c.h.time()
	swept, err := c.s.Sweep(ctx, pawl.SweepSpec{Limit: pawl.MaxStep})
	to := c.h.time()
	if err != nil {
		return fmt.Errorf("%v: %w", &now, err)
	}
	for j, id := range c.h.ids {
		o := operation{now, reply{}}
		o.call.jobs = []int{j}
		for _, ref := range slices.Concat(swept.Rescued, swept.Buried) {
			if ref.ID == id {
				o.rescued = append(o.rescued, ref.Fence)
			}
		}
		c.h.note(c.number, from, to, o)
	}
	return nil
}

func (c *client) get(ctx context.Context, now call) error {
	j := c.rnd.IntN(numJobs)
	now.verb, now.jobs = get, []int{j}
	from := c.h.time()
	got, err := c.s.Get(ctx, c.h.queue, c.h.ids[j])
	to := c.h.time()
	if err != nil || len(got) != 1 {
		return fmt.Errorf("%v: %d jobs, error %w", &now, len(got), err)
	}
	out := reply{}
	if got[0] != nil {
		out.jobs = []view{c.h.view(got[0])}
	}
	c.h.note(c.number, from, to, operation{now, out})
	return nil
}

func (c *client) change(ctx context.Context, now call) error {
	verbs := []pawl.ChangeVerb{pawl.Kick, pawl.Kick, pawl.Kick, pawl.Cancel, pawl.Delete}
	j := c.rnd.IntN(numJobs)
	now.verb, now.jobs, now.change = change, []int{j}, verbs[c.rnd.IntN(len(verbs))]
	from := c.h.time()
	done, err := c.s.Change(ctx, pawl.Change{Verb: now.change, Queue: c.h.queue, IDs: c.h.ids[j : j+1], From: now.change.From()})
	to := c.h.time()
	if err != nil || len(done) != 1 {
		return fmt.Errorf("%v: %d answers, error %w", &now, len(done), err)
	}
	c.h.note(c.number, from, to, operation{now, reply{status: done[0].Status, holder: c.h.index[done[0].Holder]}})
	return nil
}

// delay is that of jobs that are to wait.
const delay = 5 * time.Second

// request is what is enqueued as a job.
func (h *history) request(j int, wait time.Duration) *pawl.Request {
	k := kinds[j]
	r := &pawl.Request{ID: h.ids[j], Queue: h.queue, Kind: "linear", Payload: []byte{byte(j)}, Priority: k.priority, Delay: wait,
		MaxAttempts: maxAttempts, MaxRescues: maxRescues, MaxDepth: pawl.Unlimited, WhenFull: pawl.Reject, Retention: 24 * time.Hour}
	if k.goes {
		r.Retention = pawl.DeleteNow
	}
	if k.keyed {
		r.UniqueKey, r.UniqueMode = "key", k.mode
	}
	return r
}

// view is what was seen of a job.
func (h *history) view(j *pawl.Job) view {
	v := view{job: h.index[j.ID], state: j.State, attempt: j.Attempt, rescued: j.Rescued, runAt: j.RunAt.UnixMicro(), counts: j.Counts}
	if j.State == pawl.Running {
		v.fence, v.leaseUntil = j.Fence, j.LeaseUntil.UnixMicro()
	}
	return v
}
