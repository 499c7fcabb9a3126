package redis_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/redis"
	"github.com/pawlq/pawl/worker"
)

// A crew is a pool that works, and callers that enqueue, through whatever happens to
// the server. Nothing tells it of trouble but the errors of its calls.
type crew struct {
	t    *testing.T
	s    *redis.Store
	pool *worker.Pool
	wg   sync.WaitGroup
	end  context.CancelFunc // of the callers
	step chan struct{}      // has a token after something happened

	mu       sync.Mutex
	accepted map[pawl.ID]bool
	runs     map[pawl.ID]int
	errors   map[string]int // of callers, by their first word

	failovers int // that may have undone settles which the replica did not have
}

// crewCallers enqueue at the same time.
const crewCallers = 3

// startCrew starts a crew that ends with the test, or with finish.
func startCrew(t *testing.T, s *redis.Store) *crew {
	t.Helper()
	c := &crew{
		t: t, s: s, step: make(chan struct{}, 1),
		accepted: map[pawl.ID]bool{}, runs: map[pawl.ID]int{}, errors: map[string]int{},
	}
	q := pawl.New(s, &pawl.Options{Logger: slog.New(slog.DiscardHandler)})
	c.pool = worker.New(q, worker.Func(c.run), &worker.Options{
		Queues: []worker.Queue{{Name: "default"}}, Lease: 2 * time.Second, SweepEvery: 100 * time.Millisecond,
	})
	ctx, end := context.WithCancel(context.Background())
	c.end = end
	ended := make(chan error, 1)
	go func() { ended <- c.pool.Run(context.Background()) }()
	for range crewCallers {
		c.wg.Go(func() { c.enqueue(ctx) })
	}
	t.Cleanup(func() {
		c.rest()
		if err := c.pool.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *crew) run(ctx context.Context, j *pawl.Job) error {
	c.note(func() { c.runs[j.ID]++ })
	if string(j.Payload) != "long" {
		return nil
	}
	for end := time.After(30 * time.Second); !c.pool.Health().Ready; { // its claim is extended meanwhile
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			return nil
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// enqueue repeats each request until its outcome is known.
func (c *crew) enqueue(ctx context.Context) {
	call := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		reqs := []*pawl.Request{request(pawl.Request{})}
		if again(ctx, func(bool) error {
			_, err := c.s.Enqueue(call, reqs)
			if err != nil {
				c.note(func() { c.errors[firstWord(err)]++ })
			}
			return err
		}) {
			c.note(func() { c.accepted[reqs[0].ID] = true })
		}
		select { // so that the pool keeps up
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
}

// firstWord is what the server calls an error; that of a connection has none.
func firstWord(err error) string {
	text := strings.TrimPrefix(err.Error(), "pawl/redis: enqueue: ")
	word, _, _ := strings.Cut(text, " ")
	return word
}

func (c *crew) note(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	select {
	case c.step <- struct{}{}:
	default:
	}
}

// until waits for what the crew notes.
func (c *crew) until(what string, reached func() bool) {
	c.t.Helper()
	for end := time.After(60 * time.Second); ; {
		c.mu.Lock()
		ok := reached()
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-c.step:
		case <-end:
			c.mu.Lock()
			defer c.mu.Unlock()
			c.t.Fatalf("%s: not reached; errors %v, health %+v", what, c.errors, c.pool.Health())
		}
	}
}

// work waits for n more jobs to be run that were not run before.
func (c *crew) work(n int) {
	c.t.Helper()
	c.mu.Lock()
	want := len(c.runs) + n
	c.mu.Unlock()
	c.until("work", func() bool { return len(c.runs) >= want })
}

// refused waits until callers have got errors of that sort.
func (c *crew) refused(word string) {
	c.t.Helper()
	c.mu.Lock()
	want := c.errors[word] + 2*crewCallers
	c.mu.Unlock()
	c.until("refusal with "+word, func() bool { return c.errors[word] >= want })
}

// known is what has been accepted so far.
func (c *crew) known() []pawl.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := make([]pawl.ID, 0, len(c.accepted))
	for id := range c.accepted {
		ids = append(ids, id)
	}
	return ids
}

// rest ends the callers.
func (c *crew) rest() {
	c.end()
	c.wg.Wait()
}

// finish waits until the pool has worked all off by itself, and all its calls succeed
// again: a last job runs until then. Each of the jobs must have
// completed, and have run no more often than its record counts.
func (c *crew) finish(ids []pawl.ID) {
	c.t.Helper()
	c.rest()
	long := request(pawl.Request{Payload: []byte("long")})
	if _, err := c.s.Enqueue(context.Background(), []*pawl.Request{long}); err != nil {
		c.t.Fatal(err)
	}
	ids = append(ids, long.ID)
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		st, err := c.s.Count(context.Background(), "default")
		if err == nil && st[0].Ready+st[0].Scheduled+st[0].Running == 0 {
			break
		}
		if time.Now().After(end) {
			c.t.Fatalf("the pool has left work: %+v, %v; health %+v", st, err, c.pool.Health())
		}
	}
	for i, j := range c.jobs(ids) {
		c.check(ids[i], j)
	}
	if h := c.pool.Health(); !h.Live || !h.Ready {
		c.t.Errorf("health %+v", h)
	}
}

func (c *crew) check(id pawl.ID, j *pawl.Job) {
	c.t.Helper()
	if j == nil || j.State != pawl.Completed {
		c.t.Errorf("job %v was accepted and is not completed: %+v", id, j)
		return
	}
	c.mu.Lock()
	runs := c.runs[id]
	c.mu.Unlock()
	n := j.Counts
	if most := 1 + c.failovers + n.Retries + n.Rescues + n.Releases + n.Snoozes + n.Skips; runs < 1 || runs > most {
		c.t.Errorf("job %v ran %d times, its counts are %+v", id, runs, n)
	}
}

// missing counts the accepted jobs that are not there.
func (c *crew) missing() (n int) {
	c.t.Helper()
	for _, j := range c.jobs(c.known()) {
		if j == nil {
			n++
		}
	}
	return n
}

// jobs reads jobs.
func (c *crew) jobs(ids []pawl.ID) (all []*pawl.Job) {
	c.t.Helper()
	for some := range slices.Chunk(ids, pawl.MaxStep) {
		jobs, err := c.s.Get(context.Background(), "default", some...)
		if err != nil {
			c.t.Fatal(err)
		}
		all = append(all, jobs...)
	}
	return all
}
