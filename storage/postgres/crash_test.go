package postgres_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
)

// crashes is how often the server is killed.
const crashes = 3

// TestServerKilled kills the server under load: what was accepted is kept, and
// each job is acked once. The Store carries on by itself.
func TestServerKilled(t *testing.T) {
	server := testserver.NewPostgres(t, &testserver.PostgresOptions{Fsync: true, MaxConnections: 50})
	pool := openPool(t, server, 20)
	s := open(t, pool, nil)
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
	l.finish(pool)
}

// TestLostClaim: the server has lost the commit of a claim, which then is not current,
// whether the job has been claimed again or not.
func TestLostClaim(t *testing.T) {
	for name, retention := range map[string]time.Duration{"goes": pawl.DeleteNow, "kept": time.Hour} {
		t.Run(name, func(t *testing.T) {
			s := fresh(t, postgres.Options{PollOnly: true})
			enqueue(t, s, pawl.Request{Retention: retention})
			// The claim of a fresh job writes these two tables alone.
			exec(t, s.Pool(), "CREATE TABLE "+s.Schema()+".before AS TABLE "+s.Schema()+".pawl_head")
			old := claim(t, s, 1)[0]
			exec(t, s.Pool(), "TRUNCATE "+s.Schema()+".pawl_claim, "+s.Schema()+".pawl_head")
			exec(t, s.Pool(), "INSERT INTO "+s.Schema()+".pawl_head TABLE "+s.Schema()+".before")
			isLost := func() {
				lost, err := s.Settle(t.Context(), []pawl.Outcome{{Ref: old.Ref, Verb: pawl.Ack}})
				if err != nil || len(lost) != 1 {
					t.Errorf("the ack lost %v, error %v; want the claim", lost, err)
				}
			}
			isLost()
			again := claim(t, beside(t, s, postgres.Options{PollOnly: true}), 1)[0]
			isLost()
			settle(t, s, pawl.Outcome{Ref: again.Ref, Verb: pawl.Ack})
		})
	}
}

// TestConnectionsOfBefore: the server was away while nobody looked. Reads and InTx
// do not notice, and only one of the other calls fails, however many connections
// of before there are.
func TestConnectionsOfBefore(t *testing.T) {
	server := testserver.NewPostgres(t, nil)
	for _, c := range []struct {
		name string
		call func(s *postgres.Store) error
		most int // calls that fail
	}{
		{"read", func(s *postgres.Store) error { _, err := s.Count(t.Context(), "default"); return err }, 0},
		{"InTx", func(s *postgres.Store) error {
			return s.InTx(t.Context(), func(pgx.Tx, pawl.Writer) error { return nil })
		}, 0},
		{"write", func(s *postgres.Store) error { _, err := s.Claim(t.Context(), spec(1)); return err }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := openPool(t, server, 30).Config() // more than a call has tries
			config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
			pool := openWith(t, config)
			s := open(t, pool, &postgres.Options{PollOnly: true})
			fillPool(t, pool)
			server.Kill()
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			failed := 0
			for range 2 * config.MaxConns {
				if err := c.call(s); err != nil {
					t.Log(err)
					failed++
				}
			}
			if failed > c.most {
				t.Errorf("%d calls failed, want no more than %d", failed, c.most)
			}
		})
	}
}

// fillPool makes all connections that a pool may have, and leaves them idle.
func fillPool(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for range pool.Config().MaxConns {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
}

// load enqueues and works through errors.
type load struct {
	t        *testing.T
	s        *postgres.Store
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
	for ctx.Err() == nil {
		req := []*pawl.Request{request(pawl.Request{Retention: time.Hour})}
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
	for end := time.After(30 * time.Second); ; {
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
func (l *load) finish(pool *pgxpool.Pool) {
	l.t.Helper()
	ctx := context.Background()
	for {
		// A claim may have been made whose reply was lost in a crash.
		for _, sql := range []string{
			"UPDATE pawl_job SET lease_until = 1 WHERE state = 3", "UPDATE pawl_claim SET claimed_at = 1, lease = 1, until = 2",
		} {
			if _, err := pool.Exec(ctx, sql); err != nil {
				l.t.Fatal(err)
			}
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
