package redis_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/redis"
)

func request(r pawl.Request) *pawl.Request {
	r.ID, r.Queue, r.Kind = uuid.Must(uuid.NewV7()), "default", "test"
	r.MaxAttempts, r.MaxRescues, r.MaxDepth, r.WhenFull = 25, 100, pawl.Unlimited, pawl.Reject
	if r.Retention == 0 {
		r.Retention = time.Hour
	}
	return &r
}

func asking(n int) pawl.ClaimSpec {
	return pawl.ClaimSpec{
		Queues: []pawl.QueueAsk{{Queue: "default", Max: n}}, Max: n, Lease: time.Minute, Worker: "worker", Token: rand.Int64(),
	}
}

func askingOf(queue string, n int) pawl.ClaimSpec {
	spec := asking(n)
	spec.Queues[0].Queue = queue
	return spec
}

// eventually waits for something that nothing tells of.
func eventually(t *testing.T, what string, reached func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !reached(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("not reached within %v: %s", patience, what)
		}
	}
}

const (
	workers  = 3 // of a load, and as many producers
	perClaim = 20
)

// A load enqueues, claims and acks through errors.
type load struct {
	t        *testing.T
	s        *redis.Store
	progress chan struct{}
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu       sync.Mutex
	accepted map[pawl.ID]bool
	acked    map[pawl.ID]int
	n        int // acks
}

// startLoad starts a load that ends with stop.
func startLoad(t *testing.T, s *redis.Store) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{
		t: t, s: s, cancel: cancel, progress: make(chan struct{}, 1),
		accepted: map[pawl.ID]bool{}, acked: map[pawl.ID]int{},
	}
	for range workers {
		l.wg.Go(func() { l.produce(ctx) })
		l.wg.Go(func() { l.work(ctx) })
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) stop() {
	l.cancel()
	l.wg.Wait()
}

// again repeats f, after a little rest, until it succeeds. It reports whether it
// did before ctx ended.
func again(ctx context.Context, f func(repeat bool) error) bool {
	for repeat := false; f(repeat) != nil; repeat = true {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return true
}

// produce enqueues, and repeats a request whose outcome is unknown until it is
// known. The end of ctx interrupts no call, neither here nor in work: one that
// the server is still at would change things while they are counted.
func (l *load) produce(ctx context.Context) {
	call := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		reqs := []*pawl.Request{request(pawl.Request{})}
		if again(ctx, func(bool) error { _, err := l.s.Enqueue(call, reqs); return err }) {
			l.mu.Lock()
			l.accepted[reqs[0].ID] = true
			l.mu.Unlock()
		}
	}
}

func (l *load) work(ctx context.Context) {
	call := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		spec := asking(perClaim)
		var c pawl.Claimed
		again(ctx, func(repeat bool) (err error) {
			spec.Repeat = repeat
			c, err = l.s.Claim(call, spec)
			return err
		})
		l.ack(ctx, c.Jobs)
	}
}

// ack acks until it is known to have succeeded.
func (l *load) ack(ctx context.Context, jobs []*pawl.Job) {
	outcomes := make([]pawl.Outcome, len(jobs))
	var lost []pawl.Ref
	if !again(ctx, func(repeat bool) (err error) {
		for i, j := range jobs {
			outcomes[i] = pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack, Repeat: repeat}
		}
		lost, err = l.s.Settle(context.WithoutCancel(ctx), outcomes)
		return err
	}) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, j := range jobs {
		l.acked[j.ID]++
	}
	for _, ref := range lost {
		l.acked[ref.ID]--
	}
	l.n += len(jobs) - len(lost)
	select {
	case l.progress <- struct{}{}:
	default:
	}
}

// await waits for more acks.
func (l *load) await(more int) {
	l.t.Helper()
	l.mu.Lock()
	want := l.n + more
	l.mu.Unlock()
	for end := time.After(60 * time.Second); ; {
		select {
		case <-l.progress:
		case <-end:
			l.t.Fatal("the load does not get on")
		}
		l.mu.Lock()
		n := l.n
		l.mu.Unlock()
		if n >= want {
			return
		}
	}
}

func (l *load) count() pawl.QueueStats {
	l.t.Helper()
	stats, err := l.s.Count(context.Background(), "default")
	if err != nil {
		l.t.Fatal(err)
	}
	return stats[0]
}

// drain works off the rest through a Store for which all leases are over: a claim
// may have been made whose reply was lost in a crash.
func (l *load) drain(later *redis.Store) {
	l.t.Helper()
	ctx := context.Background()
	for {
		swept, err := later.Sweep(ctx, pawl.SweepSpec{Limit: 1000})
		if err != nil {
			l.t.Fatal(err)
		}
		c, err := later.Claim(ctx, asking(1000))
		if err != nil {
			l.t.Fatal(err)
		}
		l.ack(ctx, c.Jobs)
		if n := l.count(); len(c.Jobs) == 0 && !swept.More && n.Ready+n.Scheduled+n.Running == 0 {
			return
		}
	}
}

// finish stops the load, works off the rest, and counts.
func (l *load) finish(later *redis.Store) {
	l.t.Helper()
	l.stop()
	l.drain(later)
	if st := l.count(); st.Completed < int64(len(l.accepted)) || st.Buried+st.Canceled > 0 {
		l.t.Errorf("%d jobs were accepted; numbers at the end: %+v", len(l.accepted), st)
	}
	for id, n := range l.acked {
		if n > 1 {
			l.t.Errorf("job %v was acked %d times", id, n)
		}
	}
	for id := range l.accepted {
		if jobs, err := l.s.Get(context.Background(), "default", id); err != nil || jobs[0] == nil || jobs[0].State != pawl.Completed {
			l.t.Errorf("job %v was accepted and is not completed: %v", id, err)
		}
	}
}

// ahead is the clock of a Store for which all leases are over, but no retention.
func ahead() time.Time { return time.Now().Add(2 * time.Minute) }
