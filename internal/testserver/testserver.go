// Package testserver starts private database servers for tests, from the
// binaries that are installed on the machine.
//
// A server lives in a temporary folder, listens on a Unix socket there, and ends
// with the test that started it, also if that is killed. It runs as an
// unprivileged user even if the tests run as root. If its binaries are not
// installed, the test is skipped, or fails if PAWL_REQUIRE_SERVERS is 1.
// PAWL_POSTGRES_BIN names the folder of PostgreSQL's programs, to test another
// version than the newest one installed.
//
// A [PgBouncer] or a [Proxy] can stand before a server.
package testserver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Environment variables.
const (
	RequireEnv     = "PAWL_REQUIRE_SERVERS" // 1 makes missing binaries a failure
	PostgresBinEnv = "PAWL_POSTGRES_BIN"    // folder of initdb and postgres
)

const (
	stopTimeout  = 20 * time.Second // until a server that was asked to end is killed
	maxSocketLen = 80               // of the folder, so that a socket in it has a valid address
)

// missing ends a test whose server can't be started here.
func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv(RequireEnv) == "1" {
		t.Fatalf("testserver: %s is not installed, and %s is 1", what, RequireEnv)
	}
	t.Skipf("testserver: SKIPPED: %s is not installed", what)
}

// account is the user that a server runs as; nil means the present one.
func account() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("no unprivileged user to run as")
}

// folder makes a temporary folder that belongs to the account.
func folder(pattern string, as *syscall.Credential) (string, error) {
	parent := os.TempDir()
	if len(parent)+len(pattern) > maxSocketLen {
		parent = "/tmp"
	}
	return folderIn(parent, pattern, as)
}

// folderIn makes a folder that belongs to the account in another one, the temporary one if
// that has no name.
func folderIn(parent, pattern string, as *syscall.Credential) (string, error) {
	if parent == "" {
		return folder(pattern, as)
	}
	dir, err := os.MkdirTemp(parent, pattern)
	if err == nil && as != nil {
		err = os.Chown(dir, int(as.Uid), int(as.Gid))
	}
	return dir, err
}

// process is a running server program.
type process struct {
	pid   int
	ended chan struct{}
	log   *output
}

// start runs a program until it ends or this process does.
func start(path string, args []string, dir string, as *syscall.Credential) (*process, error) {
	cmd := exec.Command(path, args...)
	p := &process{ended: make(chan struct{}), log: new(output)}
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, p.log, p.log
	cmd.Env = append(os.Environ(), "LC_ALL=C", "HOME="+dir)
	cmd.SysProcAttr = attributes(as)
	started := make(chan error)
	go func() {
		// The signal of the parent's death is sent when the thread ends that
		// started the program, so that thread is kept.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended shows in its log
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// stop asks the program to end, and kills it if it does not.
func (p *process) stop(sig syscall.Signal) error {
	_ = syscall.Kill(p.pid, sig) // it may have ended by itself
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopTimeout):
		p.kill()
		return fmt.Errorf("did not end within %v of %v and was killed", stopTimeout, sig)
	}
}

// kill ends the program and its children at once, without a clean-up. The
// program is stopped first: a child that it starts after its children were
// listed would live on, and wait for ever for those that are gone.
func (p *process) kill() {
	_ = syscall.Kill(p.pid, syscall.SIGSTOP)
	for end := time.Now().Add(stopTimeout); p.running() && time.Now().Before(end); time.Sleep(time.Millisecond) {
		if state, _ := stat(p.pid); state == "" || state == "T" {
			break
		}
	}
	children := childrenOf(p.pid)
	_ = syscall.Kill(p.pid, syscall.SIGKILL)
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-p.ended
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// childrenOf lists the processes whose parent is pid, where /proc tells.
func childrenOf(pid int) (children []int) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, path := range all {
		child, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			continue
		}
		if _, parent := stat(child); parent == pid {
			children = append(children, child)
		}
	}
	return children
}

// stat returns the state of a process and its parent, where /proc tells.
func stat(pid int) (state string, parent int) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0 // ended meanwhile
	}
	// "pid (name) state ppid ...", and the name may hold anything.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 2 {
		return "", 0
	}
	parent, _ = strconv.Atoi(string(fields[1]))
	return string(fields[0]), parent
}

// output keeps the last part of what a program printed.
type output struct {
	mu   sync.Mutex
	text []byte
}

// maxOutput is enough for the messages before a failure.
const maxOutput = 16 << 10

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	if extra := len(o.text) - maxOutput; extra > 0 {
		o.text = append(o.text[:0], o.text[extra:]...)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}
