package testserver

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// A closed go-redis client whose server was gone looks for it up to a second
// longer.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// again runs one test of this binary in another process and returns what it
// printed.
func again(t *testing.T, binary, test string, as *syscall.Credential, env ...string) (out string, passed bool) {
	t.Helper()
	cmd := exec.Command(binary, "-test.run=^"+test+"$", "-test.v", "-test.count=1")
	cmd.Dir = filepath.Dir(binary)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	text, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(text), err == nil
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMissing runs a test without the server's programs.
func TestMissing(t *testing.T) {
	for _, c := range []struct {
		require string
		passes  bool
		says    string
	}{
		{"", true, "--- SKIP: TestPostgresStopRemovesFolder"},
		{"0", true, "SKIPPED: PostgreSQL is not installed"},
		{"1", false, "PostgreSQL is not installed, and PAWL_REQUIRE_SERVERS is 1"},
	} {
		out, passed := again(t, self(t), "TestPostgresStopRemovesFolder", nil,
			RequireEnv+"="+c.require, PostgresBinEnv+"="+t.TempDir())
		if passed != c.passes || !strings.Contains(out, c.says) {
			t.Errorf("%s=%q: passed is %v, want %v with %q; printed:\n%s", RequireEnv, c.require, passed, c.passes, c.says, out)
		}
	}
}

// TestUnprivileged runs a server test as a user that is not root.
func TestUnprivileged(t *testing.T) {
	if os.Geteuid() != 0 {
		return // all other tests show it
	}
	if postgresBin() == "" {
		missing(t, "PostgreSQL")
	}
	as, err := account()
	if err != nil {
		t.Fatal(err)
	}
	out, passed := again(t, copyFor(t, as), "TestPostgresSurvivesKill", as, "TMPDIR=", "HOME=/", "GOCOVERDIR=")
	if !passed || !strings.Contains(out, "--- PASS: TestPostgresSurvivesKill") {
		t.Errorf("as user %d:\n%s", as.Uid, out)
	}
}

// copyFor copies this binary to where a user may run it.
func copyFor(t *testing.T, as *syscall.Credential) string {
	t.Helper()
	dir, err := folder("pawl-test-*", as)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	program, err := os.ReadFile(self(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "server.test")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return path
}
