package sqlite_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/pawlq/pawl/storage/sqlite"
)

// A commit of another process is told although it is not time to look: its
// first write trips the wire, and the looks after that find it.
func TestWireTellsOfAnotherProcess(t *testing.T) {
	s := open(t, &sqlite.Options{Synchronous: sqlite.Off, PollInterval: time.Hour})
	if !sqlite.LayWireAtOnce(s) {
		t.Skip("there are no wires here")
	}
	in, said := enqueuer(t, fileOf(t, s))
	said.Scan()
	events := watch(t, s)
	<-events // of the look that follows the laying
	for range 3 {
		fmt.Fprintln(in)
		<-events
	}
}

// BenchmarkWake is from the end of a commit of another process to the event,
// after a pause of random length:
//
//	go test -bench Wake -benchtime 100x ./storage/sqlite
func BenchmarkWake(b *testing.B) {
	s := openBench(b, sqlite.Full)
	in, said := enqueuer(b, fileOf(b, s))
	said.Scan()
	events := watch(b, s)
	times := make([]time.Duration, 0, b.N)
	for b.Loop() {
		time.Sleep(rand.N(2 * time.Second)) // the pause
		for len(events) > 0 {
			<-events
		}
		fmt.Fprintln(in)
		<-events
		now := time.Now()
		said.Scan()
		committed, err := strconv.ParseInt(said.Text(), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		times = append(times, now.Sub(time.Unix(0, committed)))
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
}
