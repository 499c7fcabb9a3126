package worker_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/worker"
)

// The tests of this file run workers in processes of their own, which are this
// test binary again, told by the environment what to do.
const (
	envRole = "PAWL_WORKER_TEST_ROLE"
	envFile = "PAWL_WORKER_TEST_FILE"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		if err := playRole(role, os.Getenv(envFile)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func playRole(role, file string) error {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, file, nil)
	if err != nil {
		return err
	}
	o := &worker.Options{Lease: time.Second, SweepEvery: 200 * time.Millisecond}
	var h worker.Handlers
	switch role {
	case "poison":
		o.Concurrency = 50
		h = worker.Func(runOrDie)
	case "drain":
		o.Lease = 5 * time.Second
		h = worker.Func(record(file))
	case "latency":
		o = nil
		h = worker.Func(tellLatency)
	case "pause":
		o.Lease = 5 * time.Second // a process that gets little time must still reach a heartbeat
		o.SweepEvery = time.Hour
		h = worker.Func(tellCause)
	default:
		return fmt.Errorf("no role %q", role)
	}
	p := worker.New(pawl.New(s, nil), h, o)
	go func() { // the parent ends the process by closing its input
		bufio.NewReader(os.Stdin).ReadString(0)
		p.Stop(ctx)
	}()
	return errors.Join(p.Run(ctx), s.Close())
}

func runOrDie(ctx context.Context, j *pawl.Job) error {
	if string(j.Payload) == "poison" {
		os.Exit(3)
	}
	select { // work that a dying neighbour interrupts
	case <-time.After(20 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// record writes one line for each run.
func record(file string) func(context.Context, *pawl.Job) error {
	log, err := os.OpenFile(file+".runs", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return func(_ context.Context, j *pawl.Job) error {
		if err != nil {
			return err
		}
		_, err := fmt.Fprintln(log, j.ID)
		return err
	}
}

// tellCause says when it has begun, and how its context ended.
func tellCause(ctx context.Context, _ *pawl.Job) error {
	fmt.Println("begun")
	<-ctx.Done()
	fmt.Println("lost:", errors.Is(context.Cause(ctx), pawl.ErrLost))
	return nil // which must not count
}

// A child is a process that plays a role.
type child struct {
	cmd   *exec.Cmd
	input interface{ Close() error }
	lines *bufio.Scanner
	wait  func() error // may be called many times
}

func spawn(t *testing.T, role, file string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRole+"="+role, envFile+"="+file)
	cmd.Stderr = &logs{}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd, in, bufio.NewScanner(out), sync.OnceValue(cmd.Wait)}
	t.Cleanup(func() { cmd.Process.Kill(); c.wait() })
	return c
}

func (c *child) want(t *testing.T, line string) {
	t.Helper()
	if !c.lines.Scan() || c.lines.Text() != line {
		t.Fatalf("child said %q, want %q; it logged:\n%s", c.lines.Text(), line, c.logged())
	}
}

// stop ends the child in good order.
func (c *child) stop(t *testing.T) {
	t.Helper()
	c.input.Close()
	if err := c.wait(); err != nil {
		t.Errorf("child: %v; it logged:\n%s", err, c.logged())
	}
}

func (c *child) logged() string {
	l := c.cmd.Stderr.(*logs)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func openFile(t *testing.T) (*pawl.Queue, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "jobs.db")
	s, err := sqlite.Open(t.Context(), file, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return pawl.New(s, nil), file
}

// until polls the storage of other processes, which no channel reaches.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("not reached: %s", what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func countOf(t *testing.T, q *pawl.Queue) pawl.QueueStats {
	t.Helper()
	stats, err := q.Stats(t.Context(), pawl.DefaultQueue)
	if err != nil || len(stats) != 1 {
		t.Fatalf("Stats: %v, %v", stats, err)
	}
	return stats[0]
}

// One job that kills its process among 200: it alone is buried.
func TestPoisonAmongInnocents(t *testing.T) {
	q, file := openFile(t)
	var poison pawl.ID
	for i := range 201 {
		r := &pawl.Request{Kind: "k"}
		if i == 25 {
			r.Payload = []byte("poison")
		}
		receipt, err := q.Enqueue(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if i == 25 {
			poison = receipt.ID
		}
	}
	defer func() {
		if t.Failed() {
			t.Logf("counts %+v", countOf(t, q))
		}
	}()
	deaths := 0
	for { // a supervisor
		c := spawn(t, "poison", file)
		died := make(chan error, 1)
		go func() { died <- c.wait() }()
		over := false
		until(t, "an end", func() bool {
			if s := countOf(t, q); s.Completed == 200 && s.Buried == 1 {
				over = true
			}
			return over || len(died) > 0
		})
		if over {
			c.input.Close()
			if err := <-died; err != nil {
				t.Errorf("child: %v; it logged:\n%s", err, c.logged())
			}
			break
		}
		<-died
		deaths++
	}
	j, err := q.Get(t.Context(), "", poison)
	if err != nil {
		t.Fatal(err)
	}
	if j.State != pawl.Buried || j.Reason != pawl.ReasonRescues || j.Rescued != 5 {
		t.Errorf("poison is %v (%s) after %d rescues", j.State, j.Reason, j.Rescued)
	}
	if deaths != 6 {
		t.Errorf("%d processes died, want 6", deaths)
	}
}

// Two processes drain one file; one is killed in the middle.
func TestTwoProcessesOneKilled(t *testing.T) {
	const n = 20_000
	q, file := openFile(t)
	ids := make(map[string]int, n)
	for range n / pawl.MaxBatch {
		reqs := make([]*pawl.Request, pawl.MaxBatch)
		for i := range reqs {
			reqs[i] = &pawl.Request{Kind: "k"}
		}
		receipts, err := q.EnqueueMany(t.Context(), reqs)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range receipts {
			ids[r.ID.String()] = 0
		}
	}
	victim, survivor := spawn(t, "drain", file), spawn(t, "drain", file)
	until(t, "a part", func() bool { return countOf(t, q).Completed > n/10 })
	if err := victim.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Logf("counts %+v; survivor logged:\n%s", countOf(t, q), survivor.logged())
		}
	}()
	for part := int64(n / 10); part <= n; part += 1000 { // it is about standing still, not about speed
		until(t, "another part", func() bool { return countOf(t, q).Completed >= part })
	}
	survivor.stop(t)
	if text := survivor.logged(); strings.Contains(text, "locked") {
		t.Errorf("survivor logged:\n%s", text)
	}
	checkRuns(t, q, file, ids)
}

// checkRuns checks that each job ran, and none more often than its counts say.
func checkRuns(t *testing.T, q *pawl.Queue, file string, ids map[string]int) {
	t.Helper()
	log, err := os.Open(file + ".runs")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for lines := bufio.NewScanner(log); lines.Scan(); {
		ids[lines.Text()]++
	}
	rescues := 0
	for j, err := range q.Jobs(t.Context(), pawl.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		runs, most := ids[j.ID.String()], 1+j.Counts.Rescues+j.Counts.Releases
		if runs < 1 || runs > most {
			t.Errorf("job %v ran %d times, counts %+v", j.ID, runs, j.Counts)
		}
		rescues += j.Counts.Rescues
	}
	if rescues > pawl.MaxStep {
		t.Errorf("%d rescues for one dead process", rescues)
	}
}

// A process that was stopped for longer than its lease tells its handlers, on
// waking, before it settles anything; and what it settles then is refused.
func TestPausedProcess(t *testing.T) {
	q, file := openFile(t)
	receipt, err := q.Enqueue(t.Context(), &pawl.Request{Kind: "k"})
	if err != nil {
		t.Fatal(err)
	}
	c := spawn(t, "pause", file)
	c.want(t, "begun")
	// After a heartbeat the process does not write for a while; stopped in the
	// middle of a write it would keep the file locked.
	until(t, "a heartbeat", func() bool {
		j, err := q.Get(t.Context(), "", receipt.ID)
		return err == nil && j.Counts.Extends > 0
	})
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, "the rescue", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := q.Sweep(ctx); err != nil {
			t.Fatal(err)
		}
		return countOf(t, q).Running == 0
	})
	j, err := q.Claim(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	c.want(t, "lost: true")
	if err := q.Ack(t.Context(), j, []byte("by the new owner")); err != nil {
		t.Errorf("Ack: %v", err)
	}
	c.stop(t)
	if j, err = q.Get(t.Context(), "", receipt.ID); err != nil || string(j.Result) != "by the new owner" {
		t.Errorf("job %v, %v", j, err)
	}
}
