package redis

import (
	"testing"
	"time"
)

// TestRecent notes ever new things: those of long ago are forgotten, and no others.
func TestRecent(t *testing.T) {
	var r recent[int]
	start := time.Now()
	const perMinute = maxKnown / 2
	for i := range 20 * perMinute {
		r.note(i, start.Add(registerEvery*time.Duration(i)/perMinute))
		if len(r.at) > maxKnown {
			t.Fatalf("%d things are known", len(r.at))
		}
		if i >= perMinute && r.at[i-perMinute+1].IsZero() {
			t.Fatalf("thing %d was forgotten within a minute", i-perMinute+1)
		}
	}
}
