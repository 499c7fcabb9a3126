package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/storage/storagetest"
)

// cutting is a Store behind a proxy that cuts one commit, and another one beside
// it that sees what became of it.
type cutting struct {
	*testing.T
	proxy  *testserver.Proxy
	s      *postgres.Store
	direct *postgres.Store
	clock  *storagetest.Clock
	n      int // which commit is cut
	fault  testserver.Fault
	cuts   int // that happened
}

// until runs call until it succeeds. again is whether an earlier one may have.
func (c *cutting) until(call func(again bool) error) {
	c.Helper()
	var commits atomic.Int32
	var cut atomic.Bool
	c.proxy.Decide(func(string) testserver.Fault {
		if int(commits.Add(1)) == c.n && cut.CompareAndSwap(false, true) {
			return c.fault
		}
		return 0
	})
	defer c.proxy.Decide(nil)
	for again := false; ; again = true {
		err := call(again)
		if err == nil {
			break
		}
		if again {
			c.Fatalf("the second try: %v", err)
		}
		if !cut.Load() {
			c.Fatalf("without a cut: %v", err)
		}
	}
	if cut.Load() {
		c.cuts++
	}
}

// ended waits until the server has ended the transaction that was cut. Sweep
// passes by what that still locks.
func (c *cutting) ended() {
	c.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		var open bool
		err := c.direct.Pool().QueryRow(c.Context(), `SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database()
			AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND xact_start IS NOT NULL)`).Scan(&open)
		switch {
		case err != nil:
			c.Fatal(err)
		case !open:
			return
		case time.Now().After(deadline):
			c.Fatal("the server has not ended the transaction that was cut")
		}
	}
}

// counts asserts the numbers of jobs.
func (c *cutting) counts(want string) {
	c.Helper()
	stats, err := c.direct.Count(c.Context(), "default")
	if err != nil {
		c.Fatal(err)
	}
	q := stats[0]
	got := fmt.Sprintf("%d scheduled, %d ready, %d running, %d completed, %d buried, %d canceled",
		q.Scheduled, q.Ready, q.Running, q.Completed, q.Buried, q.Canceled)
	if got != want {
		c.Errorf("there are %s; want %s", got, want)
	}
}

func (c *cutting) get(id pawl.ID) *pawl.Job {
	c.Helper()
	jobs, err := c.direct.Get(c.Context(), "", id)
	if err != nil {
		c.Fatal(err)
	}
	return jobs[0]
}

// TestCuts cuts each commit of each call in each way, and repeats the call.
func TestCuts(t *testing.T) {
	server := testserver.Postgres(t)
	proxy := testserver.NewProxy(t, server)
	pool := openPool(t, server, 4)
	used := &used{pool: pool}
	for name, run := range map[string]func(*cutting){
		"enqueue": cutEnqueue, "enqueue keyed": cutEnqueueKeyed, "claim": cutClaim, "settle": cutSettle, "cycle": cutCycle,
		"extend": cutExtend, "change": cutChange, "rescue": cutRescue, "transaction": cutTransaction,
	} {
		for _, fault := range testserver.Faults() {
			t.Run(name+"/"+fault.String(), func(t *testing.T) {
				for n, cuts := 1, 1; cuts > 0; n++ {
					schema := used.take(t)
					clock := storagetest.NewClock()
					o := &postgres.Options{Schema: schema, Clock: clock.Now, PollOnly: true}
					c := &cutting{T: t, proxy: proxy, clock: clock, n: n, fault: fault, direct: open(t, pool, o)}
					c.s = open(t, dialPool(t, proxy.DSN(""), 2, pgx.QueryExecModeCacheStatement), o)
					run(c)
					cuts = c.cuts
				}
			})
		}
	}
}

func cutEnqueue(c *cutting) {
	reqs := []*pawl.Request{request(pawl.Request{}), request(pawl.Request{Priority: 3}), request(pawl.Request{Delay: time.Hour})}
	c.until(func(bool) error {
		_, err := c.s.Enqueue(c.Context(), reqs)
		return err
	})
	c.counts("1 scheduled, 2 ready, 0 running, 0 completed, 0 buried, 0 canceled")
}

func cutEnqueueKeyed(c *cutting) {
	enqueue(c, c.direct, pawl.Request{Priority: 5}) // will be dropped
	first := enqueue(c, c.direct, pawl.Request{UniqueKey: "a"})
	reqs := []*pawl.Request{
		request(pawl.Request{UniqueKey: "a"}), request(pawl.Request{UniqueKey: "b"}),
		request(pawl.Request{MaxDepth: 3, WhenFull: pawl.DropOldest}),
	}
	var got []pawl.Receipt
	c.until(func(bool) (err error) {
		got, err = c.s.Enqueue(c.Context(), reqs)
		return err
	})
	if got[0].Status != pawl.Duplicate || got[0].ID != first.ID {
		c.Errorf("the receipt of a held key is %+v", got[0])
	}
	c.counts("0 scheduled, 3 ready, 0 running, 0 completed, 0 buried, 1 canceled")
}

func cutClaim(c *cutting) {
	for i := range 4 {
		enqueue(c, c.direct, pawl.Request{Priority: i % 2})
	}
	enqueue(c, c.direct, pawl.Request{Queue: "other"})
	spec := spec(3)
	spec.Queues, spec.Token = append([]pawl.QueueAsk{{Queue: "other", Max: 1}}, spec.Queues...), 7
	var got pawl.Claimed
	c.until(func(again bool) (err error) {
		if again {
			c.ended() // what is not committed yet is not found
		}
		spec.Repeat = again
		got, err = c.s.Claim(c.Context(), spec)
		return err
	})
	page, err := c.direct.List(c.Context(), pawl.ListSpec{Filter: pawl.Filter{States: []pawl.State{pawl.Running}}, Limit: 10})
	if err != nil {
		c.Fatal(err)
	}
	if d := cmp.Diff(refs(page.Jobs), refs(got.Jobs)); d != "" || len(got.Jobs) == 0 {
		c.Errorf("running and claimed (-running +claimed):\n%s", d)
	}
}

// refs are the claims of jobs, in order of ID.
func refs(jobs []*pawl.Job) (all []pawl.Ref) {
	for _, j := range jobs {
		all = append(all, j.Ref)
	}
	slices.SortFunc(all, func(a, b pawl.Ref) int { return slices.Compare(a.ID[:], b.ID[:]) })
	return all
}

// outcomes of five jobs, one for each of the usual ways to end.
func outcomes(jobs []*pawl.Job) []pawl.Outcome {
	return []pawl.Outcome{
		{Ref: jobs[0].Ref, Verb: pawl.Ack},
		{Ref: jobs[1].Ref, Verb: pawl.Ack}, // deleted at once
		{Ref: jobs[2].Ref, Verb: pawl.Nack, Error: "e"},
		{Ref: jobs[3].Ref, Verb: pawl.Release, Delay: time.Hour},
		{Ref: jobs[4].Ref, Verb: pawl.Bury, Error: "e"},
	}
}

func (c *cutting) five() []*pawl.Job {
	c.Helper()
	for i := range 5 {
		r := pawl.Request{Retention: time.Hour}
		if i == 1 {
			r.Retention = pawl.DeleteNow
		}
		enqueue(c, c.direct, r)
	}
	return claim(c, c.direct, 5)
}

func again(outcomes []pawl.Outcome, repeat bool) []pawl.Outcome {
	for i := range outcomes {
		outcomes[i].Repeat = repeat
	}
	return outcomes
}

func cutSettle(c *cutting) {
	jobs := c.five()
	all := outcomes(jobs)
	c.until(func(repeat bool) error {
		lost, err := c.s.Settle(c.Context(), again(all, repeat))
		return errors.Join(err, noneLost(lost))
	})
	c.counts("1 scheduled, 1 ready, 0 running, 1 completed, 1 buried, 0 canceled")
	if j := c.get(jobs[2].ID); j.Counts.Retries != 1 || len(j.Failures) != 1 {
		c.Errorf("the failed job has %d retries and %d failures, want 1 and 1", j.Counts.Retries, len(j.Failures))
	}
	if j := c.get(jobs[3].ID); j.Counts.Releases != 1 || j.Attempt != 0 {
		c.Errorf("the released job has %d releases and attempt %d, want 1 and 0", j.Counts.Releases, j.Attempt)
	}
}

func noneLost(lost []pawl.Ref) error {
	if len(lost) > 0 {
		return fmt.Errorf("lost %v", lost)
	}
	return nil
}

func cutCycle(c *cutting) {
	all := outcomes(c.five())
	for range 3 {
		enqueue(c, c.direct, pawl.Request{Priority: -1})
	}
	spec := spec(2)
	spec.Token = 8
	var got pawl.Claimed
	c.until(func(repeat bool) error {
		if repeat {
			c.ended()
		}
		spec.Repeat = repeat
		lost, claimed, err := c.s.Cycle(c.Context(), again(all, repeat), spec)
		got = claimed
		return errors.Join(err, noneLost(lost))
	})
	if len(got.Jobs) != 2 {
		c.Errorf("claimed %d jobs, want 2", len(got.Jobs))
	}
	c.counts("1 scheduled, 2 ready, 2 running, 1 completed, 1 buried, 0 canceled")
}

func cutExtend(c *cutting) {
	ref := c.five()[0].Ref
	tries := 0
	c.until(func(bool) error {
		tries++
		lost, err := c.s.Extend(c.Context(), []pawl.Renewal{{Ref: ref, Lease: time.Hour, Progress: &pawl.Progress{Percent: 7}}})
		return errors.Join(err, noneLost(lost))
	})
	j := c.get(ref.ID)
	if want := c.clock.Now().Add(time.Hour); !j.LeaseUntil.Equal(want) || j.Counts.Extends < 1 || j.Counts.Extends > tries {
		c.Errorf("lease until %v, %d extends in %d tries; want until %v", j.LeaseUntil, j.Counts.Extends, tries, want)
	}
}

func cutChange(c *cutting) {
	jobs := c.five()
	settle(c, c.direct, pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Bury, Error: "e"})
	ids := []pawl.ID{jobs[0].ID, jobs[1].ID}
	for _, verb := range []pawl.ChangeVerb{pawl.Kick, pawl.Cancel} {
		c.until(func(bool) error {
			_, err := c.s.Change(c.Context(), pawl.Change{Verb: verb, IDs: ids})
			return err
		})
	}
	// The second is deleted at once.
	c.counts("0 scheduled, 0 ready, 3 running, 0 completed, 0 buried, 1 canceled")
	if j := c.get(jobs[0].ID); j.Counts.Kicks != 1 {
		c.Errorf("the job was kicked %d times, want once", j.Counts.Kicks)
	}
}

func cutRescue(c *cutting) {
	jobs := c.five()
	c.clock.Advance(2 * time.Minute)
	c.until(func(again bool) error {
		if again {
			c.ended()
		}
		_, err := c.s.Sweep(c.Context(), pawl.SweepSpec{Limit: 10})
		return err
	})
	c.counts("0 scheduled, 5 ready, 0 running, 0 completed, 0 buried, 0 canceled")
	for _, j := range jobs {
		if j := c.get(j.ID); j.Rescued != 1 || j.Counts.Rescues != 1 || len(j.Failures) != 1 {
			c.Errorf("a job was rescued %d times with %d failures, want once", j.Rescued, len(j.Failures))
		}
	}
}

// cutTransaction repeats a whole transaction whose outcome it does not know.
func cutTransaction(c *cutting) {
	ref := c.five()[0].Ref
	req := request(pawl.Request{})
	c.until(func(repeat bool) error {
		return c.s.InTx(c.Context(), func(_ pgx.Tx, w pawl.Writer) error {
			if _, err := w.Enqueue(c.Context(), []*pawl.Request{req}); err != nil {
				return err
			}
			lost, err := w.Settle(c.Context(), []pawl.Outcome{{Ref: ref, Verb: pawl.Ack, Repeat: repeat}})
			return errors.Join(err, noneLost(lost))
		})
	})
	c.counts("0 scheduled, 1 ready, 4 running, 1 completed, 0 buried, 0 canceled")
}

// TestBlackHole: a call whose connection has fallen silent ends with its
// context, and the next one finds another connection.
func TestBlackHole(t *testing.T) {
	server := testserver.Postgres(t)
	proxy := testserver.NewProxy(t, server)
	direct := fresh(t, postgres.Options{})
	s := open(t, dialPool(t, proxy.DSN(""), 2, pgx.QueryExecModeCacheStatement), &postgres.Options{Schema: direct.Schema(), PollOnly: true})
	enqueue(t, s, pawl.Request{})
	proxy.Strand()
	req := []*pawl.Request{request(pawl.Request{})}
	for try := 1; ; try++ {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := s.Enqueue(ctx, req)
		cancel()
		if err == nil {
			break
		}
		if try > 20 {
			t.Fatalf("no call came through: %v", err)
		}
	}
	claim(t, direct, 2)
	proxy.Cut() // the pool would wait for the silent connection
}
