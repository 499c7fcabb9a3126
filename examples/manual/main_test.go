package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// TestRun runs in a bubble of synctest, where delays pass only as the program
// waits for them.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		if err := run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
	})
	want := []string{
		"put a postcard, a parcel and an urgent telegram: 3 0 0 0 0",
		"reserve the telegram for 1s: 2 0 1 0 0",
		"touch the telegram: 2 0 1 0 0",
		"ack the telegram: 2 0 0 1 0",
		"reserve the postcard for 1m0s: 1 0 1 1 0",
		"release the postcard with a delay of 200ms: 1 1 0 1 0",
		"peek at the next delayed: the postcard: 1 1 0 1 0",
		"reserve the parcel for 1m0s: 0 1 1 1 0",
		"bury the parcel: 0 1 0 1 1",
		`peek at the first buried: the parcel, "no such street": 0 1 0 1 1`,
		"kick up to 10: 1: 1 1 0 1 0",
		"reserve the parcel for 50ms: 0 1 1 1 0",
		"sleep too long: 1 lease ended: 1 1 0 1 0",
		"reserve the parcel for 1m0s: 0 1 1 1 0",
		"ack the parcel too late: refused: 0 1 1 1 0",
		"ack the parcel: 0 1 0 2 0",
		"reserve the postcard for 1m0s: 0 0 1 2 0",
		"ack the postcard: 0 0 0 3 0",
	}
	if diff := cmp.Diff(want, shorten(out.String())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

var numbers = regexp.MustCompile(` +ready (\d+), delayed (\d+), reserved (\d+), done (\d+), buried (\d+)`)

func shorten(out string) []string {
	return strings.Split(strings.TrimSpace(numbers.ReplaceAllString(out, ": $1 $2 $3 $4 $5")), "\n")
}

func TestRunStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, new(bytes.Buffer)); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want context.Canceled", err)
	}
}
