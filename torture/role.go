package main

import (
	"context"
	"encoding/json"
	"errors"
	"os/signal"
	"syscall"
	"time"

	"github.com/pawlq/pawl/torture/history"
)

// A config is what a process of a run is told, in the environment.
type config struct {
	Role    string // producer or worker
	Name    string // of the process; nobody else ever has it
	Number  int    // the same as a number
	Storage string
	DSN     string
	Dir     string // of histories
	Seed    uint64
	Skew    time.Duration // of the wall clock, or its negative

	// Of producers.
	Quota   int     // jobs
	Rate    float64 // of them in a second
	Deadly  int     // in a million
	Callers int     // at a time
	Batch   int     // most jobs of a call

	// Of workers.
	Lease, Sweep time.Duration
	Slots        int
	Spared       bool // nothing is done to it but what is done to its connections
	Connections  int
}

// roleEnv holds the config of a process that is not the controller.
const roleEnv = "PAWL_TORTURE_ROLE"

// encode is the config as an entry of the environment.
func (c *config) encode() string {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // it holds nothing that can't be
	}
	return roleEnv + "=" + string(b)
}

// play runs the role that the environment tells.
func play(text string) error {
	var c config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	if off := time.Since(time.UnixMicro(history.Wall())); (off+c.Skew).Abs() > time.Second && (off-c.Skew).Abs() > time.Second {
		return errors.New("this program is not built for wrong clocks")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log, err := history.Create(c.Dir, c.Name)
	if err != nil {
		return err
	}
	before := possessions()
	s, err := patientOpen(ctx, &c)
	switch {
	case ctx.Err() != nil:
		return nil // asked to stop before it had begun
	case err != nil:
		return err
	}
	if c.Role == "producer" {
		err = produce(ctx, &c, s, log)
	} else {
		err = work(ctx, &c, s, log)
	}
	if ctx.Err() != nil {
		err = nil // it was asked to
	}
	err = errors.Join(err, s.close())
	if c.Role == "worker" {
		log.Write(left(before))
	}
	return errors.Join(err, log.Close())
}

// patientOpen opens the storage when it can be reached.
func patientOpen(ctx context.Context, c *config) (*store, error) {
	for {
		try, cancel := context.WithTimeout(ctx, openTimeout)
		s, err := openStore(try, c.Storage, c.DSN, c.Connections, nil)
		cancel()
		if err == nil || ctx.Err() != nil {
			return s, err
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			return nil, err
		}
	}
}

const openTimeout = 5 * time.Second
