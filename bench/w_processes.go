package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"time"
)

// twoProcesses empties a backlog with workers in this process and in another, each
// with all the slots.
func twoProcesses() *Workload {
	return &Workload{Name: "two-processes", About: "workers of two processes empty a backlog, handlers do nothing",
		Storages: []string{"postgres", "sqlite", "redis", "mysql"}, Works: true, Slow: true,
		Takes: func(c *Cell) time.Duration { return c.takesDrain() + time.Second },
		Run: func(ctx context.Context, c *Cell) ([]Metric, error) {
			n, err := c.backlog(ctx, c.Jobs)
			if err != nil {
				return nil, err
			}
			t := newTally(int64(n))
			second, err := c.startSecond(ctx, t)
			if err != nil {
				return nil, err
			}
			metrics, err := c.workBeside(ctx, t, second)
			return metrics, errors.Join(err, second.stop())
		}}
}

// workBeside takes the rate of both processes.
func (c *Cell) workBeside(ctx context.Context, t *tally, second *secondProcess) ([]Metric, error) {
	if err := second.begin(); err != nil {
		return nil, err
	}
	w, err := c.Sys.Work(ctx, t.handle)
	if err != nil {
		return nil, err
	}
	if err := wait(ctx, t.first, startLimit); err != nil {
		return nil, stopped(w, err)
	}
	if err = wait(ctx, t.all, c.Limit); errors.Is(err, errLate) {
		err = nil // the rate is over what was done
	}
	done, took := t.n.Load(), time.Since(t.began)
	share := quotient(float64(second.done.Load()), float64(done))
	return []Metric{rate("two-processes", done, took.Seconds()), {"two-processes-second", share, "of the jobs", false}}, stopped(w, err)
}

// A join is what the other process is told, as JSON on its input: where the place is,
// and what to open there. A line after it tells it to begin, the end of the input to
// stop. It writes how many handlers have been called, a line whenever that has
// changed.
type join struct {
	System, Storage string
	Variant         Variant
	Dir             string
	Postgres, MySQL string // addresses
	Database, Redis string
}

func (c *Cell) join() join {
	v := c.V
	v.Payload = c.P.Payload
	j := join{System: c.C.Name, Storage: c.C.Storage, Variant: v, Dir: c.Place.Dir, Redis: c.Place.Redis}
	if d := c.Place.DB; d != nil {
		j.Postgres, j.Database = d.server.dsn, d.name
	}
	if d := c.Place.MySQL; d != nil {
		j.MySQL, j.Database = d.dsn, d.name
	}
	return j
}

func (j join) place() *Place {
	p := &Place{Dir: j.Dir, Redis: j.Redis, Joined: true}
	if j.Postgres != "" {
		p.DB = &Database{server: &Server{dsn: j.Postgres}, name: j.Database}
	}
	if j.MySQL != "" {
		p.MySQL = &MySQLDatabase{name: j.Database, dsn: j.MySQL}
	}
	return p
}

// secondProcess is this program, started once more.
type secondProcess struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  *bufio.Scanner
	stderr bytes.Buffer
	tally  *tally
	done   atomic.Int64
	ended  chan error
}

// startSecond starts the process, and waits until it has opened the system.
func (c *Cell) startSecond(ctx context.Context, t *tally) (*secondProcess, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &secondProcess{cmd: exec.CommandContext(ctx, program, "work"), tally: t, ended: make(chan error, 1)}
	s.cmd.Stderr = &s.stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	s.lines = bufio.NewScanner(out)
	if err := json.NewEncoder(s.in).Encode(c.join()); err != nil || !s.lines.Scan() {
		return nil, errors.Join(err, s.wait(), errors.New("the second process has not opened the system"))
	}
	go func() { s.ended <- s.count() }()
	return s, nil
}

func (s *secondProcess) begin() error {
	_, err := io.WriteString(s.in, "\n")
	return err
}

// count reads the numbers until the process ends.
func (s *secondProcess) count() error {
	for s.lines.Scan() {
		n, err := strconv.ParseInt(s.lines.Text(), 10, 64)
		if err != nil {
			return err
		}
		s.tally.add(n - s.done.Swap(n))
	}
	return s.lines.Err()
}

func (s *secondProcess) stop() error {
	err := s.in.Close()
	return errors.Join(err, <-s.ended, s.wait())
}

func (s *secondProcess) wait() error {
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("second process: %w: %s", err, &s.stderr)
	}
	return nil
}

// joinWork is what the second process does.
func joinWork(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	input := bufio.NewReader(in)
	line, err := input.ReadBytes('\n')
	if err != nil {
		return err
	}
	var j join
	if err := json.Unmarshal(line, &j); err != nil {
		return err
	}
	for _, c := range contenders() {
		if c.Name == j.System && c.Storage == j.Storage {
			sys, err := c.Open(ctx, j.place(), j.Variant)
			if err != nil {
				return err
			}
			return errors.Join(workUntilEnd(ctx, sys, input, out), sys.Close())
		}
	}
	return fmt.Errorf("no system %s on %s", j.System, j.Storage)
}

// reportEvery is short beside any drain.
const reportEvery = 5 * time.Millisecond

// workUntilEnd says that the system is open, waits for the word, and works until the
// input ends.
func workUntilEnd(ctx context.Context, sys System, in *bufio.Reader, out io.Writer) error {
	if _, err := fmt.Fprintln(out, 0); err != nil {
		return err
	}
	if _, err := in.ReadByte(); err != nil {
		return nil //nolint:nilerr // not wanted any more
	}
	var n atomic.Int64
	w, err := sys.Work(ctx, func(context.Context, int64) error { n.Add(1); return nil })
	if err != nil {
		return err
	}
	end := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, in); close(end) }()
	every := time.NewTicker(reportEvery)
	defer every.Stop()
	for said := int64(0); err == nil; {
		if now := n.Load(); now != said {
			said = now
			_, err = fmt.Fprintln(out, now)
		}
		select {
		case <-end:
			return stopped(w, err)
		case <-every.C:
		}
	}
	return stopped(w, err)
}
