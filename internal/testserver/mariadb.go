package testserver

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// MariaDBBinEnv names the folder of mariadbd or mysqld, to test another server
// than the one that is found in the usual places.
const MariaDBBinEnv = "PAWL_MARIADB_BIN"

const mariaDBPattern = "pawl-mariadb-*"

// MariaDBOptions are the settings of a MariaDB or MySQL server. Zero fields are
// the defaults.
type MariaDBOptions struct {
	// Fsync makes commits wait for the disk, as in production. Without it the
	// log is written at each commit too, so a killed server loses nothing, only
	// the loss of power would.
	Fsync bool
	// MaxConnections is 0 for 100.
	MaxConnections int
	// Settings are more options of the server, with "-" in their names.
	Settings map[string]string
	// Parent is where the server's folder is made; empty is where temporary ones are. The
	// path of a socket in it must be short.
	Parent string
}

// A MariaDBServer is a private MariaDB or MySQL server. Its methods are for one
// goroutine at a time.
type MariaDBServer struct {
	bin, dir string
	args     []string
	as       *syscall.Credential
	p        *process
}

// sharedMariaDB is the server of [MariaDB].
var sharedMariaDB struct {
	mu    sync.Mutex
	s     *MariaDBServer
	users int
	kept  bool // by MainMariaDB
}

// MainMariaDB runs the tests of a package and keeps the shared server between
// them. It returns the exit code.
func MainMariaDB(m *testing.M) int {
	g := &sharedMariaDB
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

// MariaDB returns a server that the tests of one binary share. It runs without
// fsync, and ends with the last test that uses it, or in [MainMariaDB].
func MariaDB(t testing.TB) *MariaDBServer {
	t.Helper()
	g := &sharedMariaDB
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.s == nil {
		g.s = startMariaDB(t, &MariaDBOptions{MaxConnections: 200})
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

// NewMariaDB starts a server for one test.
func NewMariaDB(t testing.TB, o *MariaDBOptions) *MariaDBServer {
	t.Helper()
	s := startMariaDB(t, o)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func startMariaDB(t testing.TB, o *MariaDBOptions) *MariaDBServer {
	t.Helper()
	if mariaDBBin() == "" {
		missing(t, "MariaDB")
	}
	s, err := StartMariaDB(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// StartMariaDB starts a server for a program that is not a test, which must Stop
// it.
func StartMariaDB(o *MariaDBOptions) (*MariaDBServer, error) {
	bin := mariaDBBin()
	if bin == "" {
		return nil, errors.New("testserver: MariaDB is not installed")
	}
	if o == nil {
		o = new(MariaDBOptions)
	}
	s, err := newMariaDB(bin, o)
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	return s, nil
}

// mariaDBBin finds the server's program, which distributions keep out of the
// PATH of ordinary users.
func mariaDBBin() string {
	folders := []string{"/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/usr/local/mysql/bin"}
	if dir := os.Getenv(MariaDBBinEnv); dir != "" {
		folders = []string{dir}
	}
	for _, name := range []string{"mariadbd", "mysqld"} {
		for _, dir := range folders {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				return filepath.Join(dir, name)
			}
		}
		if path, err := exec.LookPath(name); err == nil && os.Getenv(MariaDBBinEnv) == "" {
			return path
		}
	}
	return ""
}

func newMariaDB(bin string, o *MariaDBOptions) (s *MariaDBServer, err error) {
	s = &MariaDBServer{bin: bin}
	if s.as, err = account(); err != nil {
		return nil, err
	}
	if s.dir, err = folderIn(o.Parent, mariaDBPattern, s.as); err != nil {
		return nil, err
	}
	if err := s.install(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	s.args = o.arguments(s.dir)
	if err := s.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	return s, nil
}

// install makes the data folder, with a user root that has no password: MariaDB
// has a script for that, MySQL does it itself.
func (s *MariaDBServer) install() error {
	data := "--datadir=" + filepath.Join(s.dir, "data")
	cmd := exec.Command(s.bin, "--no-defaults", "--initialize-insecure", data)
	for _, name := range []string{"mariadb-install-db", "mysql_install_db"} {
		if script, err := exec.LookPath(name); err == nil {
			cmd = exec.Command(script, "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", data)
			break
		}
	}
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "HOME="+s.dir, "TMPDIR="+s.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, out)
	}
	return nil
}

// arguments are those of the server.
func (o *MariaDBOptions) arguments(dir string) []string {
	settings := map[string]string{
		"datadir": filepath.Join(dir, "data"), "socket": socketOf(dir), "pid-file": filepath.Join(dir, "server.pid"),
		"tmpdir": dir, "skip-networking": "ON", "max-connections": fmt.Sprint(cmp.Or(o.MaxConnections, 100)),
		"innodb-buffer-pool-size": "256M", "innodb-log-file-size": "256M", "innodb-flush-log-at-trx-commit": "1",
	}
	if !o.Fsync {
		settings["innodb-flush-method"] = "nosync"
	}
	maps.Copy(settings, o.Settings)
	args := []string{"--no-defaults"}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "--"+name+"="+settings[name])
	}
	return args
}

func socketOf(dir string) string { return filepath.Join(dir, "server.sock") }

// Dir is the folder of the server, which belongs to the server's user.
func (s *MariaDBServer) Dir() string { return s.dir }

// Config connects as root to the named database; empty means none.
func (s *MariaDBServer) Config(database string) *mysql.Config {
	c := mysql.NewConfig()
	c.User, c.Net, c.Addr, c.DBName = "root", "unix", socketOf(s.dir), database
	c.Logger = &mysql.NopLogger{} // lost connections are what many tests are about
	return c
}

// DSN is Config as a text.
func (s *MariaDBServer) DSN(database string) string { return s.Config(database).FormatDSN() }

// Start starts a server that was stopped or killed, and waits until it takes
// connections.
func (s *MariaDBServer) Start() error {
	end := time.Now().Add(startTimeout)
	for time.Now().Before(end) {
		p, err := start(s.bin, s.args, s.dir, s.as)
		if err != nil {
			return err
		}
		s.p = p
		if s.answers(end) {
			return nil
		}
		if p.running() {
			p.kill()
			break
		}
		// What is left of a killed server keeps its files for a moment.
		time.Sleep(startPoll)
	}
	return fmt.Errorf("%s did not start within %v: %s", filepath.Base(s.bin), startTimeout, s.p.log)
}

// answers waits until the server takes connections, it ends, or time is up.
func (s *MariaDBServer) answers(end time.Time) bool {
	connector, err := mysql.NewConnector(s.Config(""))
	if err != nil {
		return false
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	for s.p.running() && time.Now().Before(end) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := db.PingContext(ctx)
		cancel()
		if err == nil {
			return true
		}
		time.Sleep(startPoll)
	}
	return false
}

// Running reports whether the server has not ended.
func (s *MariaDBServer) Running() bool { return s.p.running() }

// Kill ends the server as a crash does.
func (s *MariaDBServer) Kill() { s.p.kill() }

// Halt ends the server in an orderly way, and the connections of all clients.
func (s *MariaDBServer) Halt() error {
	if s.p == nil || !s.p.running() {
		return nil
	}
	if err := s.p.stop(syscall.SIGTERM); err != nil {
		return fmt.Errorf("testserver: %s %w", filepath.Base(s.bin), err)
	}
	return nil
}

// Stop halts the server and removes its folder.
func (s *MariaDBServer) Stop() error { return errors.Join(s.Halt(), os.RemoveAll(s.dir)) }

// Exec runs statements as root, each of them alone. It is for what a test
// prepares.
func (s *MariaDBServer) Exec(ctx context.Context, statements ...string) error {
	db, err := sql.Open("mysql", s.DSN(""))
	if err != nil {
		return err
	}
	defer db.Close()
	for _, text := range statements {
		if _, err := db.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("%s: %w", strings.TrimSpace(text), err)
		}
	}
	return nil
}

// CPU is how much time the server has used of the processors since it was
// started, where /proc tells; 0 elsewhere. On a machine that others use too it
// says more than the clock on the wall.
func (s *MariaDBServer) CPU() time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.p.pid))
	if err != nil {
		return 0
	}
	var user, system int64
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	_, err = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	if err != nil {
		return 0
	}
	return time.Duration(user+system) * time.Second / ticksPerSecond
}

// ticksPerSecond is the unit of times in /proc, the same on all that Go runs on.
const ticksPerSecond = 100
