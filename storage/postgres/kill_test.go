package postgres_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	osexec "os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/worker"
)

// kills is how often TestKills takes the server away from those who work.
var kills = flag.Int("kills", 20, "how often the server is killed")

const (
	killDSN   = "PAWL_KILL_TEST_DSN" // tells the other process where the server is
	killLease = 2 * time.Second
	killSlots = 8
	killAwait = time.Minute
	kindPlain = "plain"
	kindPaid  = "paid" // acked in a transaction
	// resumeBound is how soon a pool resumes after the server is back. What was
	// claimed by a call that nobody heard of may be all there is, and waits for
	// the end of its lease.
	resumeBound = time.Second + killLease
)

// TestKills takes the server away again and again, in several ways, under
// enqueuers inside and outside of transactions, a pool of this process and one of
// another. At the end each job is accounted for.
func TestKills(t *testing.T) {
	server := testserver.NewPostgres(t, &testserver.PostgresOptions{Fsync: true, MaxConnections: 60})
	k := newKilling(t, server)
	other := k.spawn()
	var load sync.WaitGroup
	enqueuing, stop := context.WithCancel(t.Context())
	for range 2 {
		load.Go(func() { k.enqueue(enqueuing) })
		load.Go(func() { k.order(enqueuing) })
	}
	mine := make(signal, 1)
	stopPool := startPool(t, k.q, func() { k.ran(); mine.send() })
	k.awaitRuns(20)
	var own, others []time.Duration
	for n := range *kills {
		back := k.takeAway(n)
		other.ran.drain()
		mine.drain()
		mine.await(t)
		own = append(own, time.Since(back))
		other.ran.await(t)
		other.ran.await(t) // the first may be of before, and have been in the pipe
		others = append(others, time.Since(back))
	}
	stop()
	load.Wait()
	k.awaitEnd()
	stopPool()
	other.stop(t)
	t.Logf("%d jobs; first run after the server's return: here %v, in the other process %v", len(k.accepted), spread(own), spread(others))
	if late := max(slices.Max(own), slices.Max(others)); late > resumeBound {
		t.Errorf("a pool resumed only %v after the server's return", late)
	}
	k.account()
}

// spread shows the median and the largest.
func spread(all []time.Duration) string {
	slices.Sort(all)
	return fmt.Sprintf("p50 %v, max %v", all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
}

// A signal says that something has happened since it was last looked at.
type signal chan struct{}

func (s signal) send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

func (s signal) drain() {
	select {
	case <-s:
	default:
	}
}

func (s signal) await(t *testing.T) {
	t.Helper()
	select {
	case <-s:
	case <-time.After(killAwait):
		t.Fatal("a pool does not get on")
	}
}

type killing struct {
	*testing.T
	server *testserver.PostgresServer
	pool   *pgxpool.Pool
	s      *postgres.Store
	q      *pawl.Queue
	once   signal // a run has begun
	runs   atomic.Int64

	mu       sync.Mutex
	accepted map[pawl.ID]bool
	undone   []pawl.ID // of transactions that were rolled back
}

func newKilling(t *testing.T, server *testserver.PostgresServer) *killing {
	pool := openPool(t, server, 20)
	s := open(t, pool, &postgres.Options{Logger: slog.New(slog.DiscardHandler)}) // of the outages
	exec(t, pool, "CREATE TABLE run (id uuid); CREATE TABLE paid (id uuid); CREATE TABLE ordered (id uuid)")
	return &killing{T: t, server: server, pool: pool, s: s, q: killQueue(s), once: make(signal, 1), accepted: map[pawl.ID]bool{}}
}

func killQueue(s *postgres.Store) *pawl.Queue {
	return pawl.New(s, &pawl.Options{Logger: slog.New(slog.DiscardHandler), Backoff: pawl.Constant(10 * time.Millisecond)})
}

// startPool runs the jobs. Each run is written down when it begins, and told to
// ran.
func startPool(t *testing.T, q *pawl.Queue, ran func()) (stop func()) {
	p := worker.New(q, worker.Func(func(ctx context.Context, j *pawl.Job) error { return runAndPay(ctx, q, j, ran) }), &worker.Options{
		Queues: []worker.Queue{{Name: "default", Concurrency: killSlots}}, Lease: killLease,
		SweepEvery: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	done := make(chan error, 1)
	go func() { done <- p.Run(t.Context()) }()
	stop = sync.OnceFunc(func() {
		err := p.Stop(context.Background())
		if err = errors.Join(err, <-done); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func runAndPay(ctx context.Context, q *pawl.Queue, j *pawl.Job, ran func()) error {
	s := q.Storage().(*postgres.Store)
	// An error may hide that this was stored; then it is a failure that counts.
	if _, err := s.Pool().Exec(ctx, "INSERT INTO run VALUES ($1)", j.ID); err != nil {
		return err
	}
	ran()
	if j.Kind == kindPlain {
		return nil
	}
	return s.InTx(ctx, func(tx pgx.Tx, w pawl.Writer) error {
		if _, err := tx.Exec(ctx, "INSERT INTO paid VALUES ($1)", j.ID); err != nil {
			return err
		}
		return q.WithTx(w).Ack(ctx, j, nil)
	})
}

func (k *killing) ran() {
	k.runs.Add(1)
	k.once.send()
}

func killRequest(kind string) *pawl.Request {
	return request(pawl.Request{Kind: kind, Retention: time.Hour, MaxAttempts: 1000, MaxRescues: 1000})
}

// maxAhead is how far enqueuers may be ahead of the pools.
const maxAhead = 2000

// keepBacklog waits until the pools are not far behind, and reports false at
// the end of ctx.
func (k *killing) keepBacklog(ctx context.Context) bool {
	for ctx.Err() == nil {
		k.mu.Lock()
		ahead := int64(len(k.accepted)) - k.runs.Load()
		k.mu.Unlock()
		if ahead < maxAhead {
			return true
		}
		rest(ctx)
	}
	return false
}

// enqueue enqueues by ID until it knows that the job was accepted.
func (k *killing) enqueue(ctx context.Context) {
	for k.keepBacklog(ctx) {
		req := []*pawl.Request{killRequest(kindPlain)}
		for {
			if _, err := k.s.Enqueue(context.WithoutCancel(ctx), req); err == nil {
				break
			}
			rest(context.Background())
		}
		k.accept(req[0].ID)
	}
}

func (k *killing) accept(id pawl.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.accepted[id] = true
}

var errUndo = errors.New("undo")

// order enqueues in transactions, a fifth of which are rolled back. After an
// error that leaves the outcome unknown it does not look.
func (k *killing) order(ctx context.Context) {
	call := context.WithoutCancel(ctx)
	for n := 0; k.keepBacklog(ctx); n++ {
		req := killRequest(kindPaid)
		err := k.s.InTx(call, func(tx pgx.Tx, w pawl.Writer) error {
			if _, err := tx.Exec(call, "INSERT INTO ordered VALUES ($1)", req.ID); err != nil {
				return err
			}
			if _, err := w.Enqueue(call, []*pawl.Request{req}); err != nil {
				return err
			}
			if n%5 == 0 {
				return errUndo
			}
			return nil
		})
		switch {
		case err == nil:
			k.accept(req.ID)
		case errors.Is(err, errUndo):
			k.mu.Lock()
			k.undone = append(k.undone, req.ID)
			k.mu.Unlock()
		default:
			rest(ctx)
		}
	}
}

// takeAway takes the server away in the nth way and returns when it was back.
func (k *killing) takeAway(n int) (back time.Time) {
	k.Helper()
	k.awaitRuns(20)
	switch n % 5 {
	case 2: // an orderly restart
		if err := k.server.Halt(); err != nil {
			k.Fatal(err)
		}
	case 4:
		k.endAll()
		return time.Now()
	default:
		k.server.Kill()
	}
	if err := k.server.Start(); err != nil {
		k.Fatal(err)
	}
	return time.Now()
}

// endAll ends all connections but its own, several times.
func (k *killing) endAll() {
	k.Helper()
	conn, err := pgx.Connect(k.Context(), k.server.DSN(""))
	if err != nil {
		k.Fatal(err)
	}
	defer conn.Close(context.Background())
	const end = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`
	for range 20 {
		if _, err := conn.Exec(k.Context(), end); err != nil {
			k.Fatal(err)
		}
	}
}

func (k *killing) awaitRuns(n int64) {
	k.Helper()
	for want, end := k.runs.Load()+n, time.After(killAwait); k.runs.Load() < want; {
		select {
		case <-k.once:
		case <-end:
			k.Fatal("the pools do not get on")
		}
	}
}

// awaitEnd waits until all jobs have ended.
func (k *killing) awaitEnd() {
	k.Helper()
	awaitEmpty(k.T, k.q)
}

// account compares what was accepted with what was done.
func (k *killing) account() {
	k.Helper()
	runs, paid, ordered := k.table("run"), k.table("paid"), k.table("ordered")
	found := 0
	for j, err := range k.q.Jobs(k.Context(), pawl.Filter{}) {
		if err != nil {
			k.Fatal(err)
		}
		found++
		c := j.Counts
		most := 1 + c.Retries + c.Rescues + c.Releases + c.Skips
		if j.State != pawl.Completed || runs[j.ID] < 1 || runs[j.ID] > most {
			k.Errorf("job %v is %v after %d runs, with counts %+v", j.ID, j.State, runs[j.ID], c)
		}
		delete(k.accepted, j.ID)
		if j.Kind != kindPaid {
			continue
		}
		if paid[j.ID] != 1 || ordered[j.ID] != 1 {
			k.Errorf("job %v was ordered %d times and paid %d times", j.ID, ordered[j.ID], paid[j.ID])
		}
		delete(paid, j.ID)
		delete(ordered, j.ID)
	}
	if len(k.accepted)+len(paid)+len(ordered) > 0 {
		k.Errorf("beside %d jobs, %d were lost; %d were paid and %d ordered without a job", found, len(k.accepted), len(paid), len(ordered))
	}
	for _, id := range k.undone {
		if runs[id] > 0 || ordered[id] > 0 {
			k.Errorf("job %v of a transaction that was rolled back ran %d times", id, runs[id])
		}
	}
}

// table counts the rows by ID.
func (k *killing) table(name string) map[pawl.ID]int {
	k.Helper()
	rows, err := k.pool.Query(k.Context(), "SELECT id FROM "+name)
	if err != nil {
		k.Fatal(err)
	}
	n := map[pawl.ID]int{}
	var id [16]byte
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { n[id]++; return nil }); err != nil {
		k.Fatal(err)
	}
	return n
}

// otherPool is a pool in a process of its own.
type otherPool struct {
	cmd *osexec.Cmd
	in  io.Closer
	ran signal
}

// spawn starts this test binary again as a worker.
func (k *killing) spawn() *otherPool {
	k.Helper()
	cmd := osexec.Command(os.Args[0], "-test.run=^TestKillsWorker$", "-test.count=1")
	cmd.Env = append(os.Environ(), killDSN+"="+k.server.DSN(""))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		k.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		k.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		k.Fatal(err)
	}
	o := &otherPool{cmd: cmd, in: in, ran: make(signal, 1)}
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() == killRan {
				k.ran()
				o.ran.send()
			}
		}
	})
	k.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended unless the test failed
		reading.Wait()
		_ = cmd.Wait()
	})
	return o
}

func (o *otherPool) stop(t *testing.T) {
	t.Helper()
	o.in.Close()
	if state, err := o.cmd.Process.Wait(); err != nil || !state.Success() {
		t.Errorf("the other process: %v, %v", state, err)
	}
}

const killRan = "ran"

// TestKillsWorker is the other process of TestKills, and does nothing otherwise.
func TestKillsWorker(t *testing.T) {
	dsn := os.Getenv(killDSN)
	if dsn == "" {
		return
	}
	s := open(t, dialPool(t, dsn, 20, pgx.QueryExecModeCacheStatement), &postgres.Options{Logger: slog.New(slog.DiscardHandler)})
	stop := startPool(t, killQueue(s), func() { fmt.Println(killRan) })
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent closes it or dies
	stop()
}
