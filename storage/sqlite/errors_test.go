package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	driver "modernc.org/sqlite"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, bytes.Repeat([]byte("not a database. "), 1000), 0o644); err != nil {
		t.Fatal(err)
	}
	invalid := func(o sqlite.Options) *sqlite.Options { return &o }
	cases := []struct {
		name string
		path string
		o    *sqlite.Options
		want error
	}{
		{"not a database", garbage, nil, sqlite.ErrNotDatabase},
		{"missing folder", filepath.Join(dir, "missing", "jobs.db"), nil, fs.ErrNotExist},
		{"in memory", ":memory:", nil, sqlite.ErrNoWAL},
		{"no path", "", nil, sqlite.ErrNoWAL},
		{"prefix", filepath.Join(dir, "a.db"), invalid(sqlite.Options{Prefix: "a;b"}), pawl.ErrInvalid},
		{"long prefix", filepath.Join(dir, "a.db"), invalid(sqlite.Options{Prefix: strings.Repeat("a", 41)}), pawl.ErrInvalid},
		{"synchronous", filepath.Join(dir, "a.db"), invalid(sqlite.Options{Synchronous: 7}), pawl.ErrInvalid},
		{"no schema", filepath.Join(dir, "b.db"), invalid(sqlite.Options{NoMigrate: true}), pawl.ErrSchema},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, err := sqlite.Open(t.Context(), c.path, c.o)
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if s != nil {
				t.Error("a store came with the error")
			}
		})
	}
	_, err := sqlite.Open(t.Context(), garbage, nil)
	if inner := new(driver.Error); !errors.As(err, &inner) {
		t.Errorf("the driver's error is not reachable: %v", err)
	}
	_, err = sqlite.Open(t.Context(), dir, nil)
	if err == nil {
		t.Error("a folder was opened")
	}
	db := sqlDB(t, ":memory:", "")
	db.SetMaxOpenConns(1)
	if _, err := sqlite.New(t.Context(), db, nil); !errors.Is(err, sqlite.ErrNoWAL) {
		t.Errorf("in memory: got %v, want ErrNoWAL", err)
	}
	if _, err := sqlite.New(t.Context(), db, invalid(sqlite.Options{Prefix: "-"})); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

func TestReadOnlyFile(t *testing.T) {
	s := open(t, nil)
	path := fileOf(t, s)
	r := request()
	enqueue(t, s, r)
	_, err := sqlite.New(t.Context(), sqlDB(t, path, "mode=ro"), nil)
	if !errors.Is(err, sqlite.ErrReadOnly) {
		t.Errorf("New: got %v, want ErrReadOnly", err)
	}
	// It becomes so later.
	later, err := sqlite.New(t.Context(), sqlDB(t, path, ""), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	enqueue(t, later, request()) // the writer has its connection now
	later.DB().SetMaxOpenConns(1)
	execReadOnly(t, later)
	if _, err := later.Enqueue(t.Context(), requests(1)); !errors.Is(err, sqlite.ErrReadOnly) {
		t.Errorf("Enqueue: got %v, want ErrReadOnly", err)
	}
	if get(t, s, r.ID) == nil {
		t.Error("a job is gone")
	}
}

// execReadOnly makes the one connection of a shared pool refuse to write.
func execReadOnly(t *testing.T, s *sqlite.Store) {
	t.Helper()
	// The next commit gives the writer's connection back.
	if err := s.Configure(t.Context(), "default", paused(false)); err != nil {
		t.Fatal(err)
	}
	execSQL(t, s, "PRAGMA query_only = 1")
}

func paused(p bool) pawl.QueueSettings { return pawl.QueueSettings{Paused: &p} }

func TestDiskFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	s, err := sqlite.New(t.Context(), sqlDB(t, path, "_pragma=max_page_count(100)"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	big := func(r *pawl.Request) { r.Payload, r.Retention = make([]byte, 20<<10), pawl.DeleteNow }
	var stored []*pawl.Request
	for {
		r := request(big)
		_, err = s.Enqueue(t.Context(), []*pawl.Request{r})
		if err != nil {
			break
		}
		stored = append(stored, r)
	}
	if !errors.Is(err, sqlite.ErrDiskFull) {
		t.Fatalf("got %v, want ErrDiskFull", err)
	}
	if c := count(t, s); int(c.Ready) != len(stored) {
		t.Errorf("%d jobs are there, want %d", c.Ready, len(stored))
	}
	jobs := claim(t, s, 3)
	settle(t, s, ack(jobs)...)
	enqueue(t, s, request(big)) // there is room again
}

// Requests of one commit share no fate: one that the disk has no room for does
// not fail those beside it.
func TestGroupSharesNoFate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	s, err := sqlite.New(t.Context(), sqlDB(t, path, "_pragma=max_page_count(200)"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	enqueue(t, s, requests(20)...)
	running := claim(t, s, 10)
	full := func(r *pawl.Request) { r.MaxDepth = 1 }
	huge := func(r *pawl.Request) { r.Payload = make([]byte, 1<<20) }

	errs := make([]error, 5)
	together(t, s,
		func() { _, errs[0] = s.Enqueue(t.Context(), requests(5)) },
		func() { _, errs[1] = s.Enqueue(t.Context(), requests(2, huge)) },
		func() { _, errs[2] = s.Enqueue(t.Context(), requests(1, full)) },
		func() { _, errs[3] = s.Settle(t.Context(), ack(running[:5])) },
		func() { _, _, errs[4] = s.Cycle(t.Context(), ack(running[5:]), ask(5)) },
	)
	for i, want := range []error{nil, sqlite.ErrDiskFull, pawl.ErrFull, nil, nil} {
		if !errors.Is(errs[i], want) {
			t.Errorf("request %d: got %v, want %v", i, errs[i], want)
		}
	}
	if c := count(t, s); c.Completed != 10 || c.Running != 5 || c.Ready != 10 {
		t.Errorf("%+v, want 10 completed, 5 running, 10 ready", c)
	}
}

// together makes the calls share one commit.
func together(t *testing.T, s *sqlite.Store, calls ...func()) {
	t.Helper()
	release := sqlite.Hold(t.Context(), s)
	var wg sync.WaitGroup
	for i, call := range calls {
		wg.Go(call)
		waitFor(t, func() bool { return sqlite.Waiting(s) == i+1 })
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

// waitFor yields until f is true.
func waitFor(t *testing.T, f func() bool) {
	t.Helper()
	for !f() {
		if t.Context().Err() != nil {
			t.Fatal("it never came true")
		}
		runtime.Gosched()
	}
}

func TestContextEndsBeforeTheTurn(t *testing.T) {
	s := open(t, nil)
	release := sqlite.Hold(t.Context(), s)
	ctx, cancel := context.WithCancel(t.Context())
	r := request()
	result := make(chan error)
	go func() {
		_, err := s.Enqueue(ctx, []*pawl.Request{r})
		result <- err
	}()
	waitFor(t, func() bool { return sqlite.Waiting(s) == 1 })
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if err := s.InTx(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("InTx: got %v, want context.Canceled", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	enqueue(t, s, request())
	if get(t, s, r.ID) != nil {
		t.Error("the job of a request that was given up is there")
	}
}

// A context may end while the request is in the writer's hand already, which
// waits for the file.
func TestContextEndsWhileTheFileIsBusy(t *testing.T) {
	s := open(t, nil)
	other := openAt(t, fileOf(t, s), nil)
	ctx, cancel := context.WithCancel(t.Context())
	r := request()
	err := other.InTx(t.Context(), func(tx *sql.Tx, w pawl.Writer) error {
		result := make(chan error)
		go func() {
			_, err := s.Enqueue(ctx, []*pawl.Request{r})
			result <- err
		}()
		waitFor(t, func() bool { return sqlite.InHand(s) })
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if get(t, s, r.ID) != nil {
		t.Error("the job of a request that was given up is there")
	}
}

// New warns of settings that lose commits or make the program's statements
// fail, and of no others.
func TestWarnsOfSettings(t *testing.T) {
	const good = "_txlock=immediate&_pragma=busy_timeout(100)&_pragma=synchronous(FULL)"
	warnings := []string{"weaker", "busy_timeout is 0", "deferred"}
	for _, c := range []struct {
		settings string
		sync     sqlite.Synchronous
		conns    int
		want     string
	}{
		{good, sqlite.Full, 0, ""},
		{good, sqlite.Full, 1, ""},
		{strings.Replace(good, "FULL", "NORMAL", 1), sqlite.Full, 0, "weaker"},
		{strings.Replace(good, "FULL", "NORMAL", 1), sqlite.Normal, 0, ""},
		{strings.Replace(good, "100", "0", 1), sqlite.Full, 0, "busy_timeout is 0"},
		{strings.Replace(good, "immediate", "deferred", 1), sqlite.Full, 0, "deferred"},
	} {
		var said bytes.Buffer
		db := sqlDB(t, filepath.Join(t.TempDir(), "jobs.db"), c.settings)
		db.SetMaxOpenConns(c.conns)
		s, err := sqlite.New(t.Context(), db, &sqlite.Options{
			Synchronous: c.sync, Logger: slog.New(slog.NewTextHandler(&said, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, w := range warnings {
			if got := strings.Contains(said.String(), w); got != (w == c.want) {
				t.Errorf("%s: logged %q, want %q in it", c.settings, said.String(), c.want)
			}
		}
		var timeout string
		if err := db.QueryRow("PRAGMA busy_timeout").Scan(&timeout); err != nil || !strings.Contains(c.settings, "busy_timeout("+timeout+")") {
			t.Errorf("a connection came back with busy_timeout %s, %v", timeout, err)
		}
	}
}

// A pool of one connection works, also beside the program's own statements.
func TestPoolOfOne(t *testing.T) {
	db := sqlDB(t, filepath.Join(t.TempDir(), "jobs.db"), "_pragma=busy_timeout(4321)")
	db.SetMaxOpenConns(1)
	s, err := sqlite.New(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	events := watch(t, s)
	enqueue(t, s, requests(5)...)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				enqueue(t, s, request())
				count(t, s)
			}
		})
	}
	wg.Wait()
	settle(t, s, ack(claim(t, s, 10))...)
	var timeout int
	if err := db.QueryRow("PRAGMA busy_timeout").Scan(&timeout); err != nil || timeout != 4321 {
		t.Errorf("the connection came back with busy_timeout %d, %v", timeout, err)
	}
	quiet(events)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	enqueue(t, s.Tx(tx), request())
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Kind != pawl.EventReady {
		t.Errorf("got %+v, want EventReady", e)
	}
	if c := count(t, s); c.Ready != 76 || c.Completed != 10 {
		t.Errorf("%+v, want 76 ready and 10 completed", c)
	}
}

// Everyone who writes gets through: two stores on the file, transactions of
// the program, and its single statements.
func TestBusyStorm(t *testing.T) {
	const each = 40
	a := open(t, nil)
	b := openAt(t, fileOf(t, a), nil)
	execSQL(t, a, "CREATE TABLE mine (n INTEGER)")
	work := []func(s *sqlite.Store) error{
		func(s *sqlite.Store) error { _, err := s.Enqueue(t.Context(), requests(3)); return err },
		func(s *sqlite.Store) error { _, err := s.Claim(t.Context(), ask(1)); return err },
		func(s *sqlite.Store) error {
			tx, err := s.DB().BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			_, err = tx.Exec("INSERT INTO mine VALUES (1)")
			return errors.Join(err, tx.Commit())
		},
		func(s *sqlite.Store) error { _, err := s.DB().Exec("INSERT INTO mine VALUES (1)"); return err },
		func(s *sqlite.Store) error {
			rows, err := s.DB().Query("INSERT INTO mine VALUES (1) RETURNING n")
			if err != nil {
				return err
			}
			return rows.Close()
		},
		func(s *sqlite.Store) error { _, err := s.Count(t.Context()); return err },
	}
	var wg sync.WaitGroup
	for _, s := range []*sqlite.Store{a, b} {
		for i, f := range work {
			wg.Go(func() {
				for range each {
					if err := f(s); err != nil {
						t.Errorf("work %d: %v", i, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	c := count(t, a)
	var mine int64
	if err := a.DB().QueryRow("SELECT count(*) FROM mine").Scan(&mine); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(c.Ready+c.Running, mine); got != fmt.Sprint(2*each*3, 2*each*3) {
		t.Errorf("jobs and rows: %s", got)
	}
}
