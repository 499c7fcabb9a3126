package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// asProgram makes the test binary be the program.
const asProgram = "SHUTDOWN_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

type program struct {
	cmd *exec.Cmd
	out *bufio.Scanner
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{cmd: exec.CommandContext(t.Context(), self, append(args, "-addr", "127.0.0.1:0")...)}
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stderr = t.Output()
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// until reads lines up to one with text, and returns it.
func (p *program) until(t *testing.T, text string) string {
	t.Helper()
	for p.out.Scan() {
		if strings.Contains(p.out.Text(), text) {
			return p.out.Text()
		}
	}
	t.Fatalf("the program ended before %q", text)
	return ""
}

// rest reads all other lines and expects a clean end.
func (p *program) rest(t *testing.T) (lines []string) {
	t.Helper()
	for p.out.Scan() {
		lines = append(lines, p.out.Text())
	}
	if err := p.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestDemo(t *testing.T) {
	p := start(t, "-demo", "-drain", "1ms", "-stop", "2s")
	p.until(t, "both jobs run: SIGTERM")
	want := []string{
		"not ready any more, still serving",
		"HTTP ended",
		"pool ended",
		"job ready, reason release, attempt 0, releases 1",
		"job completed, reason none, attempt 1, releases 0",
	}
	if diff := cmp.Diff(want, p.rest(t)); diff != "" {
		t.Error(diff)
	}
}

// TestNextProcess: what one process has handed back, the next one runs; and the
// probes answer as they should before and after SIGTERM.
func TestNextProcess(t *testing.T) {
	db := filepath.Join(t.TempDir(), "jobs.db")
	first := start(t, "-demo", "-db", db, "-drain", "1ms", "-stop", "2s")
	first.until(t, "pool ended")
	first.rest(t)

	p := start(t, "-db", db, "-drain", "4s", "-stop", "10ms")
	url := regexp.MustCompile(`http://\S+`).FindString(p.until(t, "serves"))
	p.until(t, "a job of 1h0m0s begins")
	if ready, live := status(t, url+"/ready"), status(t, url+"/live"); ready != http.StatusOK || live != http.StatusOK {
		t.Errorf("before SIGTERM: ready %d, live %d", ready, live)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.until(t, "not ready")
	if ready, live := status(t, url+"/ready"), status(t, url+"/live"); ready != http.StatusServiceUnavailable || live != http.StatusOK {
		t.Errorf("after SIGTERM: ready %d, live %d", ready, live)
	}
	want := "job ready, reason release, attempt 0, releases 2"
	if lines := p.rest(t); len(lines) != 4 || lines[2] != want {
		t.Errorf("got %q, want %q", lines, want)
	}
}

// TestSecondSignal: who asks twice does not wait.
func TestSecondSignal(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := start(t, "-drain", "1h")
		p.until(t, "serves")
		for _, then := range []string{"not ready", ""} {
			if err := p.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if then != "" {
				p.until(t, then)
			}
		}
		var ended *exec.ExitError
		if err := p.cmd.Wait(); !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != signal {
			t.Errorf("ended with %v, want %v", err, signal)
		}
	}
}

// TestPoolThatCanNotRun: a program without a pool does not go on serving.
func TestPoolThatCanNotRun(t *testing.T) {
	p := start(t, "-stop", "-1s")
	for p.out.Scan() {
	}
	var ended *exec.ExitError
	if err := p.cmd.Wait(); !errors.As(err, &ended) || ended.ExitCode() != 1 {
		t.Errorf("ended with %v, want an exit with 1", err)
	}
}

// TestDefaults: the manifest and the table above say what the flags do.
func TestDefaults(t *testing.T) {
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, _, _ := strings.Cut(string(source), "package main")
	var c config
	f := flag.NewFlagSet("", flag.ContinueOnError)
	c.flags(f)
	for _, want := range []string{
		fmt.Sprintf("-drain (%.0f s)", c.drain.Seconds()), fmt.Sprintf("-stop (%.0f s)", c.stopTimeout.Seconds()),
		"port: " + strings.TrimPrefix(c.addr, ":") + "}",
	} {
		if !strings.Contains(doc, want) {
			t.Errorf("no %q in the package comment", want)
		}
	}
}

func status(t *testing.T, url string) int {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		t.Fatal(err)
	}
	return r.StatusCode
}
