package postgres_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/worker"
)

var hold = flag.Duration("hold", time.Minute, "the longest that TestLateStarts keeps transactions open")

// taken counts how often each job was claimed.
type taken struct {
	t    *testing.T
	s    *postgres.Store
	want map[pawl.ID]bool
	n    map[pawl.ID]int
}

func newTaken(t *testing.T, s *postgres.Store) *taken {
	return &taken{t: t, s: s, want: map[pawl.ID]bool{}, n: map[pawl.ID]int{}}
}

// enqueue enqueues a job that is to be claimed once, if ever is set.
func (k *taken) enqueue(w pawl.Writer, ever bool) {
	k.t.Helper()
	id := enqueue(k.t, w, pawl.Request{}).ID
	if ever {
		k.want[id] = true
	}
}

// claim claims up to n jobs and returns how many there were.
func (k *taken) claim(n int) int {
	k.t.Helper()
	c, err := k.s.Claim(k.t.Context(), spec(n))
	if err != nil {
		k.t.Fatal(err)
	}
	for _, j := range c.Jobs {
		k.n[j.ID]++
	}
	return len(c.Jobs)
}

// account claims what is left, and compares.
func (k *taken) account() {
	k.t.Helper()
	for k.claim(3) > 0 {
	}
	for id := range k.want {
		if k.n[id] != 1 {
			k.t.Errorf("job %v was claimed %d times", id, k.n[id])
		}
	}
	for id, n := range k.n {
		if !k.want[id] {
			k.t.Errorf("job %v, which was rolled back, was claimed %d times", id, n)
		}
	}
}

// TestLateCommits: what transactions enqueue that are committed after the head
// has passed them is found, and once.
func TestLateCommits(t *testing.T) {
	for _, open := range []int{0, 1, 9} {
		for _, size := range []int{1, 2, 100} {
			t.Run(fmt.Sprintf("%d open, claims of %d", open, size), func(t *testing.T) { lateCommits(t, open, size) })
		}
	}
}

func lateCommits(t *testing.T, open, size int) {
	s := fresh(t, postgres.Options{})
	k := newTaken(t, s)
	var txs []pgx.Tx
	for i := range open {
		tx, err := s.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(t.Context())
		txs = append(txs, tx)
		commits := i%3 != 1
		for range 3 {
			k.enqueue(s.Tx(tx), commits)
			within(t, tx, func(sub pgx.Tx) { k.enqueue(s.Tx(sub), commits) }, true)
			within(t, tx, func(sub pgx.Tx) { k.enqueue(s.Tx(sub), false) }, false)
			k.enqueue(s, true)
			k.claim(size)
		}
	}
	for i := len(txs) - 1; i >= 0; i-- {
		k.enqueue(s.Tx(txs[i]), i%3 != 1) // after the head has passed
		k.enqueue(s, true)
		k.claim(size)
		end := txs[i].Rollback
		if i%3 != 1 {
			end = txs[i].Commit
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		k.claim(size)
	}
	k.account()
}

// within runs f in a savepoint.
func within(t *testing.T, tx pgx.Tx, f func(sub pgx.Tx), commit bool) {
	t.Helper()
	sub, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f(sub)
	end := sub.Rollback
	if commit {
		end = sub.Commit
	}
	if err := end(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestPreparedTransactions: so is what is prepared now and committed later, even
// by a server that was started anew meanwhile.
func TestPreparedTransactions(t *testing.T) {
	server := testserver.NewPostgres(t, &testserver.PostgresOptions{Settings: map[string]string{"max_prepared_transactions": "5"}})
	pool := openPool(t, server, 5)
	s := open(t, pool, &postgres.Options{PollOnly: true})
	k := newTaken(t, s)
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		k.enqueue(s.Tx(tx), i == 0)
		if _, err := tx.Exec(t.Context(), fmt.Sprintf("PREPARE TRANSACTION 'p%d'", i)); err != nil {
			t.Fatal(err)
		}
		_ = tx.Rollback(t.Context()) // which there is none of any more
	}
	k.enqueue(s, true)
	k.claim(10)
	server.Kill()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	pool.Reset()
	k.enqueue(s, true)
	k.claim(10)
	exec("COMMIT PREPARED 'p0'")
	exec("ROLLBACK PREPARED 'p1'")
	k.account()
}

// TestLateCommitIsFirst: a job that was committed late, and is due for longer
// than others, does not wait behind them.
func TestLateCommitIsFirst(t *testing.T) {
	s := fresh(t, postgres.Options{})
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	late := enqueue(t, s.Tx(tx), pawl.Request{}).ID
	for range 5 {
		enqueue(t, s, pawl.Request{})
	}
	claim(t, s, 2)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := claim(t, s, 1)[0].ID; got != late {
		t.Errorf("claimed %v, want the job that was committed late, %v", got, late)
	}
}

// TestLateStarts: what transactions enqueue that stay open while the queue is busy
// starts after their commit, however long that takes, without a poll or a sweep: there
// are none. How soon is what the benchmarks tell.
func TestLateStarts(t *testing.T) {
	t.Parallel() // it mostly waits
	s := fresh(t, postgres.Options{})
	l := &lateStarts{T: t, q: pawl.New(s, nil), holders: beside(t, s, postgres.Options{}), started: map[pawl.ID]chan time.Time{}}
	runPool(t, l.q, l.run, &worker.Options{Concurrency: 8, Poll: time.Hour, SweepEvery: time.Hour})
	busy, idle := context.WithCancel(t.Context())
	var load, holds sync.WaitGroup
	load.Go(func() { l.keepBusy(busy) })
	for _, d := range []time.Duration{200 * time.Millisecond, 10 * time.Second, time.Minute} {
		if d <= *hold {
			holds.Go(func() { l.held(d) })
		}
	}
	holds.Wait()
	idle()
	load.Wait()
}

type lateStarts struct {
	*testing.T
	q       *pawl.Queue
	holders *postgres.Store // on connections of their own

	mu      sync.Mutex
	started map[pawl.ID]chan time.Time // of those that are late
}

func (l *lateStarts) run(_ context.Context, j *pawl.Job) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.started[j.ID]; c != nil {
		c <- time.Now()
	}
	return nil
}

// keepBusy enqueues some hundred jobs a second.
func (l *lateStarts) keepBusy(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		reqs := make([]*pawl.Request, 20)
		for i := range reqs {
			reqs[i] = &pawl.Request{Kind: "k"}
		}
		if _, err := l.q.EnqueueMany(l.Context(), reqs); err != nil {
			l.Error(err)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// held opens transactions, and some time later commits one after the other.
func (l *lateStarts) held(d time.Duration) {
	open := make([]lateTx, 3)
	for i := range open {
		open[i] = l.begin()
	}
	<-time.After(d) // which is what is tested
	var waits []time.Duration
	for _, x := range open {
		waits = append(waits, l.commit(x))
	}
	slices.Sort(waits)
	l.Logf("open for %v: started %v after the commits", d, waits)
}

type lateTx struct {
	pgx.Tx
	started chan time.Time
}

func (l *lateStarts) begin() lateTx {
	tx, err := l.holders.Pool().Begin(l.Context())
	if err != nil {
		l.Error(err)
		return lateTx{}
	}
	x := lateTx{tx, make(chan time.Time, 1)}
	r, err := l.q.WithTx(l.holders.Tx(tx)).Enqueue(l.Context(), &pawl.Request{Kind: "k"})
	if err != nil {
		l.Error(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.started[r.ID] = x.started
	return x
}

// commit returns how long it took until the job started.
func (l *lateStarts) commit(x lateTx) time.Duration {
	if x.Tx == nil {
		return 0 // the test has failed
	}
	if len(x.started) > 0 {
		l.Error("a job started before its commit")
	}
	begun := time.Now()
	if err := x.Commit(l.Context()); err != nil {
		l.Error(err)
	}
	select {
	case at := <-x.started:
		return at.Sub(begun)
	case <-time.After(time.Minute):
		l.Error("a job did not start")
		return time.Minute
	}
}
