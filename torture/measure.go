package main

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/pawlq/pawl/torture/history"
)

// possession is what a process has that it must give back.
type possession struct{ goroutines, files int64 }

func possessions() possession {
	p := possession{goroutines: int64(runtime.NumGoroutine())}
	if names, err := os.ReadDir("/proc/self/fd"); err == nil {
		p.files = int64(len(names))
	}
	return p
}

// left is what a process has more than before it began. Goroutines that are ending, and
// connections, have a while to do so.
func left(before possession) history.Event {
	until := time.Now().Add(leaving)
	for {
		now := possessions()
		e := history.Event{Kind: history.Left, A: now.goroutines - before.goroutines, B: now.files - before.files}
		if e.A <= 0 && e.B <= 0 || time.Now().After(until) {
			return e
		}
		time.Sleep(10 * time.Millisecond)
	}
}

const leaving = 3 * time.Second

// measure writes down now and then how much memory the process has, and when it was
// held up.
func measure(ctx context.Context, c *config, log *history.Writer) {
	for n := 0; ; n++ {
		began := history.Now()
		if sleep(ctx, measureEvery) != nil {
			return
		}
		late(log, began, c.Lease)
		if n%10 == 0 {
			p := possessions()
			log.Write(history.Event{Kind: history.Measured, A: resident(), B: p.goroutines, Fence: p.files})
		}
	}
}

// late writes down what has taken long since then.
func late(log *history.Writer, began int64, lease time.Duration) {
	if history.Now()-began > int64(lease/lateness) {
		log.Write(history.Event{At: began, Kind: history.Late, Fence: history.Wall()})
	}
}

const (
	measureEvery = 100 * time.Millisecond
	// lateness is which part of a lease is long for anything that should take no time.
	lateness = 4
)

// resident is the resident memory of the process, 0 if that can't be known.
func resident() int64 {
	text, _ := os.ReadFile("/proc/self/statm")
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(string(fields[1]), 10, 64) // 0 is as good
	return pages * int64(os.Getpagesize())
}
