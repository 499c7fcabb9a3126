package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

// dsnEnv hands the database to the processes that work: arguments, which may
// hold a password, can be seen by all users of the machine.
const dsnEnv = "PAWL_ORDERS_DSN"

// work runs jobs until ctx ends or the parent has gone, which closes the input.
func work(ctx context.Context, c config) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	s, closeShop, err := openShop(ctx, c, slog.Default())
	if err != nil {
		return err
	}
	defer closeShop()
	tasks := task.NewMux()
	task.Register(tasks, s.invoice)
	task.Register(tasks, s.notify)
	return worker.New(s.queue, tasks, &worker.Options{Concurrency: c.slots, SweepEvery: time.Second}).Run(ctx)
}

// crew are the processes that work.
type crew struct {
	c     config
	queue *pawl.Queue
	log   io.Writer
	name  string

	mu      sync.Mutex
	running map[string]*os.Process // by name
	doomed  map[string]bool        // that were killed by kill
	killed  int
}

func newCrew(c config, queue *pawl.Queue, log io.Writer) *crew {
	return &crew{
		c: c, queue: queue, log: log, name: "orders-" + uuid.NewString()[:8],
		running: map[string]*os.Process{}, doomed: map[string]bool{},
	}
}

// run keeps the processes running until ctx ends.
func (w *crew) run(ctx context.Context) error {
	slots := make([]func(context.Context) error, w.c.workers)
	for i := range slots {
		slots[i] = func(ctx context.Context) error { return w.slot(ctx, i) }
	}
	return together(ctx, slots...)
}

// slot keeps one process running: the next one when it was killed.
func (w *crew) slot(ctx context.Context, i int) error {
	for n := 1; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("%s-%d.%d", w.name, i+1, n)
		err := w.process(ctx, name)
		if err != nil && ctx.Err() == nil && !w.wasKilled(name) {
			return fmt.Errorf("worker %s: %w", name, err)
		}
	}
	return nil
}

// process runs this program once more, to work until ctx ends.
func (w *crew) process(ctx context.Context, name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, "-work", name, "-slots", strconv.Itoa(w.c.slots), "-slow", w.c.slow.String())
	cmd.Env = append(os.Environ(), dsnEnv+"="+w.c.dsn)
	cmd.Stderr = w.log
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	cmd.Cancel = input.Close
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	w.mu.Lock()
	w.running[name] = cmd.Process
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.running, name)
		w.mu.Unlock()
	}()
	return cmd.Wait()
}

func (w *crew) wasKilled(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.doomed[name] {
		return false
	}
	w.killed++
	return true
}

// kills is how many processes have died.
func (w *crew) kills() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.killed
}

var errIdle = errors.New("no worker is at work")

// kill kills a process in the middle of a job. It waits for a while until there
// is one.
func (w *crew) kill(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(stalled); ; {
		names := w.names()
		rand.Shuffle(len(names), func(i, k int) { names[i], names[k] = names[k], names[i] })
		for _, name := range names {
			page, err := w.queue.List(ctx, pawl.ListSpec{
				Filter: pawl.Filter{WorkerID: name, States: []pawl.State{pawl.Running}}, Limit: 1,
			})
			if err != nil {
				return err
			}
			if len(page.Jobs) > 0 {
				return w.end(name)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			return errIdle
		case <-tick.C:
		}
	}
}

// names are those of the processes that run and were not killed.
func (w *crew) names() (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.running {
		if !w.doomed[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (w *crew) end(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.running[name]
	if p == nil {
		return fmt.Errorf("worker %s ended by itself", name)
	}
	w.doomed[name] = true
	return p.Signal(syscall.SIGKILL)
}
