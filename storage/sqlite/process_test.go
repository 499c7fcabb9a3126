package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

// helperEnv makes the test program one of these helper processes instead.
const helperEnv = "PAWL_SQLITE_HELPER"

func helperMain(m *testing.M) {
	role, path, ok := strings.Cut(os.Getenv(helperEnv), " ")
	if !ok {
		os.Exit(m.Run())
	}
	helpers := map[string]func(context.Context, string) error{
		"drain": helperDrain, "migrate": helperMigrate, "enqueue": helperEnqueue, "hold": helperHold,
	}
	if err := helpers[role](context.Background(), path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// helper starts a process; its output comes line by line.
func helper(t *testing.T, role, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	return helperWith(t, nil, role, path)
}

func helperWith(t testing.TB, in *os.File, role, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	if in != nil {
		cmd.Stdin = in
	}
	cmd.Env = append(os.Environ(), helperEnv+"="+role+" "+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, bufio.NewScanner(out)
}

// holder starts a process that holds the file until it is killed.
func holder(t *testing.T, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { errors.Join(in.Close(), w.Close()) })
	return helperWith(t, in, "hold", path)
}

// helperDrain runs all jobs of the file, and says which.
func helperDrain(ctx context.Context, path string) error {
	s, err := sqlite.Open(ctx, path, &sqlite.Options{Synchronous: sqlite.Off})
	if err != nil {
		return err
	}
	defer s.Close()
	return drainAll(ctx, s, os.Stdout)
}

// drainBatch is how many jobs a drain has in hand.
const drainBatch = 200

func drainAll(ctx context.Context, s *sqlite.Store, w io.Writer) error {
	var outcomes []pawl.Outcome
	for {
		lost, c, err := s.Cycle(ctx, outcomes, ask(drainBatch))
		if err != nil {
			return err
		}
		if len(lost) > 0 {
			return fmt.Errorf("%d claims were lost", len(lost))
		}
		for _, o := range outcomes {
			fmt.Fprintln(w, o.Ref.ID)
		}
		if len(c.Jobs) == 0 {
			return nil
		}
		outcomes = ack(c.Jobs)
	}
}

func helperMigrate(ctx context.Context, path string) error {
	s, err := sqlite.Open(ctx, path, &sqlite.Options{Synchronous: sqlite.Off})
	if err != nil {
		return err
	}
	return s.Close()
}

// helperEnqueue adds a job for each line of its input, and says when it was
// committed.
func helperEnqueue(ctx context.Context, path string) error {
	s, err := sqlite.Open(ctx, path, &sqlite.Options{Synchronous: sqlite.Off})
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if _, err := s.Enqueue(ctx, requests(1)); err != nil {
			return err
		}
		fmt.Println(time.Now().UnixNano())
	}
	return nil
}

// helperHold begins to write and does not end.
func helperHold(ctx context.Context, path string) error {
	s, err := sqlite.Open(ctx, path, &sqlite.Options{Synchronous: sqlite.Off})
	if err != nil {
		return err
	}
	defer s.Close()
	return s.InTx(ctx, func(_ *sql.Tx, w pawl.Writer) error {
		if _, err := w.Enqueue(ctx, requests(1)); err != nil {
			return err
		}
		fmt.Println("held")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	})
}

func TestTenProcessesMigrateAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	var all []*exec.Cmd
	for range 10 {
		cmd, _ := helper(t, "migrate", path)
		all = append(all, cmd)
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("a process failed: %v", err)
		}
	}
	s := openAt(t, path, &sqlite.Options{NoMigrate: true})
	enqueue(t, s, request())
}

func TestTwoProcessesOneKilled(t *testing.T) {
	const jobs = 20_000
	s := open(t, nil)
	for range jobs / 1000 {
		enqueue(t, s, requests(1000)...)
	}
	victim, said := helper(t, "drain", fileOf(t, s))
	for range 1000 {
		said.Scan()
	}
	var wg sync.WaitGroup
	var done strings.Builder
	var err error
	wg.Go(func() { err = drainAll(t.Context(), s, &done) })
	for range 2 * drainBatch {
		said.Scan()
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	execSQL(t, s, "UPDATE pawl_job SET at = 1 WHERE state = 3") // the victim's leases have ended
	swept, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if len(swept.Rescued) > drainBatch || len(swept.Buried) > 0 {
		t.Errorf("rescued %d, buried %d; the victim had at most %d", len(swept.Rescued), len(swept.Buried), drainBatch)
	}
	if err := drainAll(t.Context(), s, &done); err != nil {
		t.Fatal(err)
	}
	if c := count(t, s); c.Completed != jobs {
		t.Errorf("%+v, want %d completed", c, jobs)
	}
	once(t, strings.Fields(done.String()))
}

// once fails if a job was done twice.
func once(t *testing.T, ids []string) {
	t.Helper()
	seen := make(map[string]bool, len(ids))
	for _, id := range ids {
		if seen[id] {
			t.Errorf("%s was done twice", id)
		}
		seen[id] = true
	}
}

func TestWatchSeesAnotherProcess(t *testing.T) {
	s := open(t, nil)
	events := watch(t, s)
	path := fileOf(t, s)
	in, said := enqueuer(t, path)
	said.Scan()
	quiet(events)
	fmt.Fprintln(in)
	e := <-events
	if want := (pawl.Event{Kind: pawl.EventReady}); e != want {
		t.Errorf("got %+v, want %+v", e, want)
	}
	if n := len(claim(t, s, 10)); n != 1 {
		t.Errorf("claimed %d jobs, want 1", n)
	}
}

// enqueuer starts a process that adds a job for each line that it is given.
func enqueuer(t testing.TB, path string) (in *os.File, said *bufio.Scanner) {
	t.Helper()
	r, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { errors.Join(r.Close(), in.Close()) })
	_, said = helperWith(t, r, "enqueue", path)
	return in, said
}

// watch collects the events of a store.
func watch(t testing.TB, s *sqlite.Store) <-chan pawl.Event {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	events := make(chan pawl.Event, 1000)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Watch(ctx, func(e pawl.Event) { events <- e }) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	<-events // for what was before
	return events
}

// quiet takes what has come so far, until the writer has surely looked.
func quiet(events <-chan pawl.Event) {
	for {
		select {
		case <-events:
		case <-time.After(100 * time.Millisecond):
			return
		}
	}
}
