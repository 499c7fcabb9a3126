package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

func TestSummaryFinds(t *testing.T) {
	none := errors.New("there is none")
	state := func(s pawl.State, r pawl.Reason) status { return status{State: s.String(), Reason: string(r)} }
	for _, c := range []struct {
		name string
		up   upload
		o    outcome
		want string // in the error; empty for none
	}{
		{"thumbnail", upload{"a", false}, outcome{state(pawl.Completed, ""), nil}, ""},
		{"buried", upload{"a", true}, outcome{state(pawl.Buried, pawl.ReasonBury), none}, ""},
		{"attempts", upload{"a", false}, outcome{state(pawl.Buried, pawl.ReasonAttempts), none}, ""},
		{"whole but buried", upload{"a", false}, outcome{state(pawl.Buried, pawl.ReasonBury), none}, "is a whole picture"},
		{"broken but made", upload{"a", true}, outcome{state(pawl.Completed, ""), nil}, "has a thumbnail"},
		{"completed without", upload{"a", false}, outcome{state(pawl.Completed, ""), none}, "1 uploaded, but 0 thumbnails"},
		{"pending", upload{"a", false}, outcome{state(pawl.Ready, ""), none}, "its job is ready"},
		{"gone", upload{"a", false}, outcome{status{State: gone}, none}, "its job is gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := newSummary(map[int64]upload{1: c.up}, map[int64]outcome{1: c.o}).check()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
		})
	}
	if err := newSummary(map[int64]upload{1: {"a", false}}, nil).check(); err == nil || !strings.Contains(err.Error(), "a: not listed") {
		t.Errorf("an unlisted picture gives error %v", err)
	}
}

func TestPercentile(t *testing.T) {
	for _, c := range []struct {
		n    int
		p    float64
		want time.Duration
	}{{1, 0.5, 1}, {1, 0.99, 1}, {4, 0.5, 2}, {100, 0.99, 99}, {101, 0.99, 100}, {5, 0, 1}} {
		var ds []time.Duration
		for i := range c.n {
			ds = append(ds, time.Duration(i+1))
		}
		if got := percentile(ds, c.p); got != c.want {
			t.Errorf("percentile %v of 1 to %d = %d, want %d", c.p, c.n, got, c.want)
		}
	}
}
