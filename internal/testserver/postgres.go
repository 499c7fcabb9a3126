package testserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions are the settings of a PostgreSQL server. Zero fields are the
// defaults.
type PostgresOptions struct {
	// Fsync makes commits wait for the disk, as in production. Without it a
	// killed server loses nothing either, only the loss of power would.
	Fsync bool
	// MaxConnections is 0 for 100.
	MaxConnections int
	// Settings are more lines of postgresql.conf.
	Settings map[string]string
	// Parent is where the server's folder is made; empty is where temporary ones are. The
	// path of a socket in it must be short.
	Parent string
}

// A PostgresServer is a private PostgreSQL server. Its methods are for one
// goroutine at a time.
type PostgresServer struct {
	bin, dir string
	args     []string
	as       *syscall.Credential
	p        *process
}

const (
	startTimeout = 30 * time.Second
	initPattern  = "pawl-pg-*"
)

// sharedPostgres is the server of [Postgres].
var sharedPostgres struct {
	mu    sync.Mutex
	s     *PostgresServer
	users int
	kept  bool // by Main
}

// Main runs the tests of a package and keeps the shared server between them.
// It returns the exit code.
func Main(m *testing.M) int {
	g := &sharedPostgres
	g.mu.Lock()
	g.kept = true
	g.mu.Unlock()
	code := m.Run()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.s == nil {
		return code
	}
	if err := g.s.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "testserver:", err)
		return max(code, 1)
	}
	return code
}

// Postgres returns a server that the tests of one binary share. It runs without
// fsync, and ends with the last test that uses it, or in [Main].
func Postgres(t testing.TB) *PostgresServer {
	t.Helper()
	g := &sharedPostgres
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.s == nil {
		g.s = startPostgres(t, &PostgresOptions{MaxConnections: 200})
	}
	g.users++
	t.Cleanup(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.users--; g.users > 0 || g.kept {
			return
		}
		if err := g.s.Stop(); err != nil {
			t.Error(err)
		}
		g.s = nil
	})
	return g.s
}

// NewPostgres starts a server for one test.
func NewPostgres(t testing.TB, o *PostgresOptions) *PostgresServer {
	t.Helper()
	s := startPostgres(t, o)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func startPostgres(t testing.TB, o *PostgresOptions) *PostgresServer {
	t.Helper()
	if postgresBin() == "" {
		missing(t, "PostgreSQL")
	}
	s, err := StartPostgres(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// StartPostgres starts a server for a program that is not a test, which must
// Stop it.
func StartPostgres(o *PostgresOptions) (*PostgresServer, error) {
	bin := postgresBin()
	if bin == "" {
		return nil, errors.New("testserver: PostgreSQL is not installed")
	}
	if o == nil {
		o = new(PostgresOptions)
	}
	s, err := newPostgres(bin, o)
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	return s, nil
}

// postgresBin finds the folder of the programs: the one that the environment
// names, or that of the newest version.
func postgresBin() string {
	if dir := os.Getenv(PostgresBinEnv); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
			return ""
		}
		return dir
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	slices.SortFunc(found, func(a, b string) int {
		if len(a) != len(b) { // 9 is before 15
			return len(a) - len(b)
		}
		return slices.Compare([]byte(a), []byte(b))
	})
	if len(found) > 0 {
		return filepath.Dir(found[len(found)-1])
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path)
	}
	return ""
}

func newPostgres(bin string, o *PostgresOptions) (s *PostgresServer, err error) {
	s = &PostgresServer{bin: bin}
	if s.as, err = account(); err != nil {
		return nil, err
	}
	if s.dir, err = folderIn(o.Parent, initPattern, s.as); err != nil {
		return nil, err
	}
	init := exec.Command(filepath.Join(bin, "initdb"), "-D", s.data(), "-U", "postgres", "-E", "UTF8",
		"--locale=C", "--auth=trust", "--no-sync")
	init.Dir = s.dir
	init.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	if out, err := init.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("initdb: %w: %s", err, out), os.RemoveAll(s.dir))
	}
	s.args = o.arguments(s.data(), s.dir)
	if err := s.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	return s, nil
}

// arguments are those of the program postgres.
func (o *PostgresOptions) arguments(data, dir string) []string {
	connections := o.MaxConnections
	if connections == 0 {
		connections = 100
	}
	settings := map[string]string{
		"listen_addresses": "", "unix_socket_directories": dir, "max_connections": fmt.Sprint(connections),
		"shared_buffers": "256MB", "max_wal_size": "4GB", "fsync": "off", "full_page_writes": "off",
	}
	if o.Fsync {
		settings["fsync"], settings["full_page_writes"] = "on", "on"
	}
	maps.Copy(settings, o.Settings)
	args := []string{"-D", data}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

func (s *PostgresServer) data() string { return filepath.Join(s.dir, "data") }

// Dir is the folder of the server's socket, which belongs to the server's user.
func (s *PostgresServer) Dir() string { return s.dir }

// DSN connects as superuser to the named database; empty means "postgres".
func (s *PostgresServer) DSN(database string) string {
	return dsn(s.dir, 5432, database)
}

func dsn(dir string, port int, database string) string {
	return fmt.Sprintf("host=%s port=%d user=postgres dbname=%s sslmode=disable", dir, port, cmp.Or(database, "postgres"))
}

// Start starts a server that was stopped or killed, and waits until it takes
// connections.
func (s *PostgresServer) Start() error {
	end := time.Now().Add(startTimeout)
	for time.Now().Before(end) {
		p, err := start(filepath.Join(s.bin, "postgres"), s.args, s.dir, s.as)
		if err != nil {
			return err
		}
		s.p = p
		if answers(p, s.DSN(""), end) {
			return nil
		}
		if p.running() {
			p.kill()
			break
		}
		// What is left of a killed server keeps its memory for a moment.
		time.Sleep(startPoll)
	}
	return fmt.Errorf("postgres did not start within %v: %s", startTimeout, s.p.log)
}

const startPoll = 20 * time.Millisecond

// answers waits until the server takes connections, it ends, or time is up.
func answers(p *process, dsn string, end time.Time) bool {
	for p.running() && time.Now().Before(end) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn, err := pgx.Connect(ctx, dsn)
		if err == nil {
			err = conn.Ping(ctx) // a pooler takes connections before it has any
			_ = conn.Close(ctx)  // it has answered
		}
		cancel()
		if err == nil {
			return true
		}
		time.Sleep(startPoll)
	}
	return false
}

// Running reports whether the server has not ended.
func (s *PostgresServer) Running() bool { return s.p.running() }

// Kill ends the server as a crash does.
func (s *PostgresServer) Kill() { s.p.kill() }

// Halt ends the server in an orderly way, and the connections of all clients.
func (s *PostgresServer) Halt() error {
	if s.p == nil || !s.p.running() {
		return nil
	}
	if err := s.p.stop(syscall.SIGINT); err != nil {
		return fmt.Errorf("testserver: postgres %w", err)
	}
	return nil
}

// Stop halts the server and removes its folder.
func (s *PostgresServer) Stop() error { return errors.Join(s.Halt(), os.RemoveAll(s.dir)) }
