package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
)

// trouble strikes at the steps of a handler.
type trouble struct {
	crash float64 // how likely a step panics
	die   int64   // the step at which the process is killed; 0 means never
	steps atomic.Int64
}

func (t *trouble) at(step string) {
	if t.steps.Add(1) == t.die {
		killMyself()
	}
	if rand.Float64() < t.crash {
		panic(fmt.Sprintf("crash: %s", step))
	}
}

// killMyself ends the process as SIGKILL or a power cut would: no deferred
// function runs, nothing is flushed.
func killMyself() {
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {} // until the signal arrives
}
