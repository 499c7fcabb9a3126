package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// asProgram makes the test binary be the program.
const asProgram = "GALLERY_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// A program is a gallery in a process of its own.
type program struct {
	cmd *exec.Cmd
	out *bufio.Scanner
	all []string // lines of output read
	url string
}

// start starts a gallery and waits until it listens.
func start(t *testing.T, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{cmd: exec.CommandContext(t.Context(), self, args...)}
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
	line := p.until(t, `^(http://\S+/) shows .*; this is process (\d+)$`)
	p.url = strings.TrimSuffix(line[1], "/")
	if pid := strconv.Itoa(p.cmd.Process.Pid); line[2] != pid {
		t.Errorf("process %s says that it is %s", pid, line[2])
	}
	return p
}

// until reads output up to a line that matches and returns the submatches.
func (p *program) until(t *testing.T, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for p.out.Scan() {
		p.all = append(p.all, p.out.Text())
		if m := re.FindStringSubmatch(p.out.Text()); m != nil {
			return m
		}
	}
	t.Fatalf("no line matches %q in\n%s", pattern, strings.Join(p.all, "\n"))
	return nil
}

// rest reads all further output and returns the exit status.
func (p *program) rest(t *testing.T) int {
	t.Helper()
	for p.out.Scan() {
		p.all = append(p.all, p.out.Text())
	}
	err := p.cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// stop asks the program to end and waits for it.
func (p *program) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status := p.rest(t); status != 0 {
		t.Errorf("exit status %d after SIGTERM:\n%s", status, strings.Join(p.all, "\n"))
	}
}

// kill ends the program as a power cut would.
func (p *program) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if status := p.rest(t); status != -1 {
		t.Fatalf("exit status %d: the program ended before it was killed", status)
	}
}

func (p *program) get(t *testing.T, path string, answer any) {
	t.Helper()
	r, err := http.Get(p.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(answer); err != nil {
		t.Fatal(err)
	}
}

// settled waits until no job is pending and returns all pictures.
func (p *program) settled(t *testing.T) []status {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var stats pawl.QueueStats
		if p.get(t, "/stats", &stats); pending(stats) == 0 {
			break
		}
		select {
		case <-deadline:
			t.Fatalf("jobs are still pending: %+v", stats)
		case <-tick.C:
		}
	}
	var all []status
	p.get(t, "/pictures", &all)
	return all
}

// number returns a number of the summary.
func (p *program) number(t *testing.T, row string) int {
	t.Helper()
	re := regexp.MustCompile(`(?m)^  ` + row + ` +(\d+)  `)
	m := re.FindStringSubmatch(strings.Join(p.all, "\n"))
	if m == nil {
		t.Fatalf("no row %q in\n%s", row, strings.Join(p.all, "\n"))
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// countGoPictures counts the files of the demo without its own code.
func countGoPictures(t *testing.T) int {
	t.Helper()
	dir, err := goPictures(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func TestDemo(t *testing.T) {
	t.Parallel()
	p := start(t, "-demo", "-exit", "-flaky", "0.3")
	status := p.rest(t)
	out := strings.Join(p.all, "\n")
	t.Logf("\n%s", out)
	if status != 0 {
		t.Fatalf("exit status %d", status)
	}
	uploaded, thumbnails, buried := p.number(t, "uploaded"), p.number(t, "thumbnails"), p.number(t, "buried")
	if want := countGoPictures(t) + 1; uploaded != want {
		t.Errorf("%d uploaded, want %d", uploaded, want)
	}
	if buried == 0 || thumbnails+buried != uploaded || p.number(t, "lost") != 0 {
		t.Errorf("%d uploaded, %d thumbnails, %d buried, %d lost", uploaded, thumbnails, buried, p.number(t, "lost"))
	}
	if p.number(t, "retried") == 0 {
		t.Error("nothing was retried, though three runs in ten fail")
	}
	if !regexp.MustCompile(`half-of-\S+: decode the \w+: `).MatchString(out) {
		t.Error("the picture cut in half is not listed with its error")
	}
}

// TestKill kills the program in the middle, starts it again on the same file,
// and expects it to finish what it had accepted. Then the demo runs again and
// uploads what is missing, and nothing twice.
func TestKill(t *testing.T) {
	for _, c := range []struct{ name, when string }{
		{"uploading", `^9 of \d+ uploaded`},
		{"working", ` ([5-9]|\d\d) completed, .* [12] running, [1-9]\d* ready`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := filepath.Join(t.TempDir(), "gallery.db")
			p := start(t, "-demo", "-exit", "-db", db, "-slow", "100ms", "-workers", "2")
			p.until(t, c.when)
			p.kill(t)

			p = start(t, "-db", db, "-addr", "127.0.0.1:0")
			expectFinished(t, p.settled(t))
			p.stop(t)

			p = start(t, "-demo", "-db", db)
			p.until(t, "The page stays up")
			all := p.settled(t)
			p.stop(t)
			if want := countGoPictures(t) + 1; len(all) != want || p.number(t, "uploaded") != want {
				t.Errorf("%d pictures, %d uploaded, want %d", len(all), p.number(t, "uploaded"), want)
			}
			if p.number(t, "lost") != 0 {
				t.Error("pictures were lost")
			}
		})
	}
}

func expectFinished(t *testing.T, all []status) {
	t.Helper()
	made, rescued := 0, 0
	for _, s := range all {
		if s.Rescues > 0 {
			rescued++
		}
		if !s.Made.IsZero() {
			made++
		} else if s.State != pawl.Buried.String() {
			t.Errorf("%s has no thumbnail and its job is %s", s.Name, s.State)
		}
	}
	if made < 5 {
		t.Errorf("%d thumbnails, want more", made)
	}
	if rescued == 0 {
		t.Error("no job was rescued: the program was not killed in the middle of one")
	}
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"argument", []string{"picture.png"}, "unexpected argument"},
		{"workers", []string{"-workers", "0"}, "-workers"},
		{"flaky", []string{"-flaky", "1.5"}, "-flaky"},
		{"not a number", []string{"-flaky", "NaN"}, "-flaky"},
		{"slow", []string{"-slow", "2m"}, "-slow"},
		{"exit", []string{"-exit"}, "need -demo"},
		{"folder", []string{"-demo", "-exit", "-dir", "no such folder"}, "no such folder"},
		{"no pictures", []string{"-demo", "-exit", "-dir", "web"}, "no pictures"},
		{"file", []string{"-db", "no such folder/gallery.db"}, "pawl/sqlite: open: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := run(t.Context(), c.args, t.Output())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
		})
	}
}
