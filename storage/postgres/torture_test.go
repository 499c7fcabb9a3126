package postgres_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
)

// torturedJobs is how many jobs of each sort TestTorture has.
const torturedJobs = 600

// TestTorture has many hands on one queue: enqueues of all sorts, late commits,
// claims of all sizes, settles by all verbs, leases that run out, cancels,
// edits and deletes. At the end each job must have come to a final state, and
// have run as often as its counters say.
func TestTorture(t *testing.T) {
	s := fresh(t, postgres.Options{PollOnly: true})
	x := &torture{t: t, s: s, runs: map[pawl.ID]int{}, acks: map[pawl.ID]int{}, gone: map[pawl.ID]bool{}, over: make(chan struct{})}
	var enqueuers, others sync.WaitGroup
	for _, f := range []func(){x.enqueueSingly, x.enqueueSingly, x.enqueueInTx, x.enqueueInTx, x.enqueueInTx} {
		enqueuers.Go(f)
	}
	for range 4 {
		others.Go(x.work)
	}
	others.Go(x.sweep)
	others.Go(x.meddle)
	enqueuers.Wait()
	for end := time.After(2 * time.Minute); x.unfinished() > 0; {
		select {
		case <-end:
			t.Fatalf("%d jobs do not come to an end", x.unfinished())
		case <-time.After(20 * time.Millisecond):
		}
	}
	close(x.over)
	others.Wait()
	x.account()
}

type torture struct {
	t    *testing.T
	s    *postgres.Store
	over chan struct{}

	mu   sync.Mutex
	ids  []pawl.ID // committed
	runs map[pawl.ID]int
	acks map[pawl.ID]int
	gone map[pawl.ID]bool // deleted by hand
}

func (x *torture) note(ids ...pawl.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ids = append(x.ids, ids...)
}

func (x *torture) fatal(err error) {
	if err != nil {
		x.t.Error(err)
	}
}

// some is a request of one of the sorts that go different ways.
func some() *pawl.Request {
	r := pawl.Request{Retention: time.Hour, MaxAttempts: 3, MaxRescues: 1000}
	switch rand.N(8) {
	case 0:
		r.Priority = rand.N(3) - 1
	case 1:
		r.Delay = time.Duration(rand.N(20)) * time.Millisecond
	case 2:
		r.UniqueKey = uuid.NewString()
	}
	return request(r)
}

func (x *torture) enqueueSingly() {
	for range torturedJobs {
		r := some()
		_, err := x.s.Enqueue(context.Background(), []*pawl.Request{r})
		x.fatal(err)
		x.note(r.ID)
	}
}

// enqueueInTx commits most transactions, some of them late, and undoes parts.
func (x *torture) enqueueInTx() {
	ctx := context.Background()
	for n := 0; n < torturedJobs; n += 3 {
		tx, err := x.s.Pool().Begin(ctx)
		if err != nil {
			x.fatal(err)
			return
		}
		var ids []pawl.ID
		for i := range 3 {
			sub, err := tx.Begin(ctx)
			x.fatal(err)
			r := some()
			_, err = x.s.Tx(sub).Enqueue(ctx, []*pawl.Request{r})
			x.fatal(err)
			if i == rand.N(6) {
				x.fatal(sub.Rollback(ctx))
			} else {
				x.fatal(sub.Commit(ctx))
				ids = append(ids, r.ID)
			}
			if rand.N(4) == 0 {
				time.Sleep(time.Duration(rand.N(10)) * time.Millisecond) // to be late, not to wait for anything
			}
		}
		if rand.N(5) == 0 {
			x.fatal(tx.Rollback(ctx))
			continue
		}
		x.fatal(tx.Commit(ctx))
		x.note(ids...)
	}
}

func (x *torture) done() bool {
	select {
	case <-x.over:
		return true
	default:
		return false
	}
}

// work claims, and settles most of what it got, in an order of its own.
func (x *torture) work() {
	ctx := context.Background()
	for !x.done() {
		spec := spec(1 + rand.N(30))
		spec.Token, spec.Lease = rand.Int64(), 500*time.Millisecond
		c, err := x.s.Claim(ctx, spec)
		if err != nil {
			x.fatal(err)
			return
		}
		x.mu.Lock()
		for _, j := range c.Jobs {
			x.runs[j.ID]++
		}
		x.mu.Unlock()
		rand.Shuffle(len(c.Jobs), func(i, k int) { c.Jobs[i], c.Jobs[k] = c.Jobs[k], c.Jobs[i] })
		for len(c.Jobs) > 0 {
			n := 1 + rand.N(len(c.Jobs))
			x.settle(c.Jobs[:n])
			c.Jobs = c.Jobs[n:]
		}
	}
}

func (x *torture) settle(jobs []*pawl.Job) {
	var outcomes []pawl.Outcome
	for _, j := range jobs {
		o := pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack}
		switch rand.N(20) {
		case 0:
			o.Verb, o.Error = pawl.Nack, "failed"
		case 1:
			o.Verb, o.Error = pawl.Bury, "failed"
		case 2:
			o.Verb = pawl.Release
		case 3:
			o.Verb, o.Delay = pawl.SnoozeFor, time.Millisecond
		case 4:
			o.Verb, o.Delay = pawl.Skip, time.Millisecond
		case 5:
			continue // its lease runs out
		case 6:
			_, err := x.s.Extend(context.Background(), []pawl.Renewal{{Ref: j.Ref, Lease: 10 * time.Millisecond}})
			x.fatal(err)
		}
		outcomes = append(outcomes, o)
	}
	var busy *pawl.BusyError
	lost, err := x.s.Settle(context.Background(), outcomes)
	if err != nil && !errors.As(err, &busy) {
		x.fatal(err)
		return
	}
	failed := map[pawl.Ref]bool{}
	for _, ref := range lost {
		failed[ref] = true
	}
	if busy != nil {
		for _, ref := range busy.Refs {
			failed[ref] = true
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, o := range outcomes {
		if o.Verb == pawl.Ack && !failed[o.Ref] {
			x.acks[o.Ref.ID]++
		}
	}
}

func (x *torture) sweep() {
	for !x.done() {
		_, err := x.s.Sweep(context.Background(), pawl.SweepSpec{Limit: 1 + rand.N(50)})
		x.fatal(err)
		time.Sleep(5 * time.Millisecond) // to leave the others room, not to wait for anything
	}
}

// meddle changes jobs by hand, whatever they are doing.
func (x *torture) meddle() {
	for !x.done() {
		x.mu.Lock()
		n := len(x.ids)
		var ids []pawl.ID
		for range min(n, 3) {
			ids = append(ids, x.ids[n-1-rand.N(min(n, 50))])
		}
		x.mu.Unlock()
		c := pawl.Change{IDs: ids}
		switch rand.N(4) {
		case 0:
			c.Verb = pawl.Cancel
		case 1:
			c.Verb = pawl.Delete
		case 2:
			c.Verb = pawl.Reschedule
		case 3:
			priority := rand.N(5)
			c.Verb, c.Edit = pawl.Edit, pawl.EditFields{Priority: &priority}
		}
		changed, err := x.s.Change(context.Background(), c)
		x.fatal(err)
		x.mu.Lock()
		for _, one := range changed {
			if c.Verb == pawl.Delete && one.Status == pawl.Done {
				x.gone[one.ID] = true
			}
		}
		x.mu.Unlock()
		time.Sleep(3 * time.Millisecond) // to leave jobs to the others, not to wait for anything
	}
}

func (x *torture) unfinished() int64 {
	stats, err := x.s.Count(context.Background(), "default")
	if err != nil {
		x.t.Fatal(err)
	}
	return stats[0].Scheduled + stats[0].Ready + stats[0].Running
}

// account looks at each job. A run that is counted nowhere is one that ended, or
// was taken away by hand.
func (x *torture) account() {
	found := map[pawl.ID]*pawl.Job{}
	for ids := range chunks(x.ids, 500) {
		jobs, err := x.s.Get(context.Background(), "", ids...)
		if err != nil {
			x.t.Fatal(err)
		}
		for i, j := range jobs {
			found[ids[i]] = j
		}
	}
	for _, id := range x.ids {
		j, runs, acks := found[id], x.runs[id], x.acks[id]
		if j == nil {
			if !x.gone[id] {
				x.t.Errorf("job %v is gone after %d runs", id, runs)
			}
			continue
		}
		counted := j.Counts.Retries + j.Counts.Rescues + j.Counts.Releases + j.Counts.Snoozes + j.Counts.Skips
		if !j.State.Final() || runs < counted || runs > counted+1 {
			x.t.Errorf("job %v is %v after %d runs, of which %d are counted", id, j.State, runs, counted)
		}
		if (j.State == pawl.Completed) != (acks == 1) || acks > 1 {
			x.t.Errorf("job %v is %v after %d acks", id, j.State, acks)
		}
	}
	var claims int
	err := x.s.Pool().QueryRow(context.Background(), "SELECT count(*) FROM "+x.s.Schema()+".pawl_claim c, unnest(c.xids, c.seqs) u(xid, seq), "+
		x.s.Schema()+".pawl_job j WHERE j.state = 0 AND j.seq = u.seq").Scan(&claims)
	if err != nil || claims > 0 {
		x.t.Errorf("%d jobs are claimed at the end; error %v", claims, err)
	}
}

func chunks(ids []pawl.ID, n int) func(yield func([]pawl.ID) bool) {
	return func(yield func([]pawl.ID) bool) {
		for len(ids) > 0 {
			k := min(n, len(ids))
			if !yield(ids[:k]) {
				return
			}
			ids = ids[k:]
		}
	}
}
