package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/pawlq/pawl/torture/check"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/planted"
)

// A crew is the processes of a run. Each place in it is filled again when its
// process has ended out of order.
type crew struct {
	dir, exe string
	log      *history.Writer
	spawn    chan func()
	spawned  sync.Once // spawn is closed

	mu       sync.Mutex
	number   int // of the last process
	members  []*member
	ending   bool
	deaths   int
	unlooked []string // what processes said that ended with an error of their own
	wg       sync.WaitGroup
}

// A member is a place in a crew.
type member struct {
	crew   *crew
	config config
	again  func(c *config) // before the place is filled again
	cmd    *exec.Cmd
	since  time.Time
	paused bool
	asked  bool // to stop
	done   bool // it has done what it was there for
}

func newCrew(dir string, log *history.Writer) (*crew, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &crew{dir: dir, exe: exe, log: log, spawn: make(chan func())}
	go func() {
		// A process is killed with the thread that started it, so this one is kept.
		runtime.LockOSThread()
		for f := range c.spawn {
			f()
		}
	}()
	return c, nil
}

// add fills a new place.
func (c *crew) add(cfg config, again func(*config)) error {
	m := &member{crew: c, config: cfg, again: again}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = append(c.members, m)
	return c.start(m)
}

// start starts a process. It is called with mu held.
func (c *crew) start(m *member) error {
	c.number++
	m.config.Number = c.number
	m.config.Name = fmt.Sprintf("%s-%d", m.config.Role, c.number)
	out, err := os.Create(filepath.Join(c.dir, m.config.Name+".log"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(c.exe)
	skew := int64(m.config.Skew.Seconds())
	if c.number%2 == 0 {
		skew = -skew
	}
	cmd.Env = append(os.Environ(), m.config.encode(), fmt.Sprintf("%s=%d", planted.SkewEnv, skew))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	c.spawn <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return err
	}
	m.cmd, m.since, m.paused, m.asked = cmd, time.Now(), false, false
	name, number := m.config.Name, int64(c.number)
	c.wg.Go(func() {
		err := cmd.Wait()
		c.ended(m, name, number, err)
	})
	return nil
}

// ended takes in the end of a process.
func (c *crew) ended(m *member, name string, number int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && (m.asked || m.config.Role == "producer") {
		m.done = m.config.Role == "producer" || c.ending
	} else {
		c.deaths++
		c.log.Write(history.Event{Kind: history.Fault, A: int64(check.Died), B: number, Fence: history.Wall()})
		c.look(name, err)
	}
	m.cmd = nil
	if m.done || c.ending && m.config.Role == "producer" || c.ending && m.asked {
		return
	}
	if m.again != nil {
		m.again(&m.config)
	}
	if err := c.start(m); err != nil {
		c.unlooked = append(c.unlooked, err.Error())
	}
}

// look keeps what a process has said that ended by itself, which is a fault of this
// program or of pawl, unless a job has done it.
func (c *crew) look(name string, err error) {
	exit, ok := err.(*exec.ExitError)
	if ok && (exit.ExitCode() == exitCode || !exit.Exited()) {
		return
	}
	text, _ := os.ReadFile(filepath.Join(c.dir, name+".log"))
	c.unlooked = append(c.unlooked, fmt.Sprintf("%s ended (%v): %.2000s", name, err, text))
}

// pick chooses a process of a role that is at work. It is called with mu held.
func (c *crew) pick(role string, n int) *member {
	var at []*member
	for _, m := range c.members {
		if m.cmd != nil && m.config.Role == role && !m.paused && !m.asked && !m.config.Spared {
			at = append(at, m)
		}
	}
	if len(at) == 0 {
		return nil
	}
	return at[n%len(at)]
}

// signal sends a signal to a process of a role and reports whether there was one, and
// its number.
func (c *crew) signal(role string, n int, s syscall.Signal) (m *member, number int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m = c.pick(role, n)
	if m == nil || m.cmd.Process.Signal(s) != nil {
		return nil, 0, false
	}
	m.asked = s == syscall.SIGTERM
	m.paused = s == syscall.SIGSTOP
	return m, int64(m.config.Number), true
}

// resume ends a pause, if the process is still that one.
func (c *crew) resume(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.paused && m.cmd != nil {
		_ = m.cmd.Process.Signal(syscall.SIGCONT) // it may have been killed
		m.paused = false
	}
}

// at counts the processes of a role that have not done what they are there for.
func (c *crew) at(role string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members {
		if m.config.Role == role && !m.done {
			n++
		}
	}
	return n
}

// end asks all to stop, and waits until they have.
func (c *crew) end() {
	c.stop(syscall.SIGTERM)
	kill := time.AfterFunc(stopTimeout*5, func() { c.stop(syscall.SIGKILL) })
	defer kill.Stop()
	c.wg.Wait()
	c.spawned.Do(func() { close(c.spawn) })
}

// kill ends all that are still there.
func (c *crew) kill() {
	c.stop(syscall.SIGKILL)
	c.wg.Wait()
	c.spawned.Do(func() { close(c.spawn) })
}

func (c *crew) stop(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ending = true
	for _, m := range c.members {
		if m.cmd != nil {
			m.asked = true
			_ = m.cmd.Process.Signal(s) // it may have ended
			_ = m.cmd.Process.Signal(syscall.SIGCONT)
		}
	}
}

// problems are what processes have said that ended by a fault of their own.
func (c *crew) problems() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unlooked
}
