package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
)

// TestDay runs a day of hours in a bubble of synctest.
func TestDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		began := time.Now()
		c := config{every: time.Hour, ticks: 25, processes: 5}
		store := memory.New(nil)
		if err := run(t.Context(), store, c, &out); err != nil {
			t.Fatal(err)
		}
		wantSums(t, store, out.String())
		if took := time.Since(began).Round(time.Minute); took != 24*time.Hour {
			t.Errorf("25 ticks took %v", took)
		}
		last := began.Truncate(time.Hour)
		for i := range 25 {
			line := fmt.Sprintf("tick %s ran\n", last.Add(time.Duration(i)*time.Hour).Format(clock))
			// The first and the last are of the same time of day.
			if n := strings.Count(out.String(), line); n != 1 && i%24 != 0 || n == 0 {
				t.Errorf("%q %d times", line, n)
			}
		}
	})
}

// wantSums checks the last line of out against what is stored.
func wantSums(t *testing.T, storage pawl.Storage, out string) {
	t.Helper()
	var enqueued, tickers, known, ran, left int
	last := out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:]
	if _, err := fmt.Sscanf(last, "%d ticks enqueued by %d tickers, %d times they were known already; %d ran, %d enqueued ahead",
		&enqueued, &tickers, &known, &ran, &left); err != nil {
		t.Fatalf("%q: %v", last, err)
	}
	stored, waiting := 0, 0
	for j, err := range pawl.New(storage, nil).Jobs(t.Context(), pawl.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if stored++; j.State == pawl.Scheduled || j.State == pawl.Ready {
			waiting++
		}
	}
	if enqueued != stored || ran != stored-waiting || left != waiting || waiting == 0 {
		t.Errorf("%q, but %d are stored, of which %d wait", last, stored, waiting)
	}
}

// failing is a storage on which enqueues fail with err.
type failing struct {
	pawl.Storage
	fails func(n int) error
	n     atomic.Int64
}

func (f *failing) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	if err := f.fails(int(f.n.Add(1) - 1)); err != nil {
		return nil, err
	}
	return f.Storage.Enqueue(ctx, reqs)
}

// An enqueue that fails, for longer than some ticks take, is told, and leaves no
// tick out.
func TestFailedEnqueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		storage := &failing{Storage: memory.New(nil), fails: func(n int) error {
			if n >= 2 && n < 300 { // about five hours
				return errors.New("a hiccup")
			}
			return nil
		}}
		var out bytes.Buffer
		began := time.Now()
		if err := run(t.Context(), storage, config{every: time.Hour, ticks: 10, processes: 1}, &out); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began).Round(time.Minute); took != 9*time.Hour {
			t.Errorf("10 ticks took %v", took)
		}
		if n := strings.Count(out.String(), "a hiccup"); n != 298 {
			t.Errorf("%d failures told", n)
		}
		for i := range 10 {
			line := fmt.Sprintf("tick %s ran\n", began.Add(time.Duration(i)*time.Hour).Format(clock))
			if n := strings.Count(out.String(), line); n != 1 {
				t.Errorf("%q %d times", line, n)
			}
		}
	})
}

// What can't go on ends all.
func TestInvalidTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		storage := &failing{Storage: memory.New(nil), fails: func(int) error { return &pawl.InvalidError{Field: "Tick", Limit: "valid"} }}
		err := run(t.Context(), storage, config{every: time.Hour, ticks: 10, processes: 3}, t.Output())
		if !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("error %v", err)
		}
	})
}

func TestOnFile(t *testing.T) {
	var out bytes.Buffer
	if err := onFile(t.Context(), config{every: 100 * time.Millisecond, ticks: 5, processes: 3}, &out); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &out)
	if n := len(regexp.MustCompile(`(?m)^tick .* ran$`).FindAllString(out.String(), -1)); n < 5 {
		t.Errorf("%d ticks ran", n)
	}
	if strings.Contains(out.String(), " 0 times they were known") {
		t.Error("no tick was enqueued twice")
	}
}

func TestIDs(t *testing.T) {
	tick := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)
	one := schedule{"a", time.Hour}.request(tick).ID
	if same := (schedule{"a", time.Hour}).request(tick.In(time.FixedZone("", 3600))).ID; same != one {
		t.Error("the ID depends on the time zone")
	}
	for _, other := range []pawl.ID{
		schedule{"b", time.Hour}.request(tick).ID, schedule{"a", time.Hour}.request(tick.Add(time.Hour)).ID,
	} {
		if other == one {
			t.Error("another schedule, or another tick, has the same ID")
		}
	}
}

func TestCheck(t *testing.T) {
	l := &ledger{ran: map[time.Time]int{time.Now(): 2}}
	if l.check() == nil {
		t.Error("a tick that ran twice is not reported")
	}
	if err := run(context.Background(), memory.New(nil), config{}, t.Output()); err == nil {
		t.Error("zero flags are taken")
	}
}
