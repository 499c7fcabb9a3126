package main

import (
	"context"
	"time"
)

// A Workload is what systems are put through.
type Workload struct {
	Name, About  string
	Works        bool              // runs workers: slots and retention matter
	Long         bool              // in a quick run pawl has 100 slots only
	Single       bool              // in a quick run each system has one retention only
	OneRetention bool              // retention plays no role: pawl keeps history
	Slots        []int             // the only numbers of slots; none means those of each system
	Storages     []string          // none means all
	Only         string            // the only system that can do it
	Slow         bool              // not part of a quick run
	Lacks        map[string]string // systems that can't do it, and why: they are not opened
	Keep         bool              // the repetitions use one place, which Prepare fills once
	Retry        time.Duration     // when failed jobs run again; 0: as each system has it
	Apart        bool              // enqueue and work as two processes would, where the storage allows
	Together     []string          // but not on these storages
	Grid         []Params          // one group of cells each; none means one

	Takes   func(c *Cell) time.Duration // about, without opening; nil: its limit
	Prepare func(ctx context.Context, c *Cell) error
	Run     func(ctx context.Context, c *Cell) ([]Metric, error)
}

// Params are what a figure depends on.
type Params struct {
	Slots     int    `json:"slots,omitempty"`
	Batch     int    `json:"batch,omitempty"`
	Callers   int    `json:"callers,omitempty"`
	Payload   int    `json:"payload"`
	Retention string `json:"retention,omitempty"`
	Config    string `json:"config,omitempty"`
	Hold      string `json:"hold,omitempty"`   // how long transactions are held open
	Beside    string `json:"beside,omitempty"` // what else lies in the storage
	Poll      bool   `json:"poll,omitempty"`   // without wake-ups
	Slow      bool   `json:"-"`                // not part of a quick run
	On        string `json:"-"`                // the only storage that has the group
}

// A Metric is one figure of one run.
type Metric struct {
	Name  string
	Value float64
	Unit  string
	Less  bool // less is better
}

// rate is a figure in jobs a second.
func rate(name string, jobs int64, seconds float64) Metric {
	return Metric{Name: name, Value: float64(jobs) / seconds, Unit: "jobs/s"}
}

// quotient is 0 where there is none.
func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// workloads lists all, in the order in which they run.
func workloads() []*Workload {
	all := []*Workload{enqueueWorkload(1), enqueueWorkload(16), enqueueWorkload(64), enqueueWorkload(100)}
	return append(all, bulk(), enqueueTx(), enqueueUnique(), drain(), retries(), steady(), latency(), latencyApart(), latencyPolling(), latencyHeld(), dueAtOnce(), twoProcesses(), heartbeat(),
		cancelLatency(), drainFinished(), claimBeside(), foreignKinds(), enqueuePurge(), heldSnapshot())
}
