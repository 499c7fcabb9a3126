package mysql_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
)

// crashes is how often the server is killed.
const crashes = 3

// TestServerKilled kills the server under load: what was accepted is kept, and
// each job is acked once. The Store carries on by itself.
func TestServerKilled(t *testing.T) {
	server := testserver.NewMariaDB(t, &testserver.MariaDBOptions{Fsync: true, MaxConnections: 50})
	s := open(t, openDB(t, server, 20, nil), nil)
	l := &load{t: t, s: s, accepted: map[pawl.ID]bool{}, acked: map[pawl.ID]int{}, progress: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { l.produce(ctx) })
		wg.Go(func() { l.work(ctx) })
	}
	for range crashes {
		l.awaitProgress(200)
		server.Kill()
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
	}
	l.awaitProgress(200)
	cancel()
	wg.Wait()
	l.finish()
}

// load enqueues and works through errors.
type load struct {
	t        *testing.T
	s        *mysql.Store
	progress chan struct{}

	mu       sync.Mutex
	accepted map[pawl.ID]bool
	acked    map[pawl.ID]int
	n        int // acks
}

// produce enqueues, and repeats a request whose outcome is unknown until it is
// known. The end of ctx interrupts no call, neither here nor in work: one that
// the server is still at would change things while they are counted.
func (l *load) produce(ctx context.Context) {
	call := context.WithoutCancel(ctx)
	for i := 0; ctx.Err() == nil; i++ {
		r := pawl.Request{Retention: time.Hour}
		if i%10 == 0 {
			r.Payload = make([]byte, 5000)
		}
		req := []*pawl.Request{request(r)}
		for {
			if _, err := l.s.Enqueue(call, req); err == nil {
				l.mu.Lock()
				l.accepted[req[0].ID] = true
				l.mu.Unlock()
				break
			}
			if !rest(ctx) {
				return
			}
		}
	}
}

// rest waits a little after an error.
func rest(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(5 * time.Millisecond):
		return true
	}
}

func (l *load) work(ctx context.Context) {
	call := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		spec := spec(20)
		spec.Token = rand.Int64()
		c, err := l.s.Claim(call, spec)
		for err != nil {
			if !rest(ctx) {
				return
			}
			spec.Repeat = true
			c, err = l.s.Claim(call, spec)
		}
		l.ack(ctx, c.Jobs)
	}
}

// ack acks until it is known to have succeeded.
func (l *load) ack(ctx context.Context, jobs []*pawl.Job) {
	outcomes := make([]pawl.Outcome, len(jobs))
	for i, j := range jobs {
		outcomes[i] = pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack}
	}
	lost, err := l.s.Settle(context.WithoutCancel(ctx), outcomes)
	for err != nil {
		if !rest(ctx) {
			return
		}
		for i := range outcomes {
			outcomes[i].Repeat = true
		}
		lost, err = l.s.Settle(context.WithoutCancel(ctx), outcomes)
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

// awaitProgress waits for more acks.
func (l *load) awaitProgress(more int) {
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

// finish works off the rest, rescuing what was claimed by no one, and counts.
func (l *load) finish() {
	l.t.Helper()
	ctx := context.Background()
	for {
		// A claim may have been made whose reply was lost in a crash.
		if _, err := l.s.DB().ExecContext(ctx, "UPDATE pawl_job SET wake_at = 1 WHERE state = 3"); err != nil {
			l.t.Fatal(err)
		}
		swept, err := l.s.Sweep(ctx, pawl.SweepSpec{Limit: 1000})
		if err != nil {
			l.t.Fatal(err)
		}
		c, err := l.s.Claim(ctx, spec(1000))
		if err != nil {
			l.t.Fatal(err)
		}
		l.ack(ctx, c.Jobs)
		if n := l.count(); len(c.Jobs) == 0 && !swept.More && n.Ready+n.Scheduled+n.Running == 0 {
			break
		}
	}
	if st := l.count(); st.Completed < int64(len(l.accepted)) || st.Ready+st.Running+st.Scheduled+st.Buried+st.Canceled > 0 {
		l.t.Errorf("%d jobs were accepted; numbers at the end: %+v", len(l.accepted), st)
	}
	for id, n := range l.acked {
		if n > 1 {
			l.t.Errorf("job %v was acked %d times", id, n)
		}
	}
	for id := range l.accepted {
		if state(l.t, l.s, id) != pawl.Completed {
			l.t.Errorf("job %v was accepted and is not completed", id)
		}
	}
}
